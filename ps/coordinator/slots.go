package coordinator

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// member is the slot of one trainer.
type member struct {
	joiner        schema.Member // the name it joined under; empty: the slot is free
	host          string
	liveness.Peer // heard of by joins and heartbeats
	batch         schema.Batch
	state         slotState
	cluster       bool       // it sends by way of the control cluster
	url           string     // of its data server, where trainers reduce among themselves
	why           string     // of done: the reason that it left with; empty: it has completed the job
	ended         schema.End // EndStopped where it has left because it was asked to end; else empty
	complete      bool       // by its last heartbeat it is between two runs, and nothing of its batches is missing
	dead          bool       // its process has ended
	process       string     // as of schema.Join
	key           uint64     // as of schema.Join, until it has been heard in this slot
	number        uint64     // as of schema.Join

	generation schema.Generation // in which the slot was taken last
	by         int               // the trainer that computes its lanes besides its own; -1: itself
	vacancy    *vacancy          // of vacant: the slot was taken from its trainer, and a new one is sought; else nil

	waiting     []schema.Waiting // what its own rounds wait for, if trainers reduce among themselves; at most one
	waitedBatch schema.Batch     // that rounds wait for it at
	waitedSince liveness.Silence // since when; it does not last where none waits
	stallTold   time.Duration    // how long the wait was at the last notice of it
}

// vacancy is what a vacant slot has.
type vacancy struct {
	liveness.Silence               // since when
	why              string        // why its trainer has lost it
	newcomer         schema.Member // for which the slot is kept, by the name it joins under; empty: none
	join             *schema.Join  // of the newcomer
	toldSince        liveness.Silence
	declined         []int // trainers that were asked to take it over and have not
	told             int   // the trainer that was asked to take it over; -1: none
}

// keptFor reports whether the slot is kept for a newcomer, perhaps under another name.
func (v *vacancy) keptFor(from schema.Member, j *schema.Join) bool {
	return v != nil && v.newcomer != "" && (v.newcomer == from || j.Key != 0 && v.join.Key == j.Key)
}

// here reports whether a trainer has the slot.
func (m *member) here() bool {
	switch m.state {
	case slotJoining, slotSyncing, slotActive, slotLagging, slotDraining:
		return true
	}
	return false
}

// lost reports whether the slot had a trainer in this run, or one was awaited, and has none now.
func (m *member) lost() bool { return m.state == slotLost || m.vacancy != nil }

// completed reports whether the slot's trainer has left without a reason.
func completed(m member) bool { return m.state == slotDone && m.why == "" }

// become changes the state of a slot, and replaces all that it had of the state before.
func (m *member) become(to slotState, data member) {
	m.state.transition(to)
	data.state = m.state
	*m = data
}

// leave notes that the trainer has left.
func (m *member) leave(why string) {
	m.state.transition(slotDone)
	m.why = why
}

// noteLag notes whether the trainer keeps others waiting.
func (m *member) noteLag() {
	switch lags := m.waitedSince.Lasts() || m.Cut(); {
	case lags && m.state == slotActive:
		m.state.transition(slotLagging)
	case !lags && m.state == slotLagging:
		m.state.transition(slotActive)
	}
}

// slots are the slots of a job's trainers, by their numbers.
type slots []member

// find returns the slot of the trainer that goes by a name: its member id, or the name that it joined under.
func (s slots) find(name schema.Member) (int, bool) {
	for i := range s {
		if m := &s[i]; m.joiner != "" && (m.joiner == name || schema.TrainerMember(i) == name) {
			return i, true
		}
	}
	return 0, false
}

// hasPromised reports whether a trainer has promised another ps to follow it, which may count on that until the run has
// gone on without the trainer: its slot has a later generation then.
func (s slots) hasPromised(j *schema.Join) bool {
	return j.Promised > 0 && slices.ContainsFunc(s, func(m member) bool {
		return m.number == j.Number && m.generation <= j.Promised
	})
}

