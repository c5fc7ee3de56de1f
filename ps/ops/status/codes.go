package status

// Code is one thing that can be wrong: the label of a metric, the name of a runbook, and the code of problems and
// events.
type Code struct {
	Code    string
	Level   Level  // at worst; some are less where nothing depends on what is wrong
	Runbook string // heading of docs/runbooks.md
	Title   string // what it is, in a few words
	Action  string // what to do, where nothing better is known of the case

	// hold is for how long it must be so before it is told of, and linger for how long it is told after it is over, so
	// that what comes and goes is one problem: in milliseconds.
	hold, linger int64
}

// Codes of problems.
const (
	CodeReplicas     = "replicas-differ"
	CodeVerification = "verification-mismatch"
	CodeGPUUnhealthy = "gpu-unhealthy"
	CodeGPUAbsent    = "gpu-absent"
	CodeDiskFull     = "disk-full"
	CodeCoordinator  = "coordinator-lost"
	CodeServerSilent = "server-silent"
	CodeControlLost  = "control-lost"
	CodeTrainerGone  = "trainer-gone"
	CodeSilent       = "trainer-silent"
	CodeLeftEarly    = "trainer-left-early"
	CodeJobFailed    = "job-failed"
	CodeLossBad      = "loss-not-finite"
	CodeShardSilent  = "shard-silent"
	CodeShardUnready = "shard-not-ready"
	CodeHeldUp       = "trainer-held-up"
	CodeNoProgress   = "no-progress"
	CodeTrainerLost  = "trainer-lost"
	CodeGPUDegraded  = "gpu-degraded"
	CodeGPUUnknown   = "gpu-unknown"
	CodeRefusals     = "frames-refused"
	CodeResends      = "frames-resent"
	CodeReconnects   = "connection-unsteady"
	CodeDropped      = "messages-dropped"
	CodeSlowReaders  = "slow-readers"
	CodeMemory       = "memory-short"
	CodeDiskLow      = "disk-low"
	CodeDiskHangs    = "disk-hangs"
	CodeNotDurable   = "not-durable"
	CodeNotStoodBy   = "not-stood-by"
	CodeStandbyCut   = "standby-unreached"
	CodeMissing      = "trainers-missing"
	CodeClaimed      = "job-claimed-twice"
	CodeVersions     = "versions-differ"
	CodeTooMany      = "too-many-members"
)

// burstHold is longer than one burst of some seconds counts in a rate, such as the frames of trainers that do not know
// yet that their ps was started again.
const burstHold = rateWindow + 5_000

// Codes is every code that a Problem can have, causes before what follows from them: of two problems of one level the
// earlier here is the one to look at.
func Codes() []Code {
	all := make([]Code, len(codes))
	for i, c := range codes {
		_, all[i] = rank(c.Code)
	}
	return all
}

