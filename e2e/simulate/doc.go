// Package simulate runs whole jobs, of real shards, coordinators, trainers and checkpoints, in virtual time on a
// network within the process, and has happen to them what a seed draws: messages are lost, repeated, late and out
// of order, machines are cut off or stand still, their clocks are set, trainers and servers end at any moment, and new
// ones come; disks fail, fill up, lie, rot, and lose in a power cut what was not brought to them. Time passes as soon
// as all wait, so hours of timeouts take seconds. Whatever happens, the weights at the end have the bits of a
// job in which nothing did, and what was durable is not lost.
//
//	go test ./e2e/simulate -run Simulate -seeds 500
//	go test ./e2e/simulate -run Simulate -first 500 -seeds 500
//	go test ./e2e/simulate -run Simulate -seed 17 -v
//	go test ./e2e/simulate -run Recovery -rewrite
//	go test ./e2e/simulate -run Recovery -row 'grouped update shards none | 1,3' -v
//
// A failure prints its seed, and what happened when. The program runs in WebAssembly, with one thread, and what it is
// told of time and chance follows from the seed, so that a seed has one course, to the byte. TestOnThreads runs seeds
// on this machine as it is, for the race detector, with its disks: there a second run may take another course.
//
//   - host_test.go is the simulated machine, and runs seeds; package disk is its disks.
//   - machine_test.go and its two others are what a simulated program has become of disks and clocks.
//   - recovery_test.go runs a row of testdata/recovery.txt, the table of what becomes of each kind of job when processes
//     die, and recovery_notes_test.go notes its outcome; recovery_rows_test.go chooses the rows, recovery_jobs_test.go is
//     the jobs, recovery_host_test.go the test.
//   - planted_test.go plants the defects of package internal/planted, which seeds have to find.
//   - simulate_test.go draws faults, and checks.
//   - servers_test.go is the servers: one, two that hold replicas for each other, or several with shards of one job,
//     and a control server.
//   - system_test.go is the trainers, and what is checked of all.
//   - workload_test.go is what they train.
package simulate
