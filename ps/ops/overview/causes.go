package overview

// Tokens say what depends on what: a finding that causes a token explains those that follow from it. They are made only where
// something is wrong.
//
//	control              the way to the control server, of the ps that answers
//	host:NAME            a machine
//	server:ID            a ps
//	job:NAME             a job's rounds, for which all its trainers wait
//	member:JOB/t3        a trainer or a shard of a job
//	pace:JOB/t3          that it is slow
//	gpu:NAME             a GPU
//	way:JOB              the network between a job's trainers and its shards
const (
	byControl = "control"
	byHost    = "host:"
	byServer  = "server:"
	byJob     = "job:"
	byMember  = "member:"
	byPace    = "pace:"
	byGPU     = "gpu:"
	byWay     = "way:"
)

func memberToken(job, member string) string { return byMember + job + "/" + member }
func paceToken(job, member string) string   { return byPace + job + "/" + member }
