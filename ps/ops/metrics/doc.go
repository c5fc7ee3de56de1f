// Package metrics tells Prometheus of a ps: of the jobs it coordinates with their trainers, of the shards it keeps, of
// its process, memory, disks and GPUs, and of what is wrong.
//
// It reads the status, with the reports that it was made of, and nothing else: a scrape asks no GPU, no shard and no
// network, and takes no lock that anybody else holds for longer than it takes to copy pointers. What a report does not
// tell is absent, never 0; a loss that is not a number is exported as NaN.
//
// # Who exports what
//
// Sums over all ps of a cluster must count everything once. So a job and its trainers are exported by the ps that
// coordinates the job, shards by the ps that keeps them, processes by themselves. GPUs are exported by every ps that
// sees them, as are problems: aggregate those with max.
//
// Labels are bounded: job_name (Prometheus has a label job of its own, which would win), member (t3, s0: as in subjects
// and logs), gpu (its UUID), host, and short lists of names. No batch, run or address is a label of anything but of the
// _info families, which have one series for each subject.
//
// # Families
//
// A family is a row of a table: name, type, help, labels and the function that reads it from its subject (trainer.go,
// shard.go, ...). The golden file testdata/families.txt and docs/metrics.md are written from these tables. Samples are
// put into the data model of client_golang directly, not through its Collector interface, which hashes and sorts every
// sample again; a pedantic registry checks the same families in tests.
//
// Whoever adds a figure adds a row here, runs the tests of this package with -rewrite, and reads the difference.
package metrics
