package schema

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Ids of the protocol. Each has its own type so that arguments cannot be swapped.
type (
	// JobName names a training run; it matches [a-z0-9-]{1,63} and is a token of every subject.
	JobName string
	// Member names a process within a job: t0, t1, ... for trainers, s0, s1, ... for shards, "coordinator", p-{id} for a
	// ps.
	Member string
	// RunID tells apart two jobs of one name; the coordinator draws it when the job is registered.
	RunID uint64
	// Generation is the incarnation of a job's membership, from 1.
	Generation uint32
	// Batch is a training step, from 0. Batch b is computed on version b.
	Batch uint64
	// Version is a number of batches applied.
	Version = Batch
	// Bucket names an aggregation unit; its meaning never changes within a job.
	Bucket uint32
	// Chunk is the index of a wire frame within a round or a request.
	Chunk uint32
	// Table is the index of an embedding table in the job's manifest.
	Table uint32
	// Partition is a fixed part of a table: see PartitionOf.
	Partition uint32
	// Sequence numbers the frames of one (trainer, shard) pair, from 1.
	Sequence uint64
)

// Coordinator is the member name of a job's coordinator; All addresses every trainer.
const (
	Coordinator Member = "coordinator"
	All         Member = "all"
)

// TelemetryJob stands where subjects have a job's name, in reports of a ps. A job may go by it too: its members are
// trainers.
const TelemetryJob JobName = "ps"

var (
	nameForm  = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	labelForm = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
)

// CheckName reports what is wrong with a job or member name.
func CheckName(what, name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%s %q: want 1 to 63 of a-z, 0-9 and -", what, name)
	}
	return nil
}

// derivedMark stands in the name of every job that gradbus derives from another one, such as films--dense, and in none
// that a program chooses: so the two never meet.
const derivedMark = "--"

// CheckChosen reports that a program has chosen a name of those that gradbus derives.
func CheckChosen(job JobName) error {
	if strings.Contains(string(job), derivedMark) {
		return fmt.Errorf("job %q: names with %s are those that gradbus derives from others: want another one", job,
			derivedMark)
	}
	return nil
}

// TrainerMember and ShardMember are the member names of the i-th trainer and shard.
func TrainerMember(i int) Member { return Member(fmt.Sprintf("t%d", i)) }

// HasTrainer reports whether a member is one of the job's trainers.
func (j *Job) HasTrainer(m Member) bool {
	digits, found := strings.CutPrefix(string(m), "t")
	n, err := strconv.ParseUint(digits, 10, 31)
	return found && err == nil && int(n) < j.Trainers && m == TrainerMember(int(n))
}

// ShardMember is the member name of the i-th shard.
func ShardMember(i int) Member { return Member(fmt.Sprintf("s%d", i)) }

// ServerIDBytesMax is the length of the longest id of a ps, which is a member under that name with p- before it.
const ServerIDBytesMax = 61

// ServerMember is the member name of the ps with an id.
func ServerMember(id string) Member { return Member("p-" + id) }

// ServerID is the id of a ps that is a member.
func (m Member) ServerID() string { return strings.TrimPrefix(string(m), "p-") }

// IsServer reports whether a member is a ps.
func (m Member) IsServer() bool { return strings.HasPrefix(string(m), "p-") }

// PartitionOf is the partition of a key in a table cut into the given number of partitions. It is part of the protocol:
// trainers and shards must agree. Keys come in groups of as many as there are partitions. A group has one key in each:
// key i of group g is in partition (i + h(g)) modulo partitions, at position g of it. h(g) is the splitmix64 finaliser
// of g, its upper 32 bits scaled to [0, partitions), so that keys of any stride are spread.
func PartitionOf(key uint64, partitions int) Partition {
	p := uint64(partitions)
	return Partition((key%p + rotation(key/p, p)) % p)
}

// rotation is h(g): by how many partitions a group is turned.
func rotation(group, partitions uint64) uint64 {
	group ^= group >> 30
	group *= 0xbf58476d1ce4e5b9
	group ^= group >> 27
	group *= 0x94d049bb133111eb
	group ^= group >> 31
	return (group >> 32) * partitions >> 32
}
