package schema

import (
	"errors"
	"fmt"
	"slices"
)

// ShardsMax bounds the shards of a job, over all ps.
const ShardsMax = 4096

// windowBytesMax bounds the bytes that one trainer may have in flight to one shard: no window exceeds both the usual 4
// MiB and two messages.
const windowBytesMax = 2 * FrameBytesMax

// Buckets of the control server, in which ps store what other members need. Keys are ids of ps and names of jobs.
const (
	ServersBucket = "gradbus-servers"
	JobsBucket    = "gradbus-jobs"
)

// check checks an assignment by itself; the receiver validates its manifest.
func (a *Assign) check() error {
	switch {
	case a.Job == nil:
		return errors.New("no job: want the manifest")
	case a.Shards < 1 || a.Serial < 1:
		return fmt.Errorf("%d shards, serial %d: want at least 1 each", a.Shards, a.Serial)
	case a.WindowBytes > windowBytesMax:
		return fmt.Errorf("windows of %d bytes: want at most %d", a.WindowBytes, windowBytesMax)
	}
	if err := checkKept(a.Own, a.Shards); err != nil {
		return err
	}
	if n := len(a.Since); n > 0 && n != a.Job.Trainers {
		return fmt.Errorf("generations of %d places: want those of all %d, or none", n, a.Job.Trainers)
	}
	return checkLR(a.LR)
}

func (k *Keep) check() error {
	if k.Serial < 1 || k.Series < 1 || k.Shards < 1 {
		return fmt.Errorf("serial %d, series %d, %d shards: want at least 1 each", k.Serial, k.Series, k.Shards)
	}
	var all []int
	for _, from := range k.From {
		all = append(all, from.Shards...)
	}
	slices.Sort(all)
	if len(all) > 0 || len(k.To) == 0 {
		if err := checkKept(all, k.Shards); err != nil {
			return err
		}
	}
	return checkLR(k.LR)
}

func (k *Kept) check() error {
	switch {
	case k.Series == 0 && (k.Version > 0 || k.Next > 0 || len(k.Own) > 0):
		return fmt.Errorf("versions %d and %d of shards %v in series 0: want none", k.Version, k.Next, k.Own)
	case k.Series == 0:
		return nil
	case k.Shards < 1:
		return fmt.Errorf("%d shards: want at least 1", k.Shards)
	}
	if len(k.Own) > 0 {
		if err := checkKept(k.Own, k.Shards); err != nil {
			return err
		}
	} else if k.Version > 0 || k.Next > 0 {
		return fmt.Errorf("versions %d and %d of no shards: want none", k.Version, k.Next)
	}
	return checkLR(k.LR)
}

// checkKept checks the replicated shards.
func checkKept(own []int, shards int) error {
	if len(own) == 0 || !slices.IsSorted(own) || len(slices.Compact(slices.Clone(own))) != len(own) || own[0] < 0 ||
		own[len(own)-1] >= shards {
		return fmt.Errorf("own shards %v of %d: want some, ascending, each once", own, shards)
	}
	return nil
}

// ServerOfShard returns, by shard, the index of the server that has it; nil, without an error, if servers is empty:
// then one server has all shards. Every shard must appear once.
//
//	at, err := ServerOfShard([]DataServer{{ID: "a", Shards: []int{0, 2}}, {ID: "b", Shards: []int{1}}}, 3) // 0, 1, 0
func ServerOfShard(servers []DataServer, shards int) ([]int, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	at := make([]int, shards)
	for i := range at {
		at[i] = -1
	}
	for i, s := range servers {
		for _, shard := range s.Shards {
			if shard < 0 || shard >= shards || at[shard] >= 0 {
				return nil, fmt.Errorf("servers %+v: shard %d of %d is not there or there twice", servers, shard, shards)
			}
			at[shard] = i
		}
	}
	if i := slices.Index(at, -1); i >= 0 {
		return nil, fmt.Errorf("servers %+v: shard %d of %d has no server", servers, i, shards)
	}
	return at, nil
}

// frameBytesOver bounds the bytes of a frame besides its values, keys and sections.
const frameBytesOver = 1 << 10

// WithChunkBytes returns the manifest with chunks of n bytes: j itself if they already have that size.
func (j *Job) WithChunkBytes(n int) *Job {
	if j.ChunkBytes == n {
		return j
	}
	other := *j
	other.ChunkBytes = n
	return &other
}

// WithTrainers returns the manifest with n trainers: j itself if it already has that number.
func (j *Job) WithTrainers(n int) *Job {
	if j.Trainers == n {
		return j
	}
	other := *j
	other.Trainers = n
	return &other
}

// OnShards returns the manifest with everything on shards, including what trainers reduce and tables that trainers own.
// It is j itself if there is nothing of that.
func (j *Job) OnShards() *Job {
	if !j.Plan().Reduces(ByTrainers) && !slices.ContainsFunc(j.Tables, func(t TableSpec) bool { return t.Replicated }) {
		return j
	}
	other := *j
	other.Reduce, other.Tables = ReduceShards, slices.Clone(j.Tables)
	for i := range other.Tables {
		other.Tables[i].Replicated, other.Tables[i].Reduce = false, ""
	}
	return &other
}

// SmallerChunks returns the manifest with chunks of half the size, or nil if that is too small.
func (j *Job) SmallerChunks() *Job {
	n := j.ChunkBytes / 2 / valuesAlign * valuesAlign
	if n < ChunkBytesMin {
		return nil
	}
	return j.WithChunkBytes(n)
}

// MessageBytesMax returns the size of the largest frame of a job with gradients, rows or results: a chunk's values, or
// one row that is larger, with the keys of as many rows as that contains, and a section for every table.
func (j *Job) MessageBytesMax() int {
	need := j.ChunkBytes
	for _, t := range j.Tables {
		values := max(j.ChunkBytes/valueBytes, t.SumDim())
		need = max(need, valueBytes*values+8*(values/t.Dim))
	}
	return need + 16*len(j.Tables) + frameBytesOver
}
