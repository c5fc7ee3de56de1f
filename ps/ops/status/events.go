package status

import (
	"fmt"
	"maps"

	"gradbus/schema"
)

// Codes of events that are no problems.
const (
	eventJobJoined    = "job-registered"
	eventJobStarted   = "job-started"
	eventJobContinued = "job-continued"
	eventJobEnded     = "job-ended"
	eventJobStopped   = "job-stopped"
	eventJobRefused   = "job-refused"
	EventJoined       = "trainer-joined"
	eventLeft         = "trainer-left"
	eventRestarted    = "restarted"
	eventServerJoined = "server-joined"
	eventServerLeft   = "server-left"
	eventReconnected  = "reconnected"
	eventXID          = "gpu-xid"
	eventGPUState     = "gpu-state"
)

// logProblem writes that a problem has begun, or is over.
func (t *Tracker) logProblem(p *Problem, at int64, over bool) {
	e := Event{Level: p.Level, Code: p.Code, Text: p.Text, Job: p.Job, Member: p.Member, GPU: p.GPU}
	if over {
		_, c := rank(p.Code)
		e.Level, e.Text = OK, fmt.Sprintf("over after %s: %s%s", Ago(at-p.SinceMS), about(p), c.Title)
	}
	t.log.add(at, e)
}

// about says whom a problem is about, before what it is.
func about(p *Problem) string {
	switch {
	case p.Job != "" && p.Member != "":
		return p.Job + " " + p.Member + ": "
	case p.Member != "":
		return p.Member + ": "
	case p.Job != "":
		return p.Job + ": "
	case p.GPU != "":
		return p.GPU + ": "
	}
	return ""
}

func (t *Tracker) event(level Level, code string, e Event, text string, args ...any) {
	e.Level, e.Code, e.Text = level, code, fmt.Sprintf(text, args...)
	t.log.add(t.now, e)
}

// seen is the part of a run that events have reported.
type seen struct {
	phase   string
	any     bool // trainers were looked at
	trainer map[int]place
}

// place is the part of a trainer that events have reported.
type place struct {
	host string
	left bool
	life int64 // StartedMS of its reports
	anew uint64
}

// watchRuns writes what has become of jobs and trainers.
func (t *Tracker) watchRuns() {
	for _, r := range t.sortedRuns() {
		if r.seen.trainer == nil {
			r.seen.trainer = t.placesBefore(r)
		}
		t.watchPhase(r)
		if r.over() {
			continue
		}
		for i := range r.shown {
			t.watchTrainer(r, i)
		}
		r.seen.any = true
	}
}

// placesBefore returns the reported state of the trainers that a run continues with: they do not join it as others do.
func (t *Tracker) placesBefore(r *run) map[int]place {
	for _, id := range r.said.Follows {
		if before := t.runs[runKey{r.key.name, id}]; before != nil && before.seen.trainer != nil {
			places := maps.Clone(before.seen.trainer)
			for i, p := range places {
				p.life, p.anew = 0, 0 // their sessions are others
				places[i] = p
			}
			r.seen.any = before.seen.any
			return places
		}
	}
	return map[int]place{}
}

func (t *Tracker) watchPhase(r *run) {
	name, phase := string(r.key.name), r.said.Phase
	if r.over() {
		phase = schema.PhaseEnded
	}
	if phase == r.seen.phase {
		return
	}
	e := Event{Job: name}
	switch phase {
	case schema.PhaseGathering:
		if len(r.said.Follows) > 0 {
			break
		}
		t.event(Info, eventJobJoined, e, "%s is registered: %s, %s", name, plural(r.said.Trainers, "trainer"),
			plural(r.said.Shards, "shard"))
	case schema.PhaseRunning:
		if len(r.said.Follows) > 0 {
			t.event(Info, eventJobContinued, e, "%s continues from batch %d at ps %s: %s, %s", name, r.said.Batch, r.coordinator,
				plural(r.said.Trainers, "trainer"), plural(r.said.Shards, "shard"))
			break
		}
		if r.seen.phase == "" && t.sinceStart(r) > 5_000 {
			t.event(Info, eventJobStarted, e, "%s is under way at batch %d: %s, %s", name, r.said.Batch,
				plural(r.said.Trainers, "trainer"), plural(r.said.Shards, "shard"))
			break
		}
		t.event(Info, eventJobStarted, e, "%s has started: %s, %s", name, plural(r.said.Trainers, "trainer"),
			plural(r.said.Shards, "shard"))
	case schema.PhaseEnded:
		switch f := r.cause(); {
		case f == nil && r.next == 0:
			t.event(Info, eventJobEnded, e, "%s has ended after batch %d", name, r.said.Batch)
		case r.end(t.now) == schema.EndStopped: // else it goes on, or it is a problem
			t.event(Info, eventJobStopped, e, "%s was stopped by request at batch %d: %s", name, r.said.Batch,
				schema.Clip(f.Text))
		}
	}
	r.seen.phase = phase
}

