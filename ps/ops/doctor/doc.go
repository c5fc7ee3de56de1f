// Package doctor looks at a machine, a NATS server and a running ps for what would slow a job down, stop it or lose
// something, and says of each what would be right.
//
// What it finds is one list of terminal.Finding. Deciding is pure and apart from looking: judge*.go take facts and give
// findings, machine.go, ports.go and nats.go collect facts. Facts that cannot be had are findings of level Info: never
// OK.
//
// It changes nothing: no setting, no file but one that it takes away again, no message but questions.
package doctor
