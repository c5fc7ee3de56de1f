package overview

import (
	"math"
	"strconv"
	"strings"
	"time"

	"gradbus/schema"
)

// Bounds of what a Tracker keeps, whatever it is told. What is beyond them is not shown, and a problem says so.
const (
	JobsMax             = 64   // runs: those under way, and those that ended lately; half of them of one ps, unless it is the one that answers
	strangersMax        = 8    // runs that trainers speak of, and no ps
	strangerTrainersMax = 256  // trainers of such a run that are shown
	ServersMax          = 256  // ps
	TrainersMax         = 4096 // of one run, and of all
	ShardsMax           = 4096 // of one run
	GPUsMax             = 1024
	gpusPerPulse,
	disksPerPulse = 64, 32
)

// How long things are kept, in milliseconds.
const (
	endedKept  = 10 * 60_000 // a run that has ended
	goneKept   = 10 * 60_000 // a ps, or a GPU, of which nothing is heard
	claimAfter = 5_000       // trainers that speak of a run that no ps coordinates are shown
	claimHeld  = 10_000      // a run stays with the ps that coordinates it for so long after its last word
)

// Config says who watches.
type Config struct {
	Server  string // id of the ps that answers
	URL     string // where trainers find it, until it says so itself
	Version string // of gradbus
}

// Tracker makes the view of all jobs out of pulses. It is not safe for concurrent use, and reads no clock: whoever calls it
// says what time it is. Times may stand still, and must not fall: who is silent would not be found until they have caught up.
type Tracker struct {
	config  Config
	serial  uint64
	now     int64 // milliseconds; of the latest call
	ticked  int64 // of the latest Tick
	told    uint64
	changed bool
	servers map[string]*server
	runs    map[runKey]*run
	gpus    map[gpuKey]*gpu
	claims  map[claimKey]*claim // by ps that claim what is another's
	book    book
	log     eventLog
	refused limits
}

// limits counts what was beyond a bound, since the last Tick and before.
type limits struct {
	what string
	at   int64
}

type runKey struct {
	name schema.JobName
	id   schema.RunID
}

type claimKey struct {
	server string
	name   schema.JobName
}

type claim struct{ at int64 }

// New is a Tracker that knows nothing.
func New(c Config) *Tracker {
	return &Tracker{config: c, servers: map[string]*server{}, runs: map[runKey]*run{}, gpus: map[gpuKey]*gpu{},
		claims: map[claimKey]*claim{}, book: newBook()}
}

// Take is given a pulse as it was heard: of which job, from whom (both out of the subject, never out of the body) and
// when. The Tracker keeps p, which must not change afterwards. What does not fit the subject is ignored.
func (t *Tracker) Take(now time.Time, job schema.JobName, from schema.Member, p *schema.Pulse) {
	t.advance(now)
	switch id, isServer := strings.CutPrefix(string(from), "p-"); {
	case p == nil || (p.Trainer == nil) == (p.Server == nil):
	case isServer && p.Server != nil && id != "":
		t.changed = t.takeServer(id, p) || t.changed
	case !isServer && p.Trainer != nil:
		if i, ok := trainerIndex(from); ok {
			t.changed = t.takeTrainer(job, i, p) || t.changed
		}
	}
}

// Changed reports whether a pulse since the last Tick has said something that is worth a Tick at once: a GPU is worse than it was, a
// trainer's connection is gone, a job has begun or ended.
func (t *Tracker) Changed() bool { return t.changed }

// advance notes the time of a call. A clock that was set back stands still until it has caught up.
func (t *Tracker) advance(now time.Time) {
	t.now = max(t.now, now.UnixMilli())
}

// trainerIndex is the i of ti.
func trainerIndex(m schema.Member) (int, bool) {
	digits, ok := strings.CutPrefix(string(m), "t")
	if !ok || digits == "" || digits[0] == '0' && digits != "0" {
		return 0, false
	}
	i, err := strconv.Atoi(digits)
	return i, err == nil && i >= 0 && i < TrainersMax
}

func (t *Tracker) takeServer(id string, p *schema.Pulse) (urgent bool) {
	s := t.servers[id]
	if s == nil {
		if len(t.servers) >= ServersMax {
			t.beyond("ps")
			return false
		}
		s = &server{id: id}
		t.servers[id] = s
	}
	was := s.pulse
	if !s.heard.take(t.now, p) {
		return false
	}
	s.pulse = p
	if s.heard.anew {
		s.since = t.now
	}
	s.ring.add(serverSample(t.now, p), s.heard.anew)
	s.reasons[(s.ring.n-1)%ringLen] = p.Server.Reasons
	defer t.takeShards(s, p)
	urgent = was != nil && p.Server.ControlLost && !was.Server.ControlLost
	for i := range p.Server.Jobs {
		urgent = t.takeJob(s, &p.Server.Jobs[i]) || urgent
	}
	return t.takeGPUs(p, "", "p-"+id, p.Server.GPUs) || urgent
}