// codes is never written to. Runbooks have the names of their codes.
var codes = [...]Code{
	{Code: CodeReplicas, Level: Critical, Title: "trainers have different parameters at one version",
		Action: "Stop the job: its results are not those of the data. Start it again from its last good model, without the " +
			"trainer that differs."},
	{Code: CodeVerification, Level: Critical, Title: "a result came out otherwise when it was computed again",
		Action: "Take that GPU, or that machine, out of use; start the job again from a model saved before the mismatch."},
	{Code: CodeGPUUnhealthy, Level: Critical, Title: "a GPU may compute wrongly, or not at all",
		Action: "Move the job to another GPU and have this one reset or replaced."},
	{Code: CodeGPUAbsent, Level: Critical, Title: "a GPU that is expected is not there",
		Action: "Look at `nvidia-smi` and the kernel's log on that machine; a reset or a restart of the machine may " +
			"bring it back."},
	{Code: CodeDiskFull, Level: Critical, Title: "a disk that is written to is full",
		Action: "Free space there; nothing can be saved meanwhile."},
	{Code: CodeDiskHangs, Level: Warning, Title: "a disk that is written to does not answer", linger: 5_000,
		Action: "Look at that machine's kernel log, and at the server of the file system where it is on the network: " +
			"whoever saves there waits until it answers."},
	{Code: CodeControlLost, Level: Critical, Title: "a ps cannot reach the control server", linger: 3_000,
		Action: "Look at the control server and the network to it; jobs that run go on for their deadline."},
	{Code: CodeCoordinator, Level: Critical, Title: "the ps that coordinates a job is not heard of",
		Action: "Look at that ps and its machine; start it again if it has ended, and the job after it."},
	{Code: CodeServerSilent, Level: Critical, Title: "a ps is not heard of",
		Action: "Look at that ps and its machine; start it again if it has ended."},
	{Code: CodeTrainerGone, Level: Critical, Title: "a trainer's connection is gone",
		Action: "Look why it ended: its log, and the kernel's for out of memory."},
	{Code: CodeSilent, Level: Critical, Title: "a trainer is not heard of",
		Action: "Look whether the process runs and its machine answers."},
	{Code: CodeLeftEarly, Level: Critical, Title: "a trainer has left while others need it",
		Action: "Start the job again with the same number of batches on every trainer."},
	{Code: CodeJobFailed, Level: Critical, Title: "a job has failed",
		Action: "Mend the cause and start the job again."},
	{Code: CodeLossBad, Level: Critical, Title: "the loss, or the gradient, is NaN or infinite",
		Action: "Stop the job and start it from an earlier model with a smaller learning rate; look at the data of " +
			"that batch."},
	{Code: CodeShardSilent, Level: Critical, Title: "a shard is not told of by its ps", hold: 2_000, linger: 2_000,
		Action: "Look at the log of the ps that has it."},
	{Code: CodeShardUnready, Level: Critical, Title: "a shard is not ready", hold: 5_000,
		Action: "Look at the log of the ps that has it."},
	{Code: CodeGPUDegraded, Level: Warning, Title: "a GPU works with a warning",
		Action: "Watch it; plan for a replacement if it comes again."},
	{Code: CodeTrainerLost, Level: Warning, Title: "a job goes on without a trainer",
		Action: "In async it is taken back if its process goes on; nobody else can take its place in this run. " +
			"If its share " +
			"of the data is needed, end the job and start it again."},
	{Code: CodeHeldUp, Level: Critical, Title: "a batch waits for one trainer", linger: 3_000,
		Action: "Look at what that trainer does: its log, its machine's load."},
	{Code: CodeNoProgress, Level: Critical, Title: "no batch is completed", linger: 2_000,
		Action: "Look at what the trainers and shards log; without an end to it, start the job again."},
	{Code: CodeGPUUnknown, Level: Warning, Title: "a GPU cannot be asked", hold: 3_000, linger: 3_000,
		Action: "Run `./bin/ps doctor` and `nvidia-smi` on that machine."},
	{Code: CodeRefusals, Level: Warning, Title: "frames are refused", hold: burstHold, linger: 15_000,
		Action: "Look at the reason: damaged frames point to the network or memory, others to a defect of who sends them."},
	{Code: CodeResends, Level: Warning, Title: "frames are sent again", hold: 20_000, linger: 15_000,
		Action: "Look at the network between the trainer and its shards, and at the load of both machines: " +
			"acknowledgements " +
			"come late, or not at all."},
	{Code: CodeReconnects, Level: Warning, Title: "a connection breaks again and again", linger: 15_000,
		Action: "Look at the network between the trainer and its servers."},
	{Code: CodeDropped, Level: Warning, Title: "messages are lost to a slow reader", hold: burstHold, linger: 15_000,
		Action: "Look at the load of that machine; what is lost is asked for again."},
	{Code: CodeSlowReaders, Level: Warning, Title: "connections were cut off for not reading in time", linger: 30_000,
		Action: "Look at the load of the machines that the trainers run on, and at the network to them."},
	{Code: CodeMemory, Level: Warning, Title: "a ps has promised nearly all of its memory", hold: 5_000, linger: 5_000,
		Action: "Give it more (`./bin/ps --memory-mib`), or wait until a job has ended: further jobs are refused."},
	{Code: CodeDiskLow, Level: Warning, Title: "a disk that is written to is nearly full", linger: 5_000,
		Action: "Free space there."},
	{Code: CodeNotDurable, Level: Warning, Title: "versions of a job do not become durable", hold: 3_000,
		Action: "Look at the disk under `--checkpoint-dir` and at the log of that ps: a crash now costs all that was " +
			"trained since the newest durable version."},
	{Code: CodeNotStoodBy, Level: Warning, Title: "no ps stands by for a job", hold: 3_000,
		Action: "Start another ps with `--standby` of this one, as before: when this one is lost now, the job goes on from " +
			"its newest durable version, or from nothing."},
	{Code: CodeStandbyCut, Level: Warning, Title: "a ps does not reach the one that it stands by for",
		hold: standbyGrace,
		Action: "Look at that ps and the network to it, and at the log of the one that stands by: the address, the token " +
			"or the certificates of `--standby` may be wrong."},
	{Code: CodeMissing, Level: Warning, Title: "a job waits for trainers to join",
		Action: "Start the trainers that are missing."},
	{Code: CodeClaimed, Level: Warning, Title: "two ps say that they coordinate one job", hold: 5_000,
		linger: 10_000,
		Action: "Look whether two control servers have been mixed up; the one that came first is shown."},
	{Code: CodeVersions, Level: Warning, Title: "ps of different versions run together", hold: 5_000,
		Action: "Run one version everywhere."},
	{Code: CodeTooMany, Level: Warning, Title: "there is more than can be shown", linger: 60_000,
		Action: "Look who announces so much; training is not touched by it."},
}

// rank is the place of a code in the table, and the code; what is not there is last.
func rank(code string) (int, Code) {
	for i, c := range codes {
		if c.Code == code {
			c.Runbook = c.Code
			return i, c
		}
	}
	return len(codes), Code{Code: code, Level: Warning}
}

// levels in order of weight.
func weight(l Level) int {
	switch l {
	case Critical:
		return 3
	case Warning:
		return 2
	case Info:
		return 1
	}
	return 0
}

func worse(a, b Level) Level {
	if weight(b) > weight(a) {
		return b
	}
	return a
}
