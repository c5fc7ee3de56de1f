// Package simulate runs whole jobs, of real shards, coordinators, trainers and checkpoints, in virtual time on a
// network within the process, and has happen to them what a seed draws: messages are lost, repeated, late and out
// of order, machines are cut off or stand still, trainers and servers end at any moment, and new ones come. Time
// passes as soon as everybody waits, so hours of timeouts take seconds. Whatever happens, the weights at the end
// have the bits of a job in which nothing did.
//
//	go test ./e2e/simulate -run Simulate -seeds 500
//	go test ./e2e/simulate -run Simulate -seed 17 -v
//
// A failure prints its seed, and what happened when. The same seed draws the same faults at the same times; which
// goroutine runs first between two of them is the scheduler's, so a second run may take another course.
//
//   - simulate_test.go draws faults, and checks.
//   - system_test.go is the servers and trainers.
//   - workload_test.go is what they train.
package simulate
