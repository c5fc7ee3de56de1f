// Package faults holds the fault suite: whole jobs, with real servers and trainers, over a network that loses, repeats,
// delays, reorders and damages messages (fabric/chaos), and past servers that stop and readers that do not read.
//
// Every job trains a ledger (ledger_test.go): gradients are small integers, weights powers of two, so that every sum,
// mean and parameter is exact in float32, and each trainer compares all parameters and rows that it sees, in every
// round, bit by bit with what the sums must be. A gradient that is lost or counted twice anywhere shows at the next
// batch. After each run the books are balanced (rig_test.go): what the proxy did, what trainers sent again and what
// shards refused as duplicate or damaged must add up exactly.
//
//	frames_test.go    messages harmed in every way, each alone and all together, small chunks and large
//	clocks_test.go    the same in jobs whose trainers see different versions: bounded, async, async tables
//	stops_test.go     ways cut in mid-round, a reader too slow, messages too large, control lost while data flows
//	restart_test.go   the embedded server stopped and started in mid-round
//	process_test.go   a trainer's process stopped for 5 s; the memory of a server process against its formula
//
// A handler that does not keep up, so that a connection exceeds the server's max_pending, is package fabric's own test;
// the way between hosts cut, that of the commands (e2e).
//
// The seed of every run is printed; -seed repeats its decisions. The default volume is moderate; -full runs all of it:
//
//	go test -tags native ./e2e/faults -full
//
// Nothing depends on speed: what is waited for is polled, under guards that are reached only by what never comes.
package faults
