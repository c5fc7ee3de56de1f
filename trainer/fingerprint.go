package trainer

import (
	"time"

	"gradbus/schema"
)

const (
	// digestEvery is the time between two digests of the replica, at least, and digestShare the part of all time that they
	// may take.
	digestEvery = time.Second
	digestShare = 0.001
	digestStep  = 1 << 40 // batches between two, at most
)

// fingerprints are digests of the replica of the dense parameters that a trainer of a job with apply mean has: all
// trainers' must be equal at one version. They are taken at versions that are multiples of a power of two, which
// follows from what one costs and how long a batch takes; so whatever the others' powers are, some of their versions
// are the same. It belongs to the goroutine that calls Run, but for the digests, which mu of statistics guards.
type fingerprints struct {
	step schema.Version // a power of two
	last time.Time

	digests []schema.ReplicaDigest // the latest, ascending
}

// due reports whether a version is to be told of.
func (f *fingerprints) due(v schema.Version) bool {
	if f.step == 0 {
		f.step = 1
	}
	return v%f.step == 0
}

// took sets the step by what a digest that was begun at some time has cost.
func (f *fingerprints) took(began time.Time, cost time.Duration) {
	want := max(digestEvery, time.Duration(float64(cost)/digestShare))
	since := began.Sub(f.last)
	switch {
	case f.last.IsZero():
	case since < want && f.step < digestStep:
		f.step *= 2
	case since > 4*want && f.step > 1:
		f.step /= 2
	}
	f.last = began
}

// keep appends a digest, and forgets the oldest.
func (f *fingerprints) keep(d schema.ReplicaDigest) {
	if len(f.digests) == schema.ReplicasMax {
		copy(f.digests, f.digests[1:])
		f.digests = f.digests[:schema.ReplicasMax-1]
	}
	f.digests = append(f.digests, d)
}

// fingerprint takes the digest of a version that has just become the current one, where one is due.
func (r *run) fingerprint(v schema.Version) {
	f := r.fingerprints
	if r.heartbeats.reports == nil || r.place.Plan.Owner != schema.ByTrainers || len(r.job.Parameters) == 0 || !f.due(v) {
		return
	}
	began := time.Now()
	sum := uint32(0)
	for _, p := range r.job.Parameters {
		sum = schema.AddReplica(sum, r.compute.params.value(r.compute.params.index[p.Name]))
	}
	f.took(began, time.Since(began))
	r.stats.mu.Lock()
	defer r.stats.mu.Unlock()
	f.keep(schema.ReplicaDigest{Version: v, Digest: sum})
}