// asking returns the slot of a trainer that has it and has not heard of it: it had given up waiting for the answer, and
// asks under another name. No batch was computed in that slot.
func (s slots) asking(j *schema.Join) (int, bool) {
	i := slices.IndexFunc(s, func(m member) bool { return m.here() && j.Key != 0 && m.key == j.Key })
	return i, i >= 0
}

// replaced tells a trainer of an earlier generation that another one has its slot; nil: none has.
func (s slots) replaced(i int, from schema.Member, g schema.Generation) []Decision {
	if g >= s[i].generation {
		return nil
	}
	return []Decision{{To: from, Control: schema.Control{Refused: &schema.Refused{Reason: schema.RefusedReplaced,
		Have: strconv.Itoa(int(s[i].generation)), Want: strconv.Itoa(int(g)),
		Text: fmt.Sprintf("the place of %s was taken from generation %d of the job and is in generation %d: join anew", from,
			g, s[i].generation)}}}}
}

// peers returns where all trainers are reached that reduce among themselves.
func (s slots) peers() (all []string) {
	for i := range s {
		all = append(all, s[i].url)
	}
	return all
}

// joiners returns the names under which members joined.
func (s slots) joiners() (all []schema.Member) {
	for i := range s {
		if name := s[i].joiner; name != "" {
			all = append(all, name)
		}
	}
	return all
}

// endBy returns how a job ends because of a member. If the job had lost another trainer for good, a supervisor may have
// ended the rest because of that.
func (s slots) endBy(who schema.Member) schema.End {
	lost := func(m member) bool { return m.state == slotLost && m.ended == "" }
	if i, ok := s.find(who); ok && s[i].ended != "" && !slices.ContainsFunc(s, lost) {
		return s[i].ended
	}
	return schema.EndFailed
}

// abandoned returns the first slot that a round needs and that was vacant for longer than the deadline, and why; -1:
// none was. If all others are done, no round needs the slot.
func (s slots) abandoned(now time.Time, deadline time.Duration) (i int, why string) {
	for i := range s {
		if v := s[i].vacancy; v != nil && v.For(now) > deadline && (s[i].waitedSince.Lasts() || !s.anyHere()) {
			return i, fmt.Sprintf("%s; and no trainer has taken its place within %s", v.why, liveness.Rounded(v.For(now)))
		}
	}
	return -1, ""
}

// missing returns the number of trainers that have not joined.
func (s slots) missing() (n int) {
	for i := range s {
		if s[i].joiner == "" {
			n++
		}
	}
	return n
}

// others reports whether a trainer besides one is there and computes its own slot.
func (s slots) others(than int) bool {
	for i := range s {
		if m := &s[i]; i != than && m.here() && m.by < 0 {
			return true
		}
	}
	return false
}

// generations returns in which generation each slot was taken; nil: all were in the first.
func (s slots) generations(first schema.Generation) (all []schema.Generation) {
	for i := range s {
		all = append(all, s[i].generation)
	}
	if !slices.ContainsFunc(all, func(g schema.Generation) bool { return g > first }) {
		return nil
	}
	return all
}

// anyHere reports whether any trainer is there.
func (s slots) anyHere() bool {
	return slices.ContainsFunc(s, func(m member) bool { return m.here() })
}

// here returns the number of trainers that are there besides one. A trainer that computes two slots is one.
func (s slots) here(besides schema.Member) (n int) {
	for i := range s {
		if m := &s[i]; m.here() && m.by < 0 && !m.dead && m.state != slotDraining && schema.TrainerMember(i) != besides {
			n++
		}
	}
	return n
}

// voters returns the trainers that have a slot.
func (s slots) voters() (all []schema.Voter) {
	for i := range s {
		if m := &s[i]; m.here() && m.by < 0 {
			all = append(all, schema.Voter{Member: schema.TrainerMember(i), Number: m.number})
		}
	}
	return all
}

