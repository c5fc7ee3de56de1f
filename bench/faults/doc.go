// Package faults kills the processes of jobs at moments that are drawn by a seed, has new ones take their places, and
// measures what that costs: how long no batch was complete, how long detection took, and how many batches were computed
// again. Each job's weights are compared, bit by bit, with those of one in which nothing happened.
//
//   - faults.go runs jobs and kills. server.go is the ps: one, two that hold replicas for each other, or several
//     with shards of each job, and a NATS server.
//   - member.go is a trainer of them, which tells of every batch; cut.go cuts its connections, and links between
//     processes.
//   - history.go is what all trainers have told, and what follows from it.
//   - report.go is the outcome.
//
// It starts real processes on this machine and knows what a user knows: commands, signals, and what a trainer program
// can see. A newcomer may add a kind of fault here.
package faults
