package status

import (
	"cmp"
	"fmt"

	"gradbus/schema"
)

// server is one ps as it is known.
type server struct {
	id     string
	report *schema.Telemetry
	heard  heard
	ring   ring
	since  int64 // when its life began, by the clock here
	life   int64 // StartedMS that events have told of

	refused map[refusedKey]uint64 // joins that events have told of

	reasons [ringLen]map[string]uint64 // of the samples in ring
}

func (s *server) said() *schema.ServerReport { return s.report.Server }

// trainer is one trainer of a run as it tells of itself.
type trainer struct {
	index  int
	member schema.Member
	heard  heard
	ring   ring
	since  loss // of the Tick before
	past   stretches

	reconnects []int64 // when; the latest few
}

// loss is the sum of losses up to some moment, and the batches that they are of.
type loss struct {
	sum, samples float64
	bad          float64
	batches      float64
	known        bool
}

func (tr *trainer) said() *schema.TrainerReport {
	if tr == nil || tr.heard.report == nil {
		return nil
	}
	return tr.heard.report.Trainer
}

// take notes a report; counts says that the trainer waited for nobody who is missing since the one before.
func (tr *trainer) take(now int64, p *schema.Telemetry, counts bool) {
	was := tr.ring.n
	tr.ring.add(trainerSample(now, p), tr.heard.anew)
	if tr.ring.n == 1 && was > 0 { // another life
		tr.since = loss{}
	}
	tr.remember(counts && training(p.Trainer))
	tr.noteReconnects(now)
}

// handedIn says that a trainer has sent its part of a batch just now, and waits for the others'.
func (tr *trainer) handedIn() bool {
	said := tr.said()
	return said.Doing == schema.DoingResult && said.DoingMS < tr.heard.every
}

// where is the machine and process of a trainer, as sentences name it: by its own word, else by its coordinator's.
func (tr *trainer) where(m *schema.MemberReport) string {
	switch {
	case tr != nil && tr.heard.report != nil && tr.heard.report.Host != "":
		return fmt.Sprintf("%s (pid %d)", tr.heard.report.Host, tr.heard.report.PID)
	case m != nil && m.Host != "":
		return m.Host
	}
	return "a machine that is not known"
}

// run is one run of a job as it is known.
type run struct {
	key         runKey
	since       int64 // when it was first heard of
	coordinator string
	said        *schema.JobReport // by the coordinator; nil before
	saidAt      int64
	endedAt     int64 // by the clock here; 0 while it is under way
	shards      int
	trainers    map[int]*trainer
	kept        map[int]*shard
	series      series
	fate        *schema.Failed // why it ended, where its coordinator did not say
	next        schema.RunID   // the run that has gone on from it; 0: none
	seen        seen
	shown       int  // trainers, as of the latest Tick
	blocked     bool // a batch waits for somebody, as of the latest look
	done        uint64
	moved       int64 // when done rose last
	loss        *schema.Real
}

func (r *run) over() bool { return r.endedAt != 0 }

// cause returns why the run has ended; nil where all of its trainers have left in peace, or it has not ended.
func (r *run) cause() *schema.Failed {
	if r.said != nil && r.said.Failed != nil {
		return r.said.Failed
	}
	return r.fate
}

// end returns how the run has ended; empty while it has not. One that was handed over goes on for as long as its
// trainers are awaited.
func (r *run) end(now int64) schema.End {
	f := r.cause()
	switch {
	case !r.over():
		return ""
	case r.next != 0, f != nil && f.End == schema.EndStopped && r.awaited(now):
		return schema.EndContinued
	case f != nil:
		return cmp.Or(f.End, schema.EndFailed)
	case r.said != nil:
		return cmp.Or(r.said.End, schema.EndCompleted)
	}
	return schema.EndCompleted
}

// awaitedFor is for how long the trainers of an interrupted run are awaited before it counts as ended for good, in
// milliseconds: as long as a ps takes it that they come back.
const awaitedFor = 60_000

// awaited reports that the run was interrupted, and its trainers may come back to go on from it.
func (r *run) awaited(now int64) bool {
	f := r.cause()
	return r.over() && r.next == 0 && f != nil && f.Back && now-r.endedAt < awaitedFor
}

// lostWith reports that a run has failed since a trainer was gone, or silent for ms milliseconds, or that it had lost
// it before.
func (r *run) lostWith(m *schema.MemberReport, ms int64) bool {
	return m.Lost || r.said.Failed != nil && r.said.Failed.Member == m.Member && (m.Gone || m.SilentMS > ms)
}

// member is the place of the i-th trainer, nil where the coordinator has not told of it.
func (r *run) member(i int) *schema.MemberReport {
	if r.said == nil || i >= len(r.said.Members) {
		return nil
	}
	if k, ok := trainerIndex(r.said.Members[i].Member); !ok || k != i {
		return nil
	}
	return &r.said.Members[i]
}

// places is the number of trainers to show.
func (r *run) places() int { return min(r.shown, r.numbered()) }

// numbered is the number of trainers that there are.
func (r *run) numbered() int {
	if r.said != nil {
		return min(len(r.said.Members), TrainersMax)
	}
	n := 0
	for i := range r.trainers {
		n = max(n, i+1)
	}
	return min(n, unknownTrainersMax)
}

// missing is how many trainers have not joined.
func (r *run) missing() (n int) {
	if r.said == nil || r.over() {
		return 0
	}
	for i := range r.said.Members {
		if m := &r.said.Members[i]; m.Host == "" && !m.Left {
			n++
		}
	}
	return n + max(min(r.said.Trainers, TrainersMax)-len(r.said.Members), 0)
}

// shard is one shard of a run, as the ps that has it says.
type shard struct {
	index  int
	server string
	report *schema.ShardReport
	spoken

	waits      bool // since waitsSince, rounds of waitsBatch
	waitsBatch schema.Batch
	waitsSince int64
	ring       ring
}
