// Package terminal shows in a terminal what a ps tells on its page: one screen, or one that follows.
//
//   - Client (client.go, stream.go) asks a ps, and says in one line why it does not answer.
//   - Screen (screen.go, sections.go, table.go, line.go) is pure: a status, a width and a height in, lines out. Texts
//     in a
//     status come from other machines, so what a terminal would take for a command never reaches it.
//   - Top (top.go) follows a ps until a key ends it.
//
// It knows the ps by its API only and takes nothing from the process it runs in: neither environment nor standard
// streams.
package terminal
