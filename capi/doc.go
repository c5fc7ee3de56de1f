// Command capi is the session of package trainer as a C library: built with -buildmode=c-shared it is libgradbus.so.
// Its interface is gradbus.h, which says of each pointer whose memory it is and until when, which calls wait, and what
// a code means.
//
//	gradbus.h   the contract
//	shim.c      the functions of it: each looks at the process id, and then enters Go
//	calls.go    codes and texts of errors, handles, waits that a thread's patience interrupts
//	session.go  join, turns, cancel and leave; local.go, batch.go, weights.go and model.go are the other calls
//	elastic.go  programs that compute whatever lanes they are given, in jobs that recover
//
// A call that waits runs on the thread of its caller: what it waits for ends with the thread's patience, by
// trainer.ErrAgain, and goes on with gradbus_resume. The caller's memory is viewed as slices during the call and is
// not kept afterwards; no memory of Go's is given away.
//
// It knows package trainer, package local and JSON. It must not know what computes a forward pass, and does no
// arithmetic. A newcomer may add a call: its contract in gradbus.h, a line in shim.c, a function here, and a case in
// testdata/session_test.c.
package main

func main() {} // a library has none
