// Package status makes one view of all jobs from the reports of their members: what is shown on the page, by the API
// and in the terminal, with the sentence that says why a job does not go on.
//
// It is pure: reports and times in, statuses out. It knows no HTTP, no clock and no NATS, and its only state is a
// Tracker's. Whoever is paged shall see in five seconds what is wrong, on which trainer, shard or GPU, since when, and
// what to do. So everything here ends in problems, and problems in one sentence:
//
//	tracker, members        who is heard of: ps, runs, trainers, shards, GPUs; whose word counts; what is forgotten when
//	rates                   what counters of reports say over ten seconds, and how long a batch takes
//	build, hosts            the view of a moment: rows of trainers, shards, ps, GPUs
//	job_health, progress    what is wrong with jobs: who is silent, gone, waited for
//	server_health, disks    what is wrong with machines, ps and GPUs; what is full, lost or refused
//	durability              which version outlives a crash, and whether the next is late
//	standby                 who stands by for a job, what it has of it, and whether it still does
//	control                 whether anybody can be heard at all
//	traffic                 losses, refusals, losses and gradients that are not finite
//	incidents               a problem has a beginning and an end; a cause stands before what follows from it
//	rank, outage            the sentence
//	series, transitions     what was
//
// # Time
//
// Only the caller's times count, and durations that reports tell: clocks of other machines may be hours off, or be set
// while a job runs. A member that says nothing grows older and does not vanish: trainers stay with their run, a ps or a
// GPU for ten minutes. Who is missed is told after two intervals and 0.9 s, and a trainer that a batch waits for
// already after one and a half. A pause of the process that looks is nobody's silence.
//
// # Whose word counts
//
// Who speaks is said by a report's subject, which the NATS server enforces; a body that claims to be another changes
// nothing. Of a ps that is not in the registry nothing is taken (bounds.go). A member is believed for as long as it
// goes on (liveness.go): what was said before, or is repeated, takes nobody's place. A run belongs to the ps that told
// of it first, while that is heard of. Shards are told of by the ps that the run's coordinator names. A GPU is known by
// its machine and UUID, and the worst that anybody on it says counts. Counters that fall begin a new life: rates are
// never negative.
//
// # Memory
//
// A Tracker keeps, in bytes at most:
//
//	a run        80 x (600 + 1080 + 2880) for its series: 0.4 MB, after two days
//	a trainer    8,000, and its latest report: up to 8 KiB, more where there is room among 32 MiB for all, and never above 64 KiB
//	a shard      6,000
//	a ps         6,000, its latest report and the refusals of the 12 latest: up to 64 KiB, more where there is room among 32 MiB for all
//	a GPU        200 for each that speaks of it, with 64 of these at most
//	events       2000 x (200 + text)
//
// times JobsMax, TrainersMax, ShardsMax, ServersMax and GPUsMax: trainers and shards of the ps that answers and of all
// others apart, so that these take no room from those, and 256 trainers of runs that no ps tells of. A job of 64
// trainers and 16 shards takes about 3 MB. What is beyond a bound is not shown, and a problem says so.
package status