// sinceStart is for how long a run has been under way, by its coordinator's word.
func (t *Tracker) sinceStart(r *run) int64 {
	s := t.servers[r.coordinator]
	if s == nil || r.said.StartedMS == 0 {
		return 0
	}
	return s.heard.report.NowMS - r.said.StartedMS
}

// watchTrainer writes that a trainer has joined, left, or was started again.
func (t *Tracker) watchTrainer(r *run, i int) {
	tr, m := r.trainers[i], r.member(i)
	was, name := r.seen.trainer[i], schema.TrainerMember(i)
	now := was
	e := Event{Job: string(r.key.name), Member: string(name)}
	if m != nil {
		now.host, now.left = m.Host, m.Left
	}
	if tr != nil {
		now.life, now.anew = tr.heard.report.StartedMS, tr.said().Traffic.Reconnects
	}
	switch {
	case was.host == "" && now.host != "" && !r.seen.any && t.sinceStart(r) > 5_000: // it had joined before we were there
	case was.host == "" && now.host != "":
		t.event(Info, EventJoined, e, "trainer %s has joined %s from %s", name, r.key.name, tr.where(m))
	case was.host != "" && now.host == "" && r.said.Phase == schema.PhaseGathering:
		t.event(Info, eventLeft, e, "the place of trainer %s in %s is free again", name, r.key.name)
	case !was.left && now.left:
		t.event(Info, eventLeft, e, "trainer %s on %s has left %s", name, tr.where(m), r.key.name)
	case was.life != 0 && now.life != was.life:
		t.event(Warning, eventRestarted, e, "trainer %s on %s was started again", name, tr.where(m))
	case now.life == was.life && now.anew > was.anew && was.life != 0:
		t.event(Info, eventReconnected, e, "trainer %s on %s has reconnected, %d times in all", name,
			tr.where(m), now.anew)
	}
	r.seen.trainer[i] = now
}

// watchServers writes that ps have come, or were started again.
func (t *Tracker) watchServers() {
	for _, id := range sortedKeys(t.servers) {
		s := t.servers[id]
		e := Event{Member: "p-" + id}
		switch life := s.heard.report.StartedMS; {
		case s.life == 0 && id != t.config.Server:
			delete(t.ended, id)
			t.event(Info, eventServerJoined, e, "ps %s on %s is there", id, s.heard.report.Host)
		case s.life != 0 && life != s.life:
			t.event(Warning, eventRestarted, e, "ps %s on %s was started again; it knows no job from before", id,
				s.heard.report.Host)
		}
		s.life = s.heard.report.StartedMS
		t.watchRefused(s)
	}
}

// refusedKey tells refused joins apart: the same again, minutes after it was forgotten, is another.
type refusedKey struct {
	job     schema.JobName
	reason  string
	field   string
	firstMS int64
}

// watchRefused writes that joins were refused: the first time, and of what is refused again and again the second, the
// fourth and so on.
func (t *Tracker) watchRefused(s *server) {
	told := map[refusedKey]uint64{}
	said := s.said().Refused
	for i := range said[:min(len(said), schema.TelemetryRefusedMax)] {
		r := &said[i]
		key := refusedKey{r.Job, r.Reason, r.Field, r.FirstMS}
		was := max(s.refused[key], told[key])
		if told[key] = was; r.Count < max(2*was, 1) {
			continue
		}
		told[key] = r.Count
		again := ""
		if r.Count > 1 {
			again = fmt.Sprintf(", %s times so far", Count(float64(r.Count)))
		}
		t.event(Warning, eventJobRefused, Event{Job: string(r.Job), Member: "p-" + s.id},
			"ps %s refused a trainer of %s from %s%s: %s", s.id, r.Job, schema.Clip(r.Host), again, schema.Clip(r.Text))
	}
	s.refused = told
}

// watchGPUs writes what has become of GPUs: XIDs, and states that are no problem.
func (t *Tracker) watchGPUs(s *Status) {
	for i := range s.GPUs {
		g := &s.GPUs[i]
		known := t.gpus[keyOf(g)]
		if known == nil {
			continue
		}
		e := Event{GPU: gpuName(g)}
		injected := ""
		if g.Injected {
			injected = " (injected)"
		}
		for _, code := range sortedKeys(g.XIDs) {
			if was := known.xids[code]; g.XIDs[code] > was && (known.shown != "" || g.State != schema.GPUHealthy) {
				t.event(Warning, eventXID, e, "XID %s on GPU %d of %s%s, %s", schema.Clip(code), g.Index, g.Host, injected,
					plural(int(min(g.XIDs[code], 1<<30)), "time"))
			}
		}
		if known.shown != "" && known.shown != g.State && g.State == schema.GPUHealthy {
			t.event(OK, eventGPUState, e, "GPU %d of %s is healthy again, it was %s", g.Index, g.Host, known.shown)
		}
		known.shown, known.xids = g.State, g.XIDs
	}
}

