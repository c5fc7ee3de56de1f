// Package cost measures what it costs to watch a job, in two ways.
//
//	go test -tags native ./e2e/cost -run '^$' -bench Profile -benchtime 1x
//	go test -tags native ./e2e/cost -run '^$' -bench Observing -benchtime 20x -timeout 30m
//
// BenchmarkProfile says what part of the processor time of a job it is, and of what that consists: it profiles a ps and
// its trainers, gives every sample that has a function of reports, of the view, of pages or of scrapes on its stack to
// one of these parts (rules, in parts_test.go), shares the collector's time out by who allocated, and measures apart
// what the way of a report through NATS takes, as nothing in a profile says for whom NATS works. Shares hold on a busy
// machine, too. What it cannot see: that training itself may be slower for being interrupted, as caches are, and by
// what counters that training keeps for who may look.
//
// BenchmarkObserving sees everything and far less sharply: the processor time of the same batches of two jobs that run
// at the same time, one with nobody watching and one with everybody, each with a ps of its own. Whatever else the
// machine does meets both. Beginnings are left out: a job that begins changes the page ten times a second, and ends.
// Each turn is one pair.
//
// What watching costs is far below what two runs differ by on most machines. So in both the watchers do so many times
// what they usually do (-times): so many reports a second, streams of the page and scrapes, and what they cost is
// divided by that. The profile knows what is done once a second however many watch, and does not divide it; pairs
// divide all, and say so much too little. What browsers and Prometheus spend themselves is not counted, as they are
// usually elsewhere.
package cost
