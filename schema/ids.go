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
	// Member names a process within a job: t0, t1, ... for trainers, s0, s1, ... for shards, "coordinator", p-{id} for a ps.
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
	// Partition is a fixed part of a table, by a mixed hash of the key.
	Partition uint32
	// Sequence numbers the frames of one (trainer, shard) pair, from 1.
	Sequence uint64
)

// Coordinator is the member name of a job's coordinator; All addresses every trainer.
const (
	Coordinator Member = "coordinator"
	All         Member = "all"
)

// PulseJob stands where subjects have a job's name, in pulses of a ps. A job may go by it too: its members are trainers.
const PulseJob JobName = "ps"

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

// PartitionOf is the partition of a key in a table cut into the given number of partitions: the splitmix64 finaliser
// of the key, modulo partitions. It is part of the protocol: trainers and shards must agree.
func PartitionOf(key uint64, partitions int) Partition {
	key ^= key >> 30
	key *= 0xbf58476d1ce4e5b9
	key ^= key >> 27
	key *= 0x94d049bb133111eb
	key ^= key >> 31
	return Partition(key % uint64(partitions))
}