// keyOf is the key of a GPU that is shown.
func keyOf(g *GPU) gpuKey {
	key := gpuKey{host: g.Host, uuid: g.UUID}
	if key.uuid == "" {
		key.index = g.Index
	}
	return key
}

// eventLog keeps the latest eventsMax events.
type eventLog struct {
	serial uint64
	kept   []Event // in the order of serials; twice eventsMax at most
}

func (l *eventLog) add(now int64, e Event) {
	// above those of the process before, so that a client misses no event when a ps is restarted
	if l.serial == 0 {
		l.serial = uint64(max(now, 0))
	}
	l.serial++
	e.Serial, e.AtMS = l.serial, now
	if len(l.kept) >= 2*eventsMax {
		l.kept = append(make([]Event, 0, 2*eventsMax), l.kept[len(l.kept)-eventsMax+1:]...)
	}
	l.kept = append(l.kept, e)
}

// since returns the events with greater serials, newest last, at most eventsMax. The slice must not be modified.
func (l *eventLog) since(serial uint64) []Event {
	if serial >= l.serial {
		return []Event{}
	}
	n := int(min(l.serial-serial, uint64(len(l.kept)), eventsMax))
	return l.kept[len(l.kept)-n : len(l.kept) : len(l.kept)]
}

// Events returns the events after the one with that serial, newest last: at most eventsMax.
func (t *Tracker) Events(since uint64) []Event { return t.log.since(since) }

// pointsMax bounds the points of a run: when they are full every second one is dropped, and points are taken half as
// often from then on.
const pointsMax = 3600

// columns are the columns of a Series: their names, and their values in a point.
var columns = [...]struct {
	name string
	of   func(p *Point) *schema.Real
}{
	{"batch", func(p *Point) *schema.Real { return real(float64(p.Batch)) }},
	{"loss", func(p *Point) *schema.Real { return p.Loss }}, {"norm", func(p *Point) *schema.Real { return p.Norm }},
	{"samples", func(p *Point) *schema.Real { return p.Samples }}, {"keys", func(p *Point) *schema.Real { return p.Keys }},
	{"lookup", func(p *Point) *schema.Real { return p.Lookup }},
	{"compute", func(p *Point) *schema.Real { return p.Compute }}, {"send", func(p *Point) *schema.Real { return p.Send }},
	{"result", func(p *Point) *schema.Real { return p.Result }}, {"sent", func(p *Point) *schema.Real { return p.Sent }},
	{"received", func(p *Point) *schema.Real { return p.Received }},
	{"pending", func(p *Point) *schema.Real { return p.Pending }},
	{"refused", func(p *Point) *schema.Real { return p.Refused }},
	{"resent", func(p *Point) *schema.Real { return p.Resent }},
}

// series are a run's points.
type series struct {
	kept  []Point
	every int64 // milliseconds between two
	last  Point
	any   bool
}

func (s *series) add(p Point) {
	if s.any && p.AtMS <= s.last.AtMS {
		return
	}
	s.last, s.any, s.every = p, true, max(s.every, 1000)
	if n := len(s.kept); n > 0 && p.AtMS-s.kept[n-1].AtMS < s.every {
		return
	}
	if len(s.kept) == pointsMax {
		for i := range pointsMax / 2 {
			s.kept[i] = s.kept[2*i]
		}
		s.kept, s.every = s.kept[:pointsMax/2], 2*s.every
	}
	s.kept = append(s.kept, p)
}

// newest is the point of the latest second.
func (s *series) newest() (Point, bool) { return s.last, s.any }

// after returns the points after a time, as columns.
func (s *series) after(job, run string, since int64) Series {
	out := Series{Job: job, RunID: run, EveryMS: max(s.every, 1000), AtMS: []int64{}, Columns: map[string][]*schema.Real{}}
	for _, c := range columns {
		out.Columns[c.name] = []*schema.Real{}
	}
	for k := range s.kept {
		p := &s.kept[k]
		if p.AtMS <= since {
			continue
		}
		out.AtMS = append(out.AtMS, p.AtMS)
		for _, c := range columns {
			out.Columns[c.name] = append(out.Columns[c.name], c.of(p))
		}
	}
	return out
}
