// Package timerslack lets the kernel wake threads that wait for a time up to a millisecond late, in every program that
// imports it, so that it can wake several at once and wake them seldom.
//
// Go's monitor thread sleeps for 20 us at a time while goroutines run, which Linux makes 70 us by the slack that each
// process has by default. On a virtual machine a switch costs up to 20 us of processor time, so 16 trainers on two
// cores spent a third of it on waking their monitors. With a millisecond they did 1.4 times the samples, and a request
// on an idle machine took half the time, since the monitor no longer takes the core that the answer needs.
//
// Threads inherit their slack, and Go starts the monitor before any code of the program; so it is set by a constructor
// in C, which runs before Go does. Without cgo, and on other systems than Linux, it stays what it was. The price:
// whatever waits for a time may get it a millisecond late. What arrives on a socket wakes its reader at once as ever.
package timerslack