// takeJob notes what a coordinator says of a run, unless another ps coordinates it.
func (t *Tracker) takeJob(s *server, j *schema.JobPulse) (urgent bool) {
	if j.Name == "" {
		return false
	}
	r := t.runs[runKey{j.Name, j.RunID}]
	if other := t.holder(j); other != nil && other.coordinator != s.id {
		if j.Phase != schema.PhaseEnded && len(t.claims) < JobsMax {
			t.claims[claimKey{s.id, j.Name}] = &claim{t.now}
		}
		return false
	}
	if r == nil {
		if j.Phase == schema.PhaseEnded && s.heard.pulse.NowMS-j.EndedMS > endedKept {
			return false // it is forgotten
		}
		if s.id != t.config.Server && t.runsOf(s.id) >= JobsMax/2 {
			t.beyond("jobs")
			return false
		}
		if r = t.addRun(j.Name, j.RunID, s.id == t.config.Server); r == nil {
			return false
		}
	}
	was := r.said
	r.coordinator, r.said, r.saidAt = s.id, j, t.now
	r.shards = min(max(j.Shards, 0), ShardsMax)
	for i := range r.trainers {
		if i >= len(j.Members) {
			delete(r.trainers, i) // it was never one
		}
	}
	if j.Phase == schema.PhaseEnded && r.endedAt == 0 {
		r.endedAt = t.now
	}
	if was == nil {
		return false
	}
	for i := range j.Members {
		if i < len(was.Members) && (j.Members[i].Gone && !was.Members[i].Gone || j.Members[i].Lost && !was.Members[i].Lost) {
			urgent = true
		}
	}
	return urgent || j.Phase != was.Phase
}

// holder is the run under way of that name which a ps coordinates that is still heard of; nil where anybody may claim it.
func (t *Tracker) holder(j *schema.JobPulse) *run {
	for k, r := range t.runs {
		if k.name != j.Name || r.said == nil || r.over() && k.id != j.RunID {
			continue
		}
		s := t.servers[r.coordinator]
		if s != nil && t.now-s.heard.at <= claimHeld && t.now-r.saidAt <= claimHeld {
			return r
		}
	}
	return nil
}

// addRun makes room for a run; nil where there is none. What ended first makes way, and for a run of the ps that answers any other's.
func (t *Tracker) addRun(name schema.JobName, id schema.RunID, own bool) *run {
	if len(t.runs) >= JobsMax {
		var least *run
		for _, r := range t.runs {
			if !r.over() && (!own || r.coordinator == t.config.Server) {
				continue
			}
			if least == nil || r.over() && (!least.over() || r.endedAt < least.endedAt) {
				least = r
			}
		}
		if least == nil || !least.over() {
			t.beyond("jobs")
		}
		if least == nil {
			return nil
		}
		delete(t.runs, least.key)
	}
	r := &run{key: runKey{name, id}, since: t.now, trainers: map[int]*trainer{}}
	t.runs[r.key] = r
	return r
}

func (t *Tracker) takeTrainer(job schema.JobName, i int, p *schema.Pulse) (urgent bool) {
	if job == "" {
		return false
	}
	key := runKey{job, p.Trainer.RunID}
	r := t.runs[key]
	if r == nil {
		if !t.mayAppear(key) {
			return false
		}
		if r = t.addRun(key.name, key.id, false); r == nil {
			return false
		}
	}
	if r.said != nil && i >= len(r.said.Members) || i >= TrainersMax {
		return false
	}
	tr := r.trainers[i]
	if tr == nil {
		if t.trainerCount() >= TrainersMax {
			t.beyond("trainers")
			return false
		}
		tr = &trainer{index: i, member: schema.TrainerMember(i)}
		r.trainers[i] = tr
	}
	if !tr.heard.take(t.now, p) {
		return false
	}
	tr.take(t.now, p, !r.blocked)
	return t.takeGPUs(p, string(job)+"/"+string(tr.member), "", p.Trainer.GPUs)
}

// mayAppear reports whether a trainer may bring a run that no ps has told of: one of each name, and only a few, while no other of that
// name is under way.
func (t *Tracker) mayAppear(key runKey) bool {
	n := 0
	for k, r := range t.runs {
		if r.said != nil && !r.over() && k.name == key.name {
			return false
		}
		if r.said != nil {
			continue
		}
		if k.name == key.name {
			if r.anybody(t.now, claimAfter) {
				return false
			}
			delete(t.runs, k)
			continue
		}
		n++
	}
	return n < strangersMax
}

// runsOf is the number of runs that a ps coordinates.
func (t *Tracker) runsOf(server string) (n int) {
	for _, r := range t.runs {
		if r.coordinator == server {
			n++
		}
	}
	return n
}

func (t *Tracker) trainerCount() (n int) {
	for _, r := range t.runs {
		n += len(r.trainers)
	}
	return n
}

func (t *Tracker) beyond(what string) { t.refused = limits{what, t.now} }

// finite is x, or 0 where that is NaN or infinite.
func finite(x schema.Real) float64 {
	if f := float64(x); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return f
	}
	return 0
}