// begun returns the number of batches that the furthest trainer had begun at its last heartbeat.
func (s slots) begun() (most schema.Batch) {
	for i := range s {
		most = max(most, s[i].batch)
	}
	return most
}

// leastBegun returns the number of batches that the trainer which is furthest behind had begun.
func (s slots) leastBegun() schema.Batch {
	least := s.begun()
	for i := range s {
		if m := &s[i]; m.here() {
			least = min(least, m.batch)
		}
	}
	return least
}

// draining returns the slots of the trainers that have said that they leave.
func (s slots) draining() (all []int) {
	for i := range s {
		if m := &s[i]; m.state == slotDraining {
			all = append(all, i)
		}
	}
	return all
}

// leaving returns the slots of the trainers that wait for a version to leave; none if no trainer stays.
func (s slots) leaving() []int {
	if !s.anyStays() {
		return nil
	}
	return s.draining()
}

// anyStays reports whether any trainer is there that is not about to leave.
func (s slots) anyStays() bool {
	return slices.ContainsFunc(s, func(m member) bool { return m.here() && m.state != slotDraining && !m.complete })
}

// substitute returns the trainer that computes the fewest slots besides its own; -1: none is left but those that have
// declined.
func (s slots) substitute(declined []int) int {
	best, most := -1, 0
	for i := range s {
		if m := &s[i]; !m.here() || m.by >= 0 || slices.Contains(declined, i) {
			continue
		}
		n := 0
		for k := range s {
			if v := s[k].vacancy; v != nil && v.told == i || s[k].here() && s[k].by == i {
				n++
			}
		}
		if best < 0 || n < most {
			best, most = i, n
		}
	}
	return best
}

// taken notes that the trainer that was asked to take over a slot has it.
func (s slots) taken(now time.Time, i int) []Decision {
	m, name := &s[i], schema.TrainerMember(i)
	v := m.vacancy
	if v == nil || v.told < 0 {
		return nil
	}
	by := &s[v.told]
	m.become(slotJoining, member{joiner: name, host: by.host, process: by.process, generation: m.generation, by: v.told,
		batch: m.batch, cluster: m.cluster})
	m.Begin(now)
	return []Decision{{Who: name, Note: fmt.Sprintf("lanes of %s are computed by %s, after %s", name,
		schema.TrainerMember(v.told), liveness.Rounded(v.For(now)))}}
}

// slotFor returns the slot that a newcomer to a running job may have; -1: none. It may be one that others compute besides
// their own.
func (s slots) slotFor(from schema.Member, j *schema.Join) int {
	at, kept := -1, func(i int) bool { return s[i].vacancy.keptFor(from, j) }
	for i := range s {
		m := &s[i]
		free := m.vacancy != nil && (m.vacancy.newcomer == "" || kept(i)) || m.here() && m.by >= 0
		if !free || j.Wanted != "" && j.Wanted != schema.TrainerMember(i) {
			continue
		}
		if at < 0 || kept(i) || !kept(at) && m.vacancy != nil && s[at].vacancy == nil {
			at = i
		}
	}
	return at
}

// choose chooses the trainer that is asked to take over a vacant slot. It reports whether there is one.
func (s slots) choose(now time.Time, i int) bool {
	v := s[i].vacancy
	if v.told = s.substitute(v.declined); v.told < 0 { // all were asked: they may have been busy
		v.declined = nil
		v.told = s.substitute(nil)
	}
	v.toldSince.Begin(now)
	return v.told >= 0
}

// excuse moves every deadline by a time in which no trainer could be heard.
func (s slots) excuse(pause time.Duration, now time.Time) {
	for i := range s {
		s[i].Excuse(pause, now)
		s[i].waitedSince.Excuse(pause, now)
		if v := s[i].vacancy; v != nil {
			v.Excuse(pause, now)
			v.toldSince.Excuse(pause, now)
		}
	}
}
