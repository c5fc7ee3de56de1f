package shard

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gradbus/schema"
	"gradbus/shard/shardtest"
	"gradbus/shard/state"
)

// copied is what has been copied of a shard.
type copied struct {
	every   schema.Version
	version schema.Version // of the copy that is under way
	since   schema.Version // what was touched since this one; 0: all
	rows    int64          // that have come
	now     state.Snapshot
	whole   map[schema.Version]state.Snapshot
}

// over puts pieces over those of an earlier version: of each element and row the newer one stays.
func over(now, before state.Snapshot) (all state.Snapshot) {
	type place struct {
		name string
		at   uint64
	}
	rows, tensors, version, steps := map[place]bool{}, map[place]bool{}, schema.Version(0), map[string]uint64{}
	for _, t := range now.Tensors {
		version, steps[t.Name], tensors[place{t.Name, uint64(t.From)}] = t.Version, t.Steps, true
	}
	for _, r := range now.Rows {
		version, steps[r.Table] = r.Version, r.Steps
		for _, key := range r.Keys {
			rows[place{r.Table, key}] = true
		}
	}
	all = now
	for _, t := range before.Tensors {
		if t.Version = version; !tensors[place{t.Name, uint64(t.From)}] {
			if n, ok := steps[t.Name]; ok {
				t.Steps = n
			}
			all.Tensors = append(all.Tensors, t)
		}
	}
	for _, r := range before.Rows {
		r.Version, r.Steps = version, steps[r.Table]
		for i, key := range r.Keys {
			if rows[place{r.Table, key}] {
				continue
			}
			one := r
			one.Keys, one.Values, one.Slots = r.Keys[i:i+1], r.Values[i*r.Columns:(i+1)*r.Columns], nil
			for _, s := range r.Slots {
				each := len(s.Values) / len(r.Keys)
				one.Slots = append(one.Slots, state.Slot{Name: s.Name, Values: s.Values[i*each : (i+1)*each]})
			}
			if len(r.Last) > 0 {
				one.Last = r.Last[i : i+1]
			}
			all.Rows = append(all.Rows, one)
		}
	}
	return all
}

// copySome copies some pieces of shards, or ends copies of which nothing is left.
func (s *simulation) copySome(pieces int) {
	s.t.Helper()
	for i, c := range s.copies {
		for range pieces {
			v, ok := s.shards[i].Copying()
			if !ok {
				break
			}
			c.version = v
			p, more, err := s.shards[i].NextPiece(1 + s.r.IntN(500))
			must(s.t, err)
			for _, t := range p.Tensors {
				must(s.t, c.now.AddTensor(t))
			}
			if p.Rows != nil {
				must(s.t, c.now.AddRows(*p.Rows))
				c.rows += int64(len(p.Rows.Keys))
			}
			if !more {
				s.checkExtent(i, c)
				s.shards[i].EndCopy()
				if c.since > 0 {
					c.now = over(c.now, c.whole[c.since])
				}
				c.whole[v], c.now, c.rows, c.since = c.now, state.Snapshot{}, 0, 0
				if s.r.IntN(4) > 0 {
					c.since = v
				}
				s.shards[i].CopyAt(state.CopyRequest{At: v + c.every, Since: v, All: c.since == 0, BytesMax: 1 << 30})
			}
		}
	}
}

// checkExtent compares what a copy since an earlier version has had with what it said at its start.
func (s *simulation) checkExtent(i int, c *copied) {
	s.t.Helper()
	_, e := s.shards[i].Touched()
	said := int64(0)
	for _, n := range e.Rows {
		said += n
	}
	if c.since > 0 && (said != c.rows || len(e.Tensors) != len(c.now.Tensors)+len(s.ofTrainers(i, c.version))) {
		s.t.Errorf("shard %d said %d rows and %d stretches, and %d and %d came", i, said, len(e.Tensors), c.rows,
			len(c.now.Tensors))
	}
}

// copying has all shards copy versions that are multiples of every, which copySome asks for.
func (s *simulation) copying(every schema.Version) {
	for _, shard := range s.shards {
		shard.CopyAt(state.CopyRequest{At: every, All: true, BytesMax: 1 << 30})
		s.copies = append(s.copies, &copied{every: every, whole: map[schema.Version]state.Snapshot{}})
	}
}

// resumed is a version that every shard has copied whole, for any number of shards; nil where there is none.
func (s *simulation) resumed() *Resumed {
	newest := schema.Version(0)
	for v := range s.copies[0].whole {
		everywhere := true
		for _, c := range s.copies {
			_, there := c.whole[v]
			everywhere = everywhere && there
		}
		if everywhere {
			newest = max(newest, v)
		}
	}
	if newest == 0 {
		return nil
	}
	return &Resumed{Version: newest, Read: func(tensor func(state.Tensor) error, rows func(state.Rows) error) error {
		for i, c := range s.copies {
			all := c.whole[newest]
			for _, t := range append(s.ofTrainers(i, newest), all.Tensors...) {
				if err := tensor(t); err != nil {
					return err
				}
			}
			for _, r := range all.Rows {
				if err := rows(r); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

// ofTrainers is what trainers are said to have of a shard's chunks: values from 0 on, with slots of ones.
func (s *simulation) ofTrainers(i int, v schema.Version) (all []state.Tensor) {
	for _, c := range s.shards[i].trainersChunks() {
		for _, p := range c.Pieces {
			t := state.Tensor{Name: p.Name, From: p.From, Version: v, Steps: uint64(v)}
			for e := range p.Elements {
				t.Values = append(t.Values, float32(p.From+e))
			}
			for _, slot := range state.SlotsOf(*c.Optimizer) {
				t.Slots = append(t.Slots, state.Slot{Name: slot.Name, Values: slices.Repeat([]float32{1}, p.Elements)})
			}
			all = append(all, t)
		}
	}
	return all
}

// A version that is copied while later batches are under way, and resumed on any number of shards, goes on as the model
// does: with equal bits of parameters, rows and slots.
func TestCopiesAreResumed(t *testing.T) {
	const batches = 9
	resumeCopies(t, newSimulation, func(seed uint64) schema.Version { return 1 + schema.Version(seed%3) },
		func(s *simulation, first schema.Batch) { s.runFrom(first, batches) })
}

// Likewise where batches run ahead: what is copied is one version everywhere. The copy holds up no round for good.
func TestCopiesOfBoundedAreResumed(t *testing.T) {
	const batches = 9
	ahead := func(seed uint64) int { return 1 + int(seed%3) }
	held := 0
	resumeCopies(t, func(t *testing.T, seed uint64) *simulation {
		return newSimulationOf(t, seed, schema.ConsistencyBounded, ahead(seed))
	}, func(seed uint64) schema.Version {
		return schema.Version(ahead(seed)) + 1 + schema.Version(seed%2)
	}, func(s *simulation, first schema.Batch) {
		s.runAhead(first, batches)
		held += s.heldOpen
	})
	if held == 0 {
		t.Error("no round stayed open for a copy")
	}
}

// resumeCopies has simulations copy every so many versions while they run from a batch to the end, and others run from
// what was copied.
func resumeCopies(t *testing.T, simulate func(t *testing.T, seed uint64) *simulation,
	every func(seed uint64) schema.Version, run func(s *simulation, first schema.Batch)) {
	resumed := 0
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			first := simulate(t, seed)
			if first.p.Job.Apply != schema.ApplyUpdate {
				t.Skip("its trainers have the parameters")
			}
			first.copying(every(seed))
			run(first, 0)
			from := first.resumed()
			if from == nil {
				t.Skip("nothing was copied in time")
			}
			resumed++
			second := simulate(t, seed)
			second.shards, second.place = nil, schema.NewPlacement(second.p.Job, 1+int(seed/3%3))
			second.makeShards(from)
			run(second, schema.Batch(from.Version))
		})
	}
	if resumed < 30 {
		t.Errorf("%d of 60 were resumed", resumed)
	}
}

// A version is copied once, and none that was not asked for in time or while another is copied.
func TestCopiesThatAreWanted(t *testing.T) {
	s := newSimulation(t, 1)
	for _, shard := range s.shards {
		shard.CopyAt(state.CopyRequest{At: 2, All: true, BytesMax: 1 << 30})
	}
	s.run(5)
	for i, shard := range s.shards {
		if v, ok := shard.Copying(); !ok || v != 2 {
			t.Errorf("shard %d copies version %d (%v), want 2", i, v, ok)
		}
		shard.EndCopy()
		if _, ok := shard.Copying(); ok {
			t.Errorf("shard %d goes on with a copy that has ended", i)
		}
	}
}

// A copy that would hold more old values than it may is ended, and names itself: of rows, and of parameters alone.
func TestCopyFallsBehind(t *testing.T) {
	rows, dense := false, false
	for seed := uint64(0); !rows || !dense; seed++ {
		s := newSimulation(t, seed)
		tables := len(s.p.Job.Tables) > 0
		if s.p.Job.Apply != schema.ApplyUpdate || (tables && rows) || (!tables && dense) {
			continue
		}
		rows, dense = rows || tables, dense || !tables
		fallsBehind(t, s)
	}
}

func fallsBehind(t *testing.T, s *simulation) {
	t.Helper()
	for _, shard := range s.shards {
		shard.CopyAt(state.CopyRequest{At: 1, All: true, BytesMax: 100})
	}
	s.run(6)
	behind := 0
	for _, shard := range s.shards {
		_, _, err := shard.NextPiece(10)
		if errors.Is(err, state.ErrCopyBehind) && strings.Contains(err.Error(), "version 1 of s") {
			behind++
		}
		shard.EndCopy()
	}
	if behind == 0 {
		t.Error("no copy fell behind")
	}
}

// What does not fit, or is of several versions, is no version to resume.
func TestResumeRefuses(t *testing.T) {
	s := newSimulation(t, 2)
	s.copying(1)
	s.run(6)
	from := s.resumed()
	again := func(read func(func(state.Tensor) error, func(state.Rows) error) error, v schema.Version) error {
		shard, err := New(t.Context(), Config{Job: s.p.Job, Placement: s.place, RunID: shardtest.RunID,
			Generation: shardtest.Generation, Backend: s.p.Backend, Contributors: s.contributors,
			StagedBytesMax: 64 << 20, ParkedBytesMax: 1 << 20, Resumed: &Resumed{Version: v, Read: read}})
		if err == nil {
			shard.Close()
		}
		return err
	}
	must(t, again(from.Read, from.Version))
	broken := errors.New("unreadable")
	unreadable := func(func(state.Tensor) error, func(state.Rows) error) error { return broken }
	if err := again(unreadable, 3); !errors.Is(err, broken) {
		t.Errorf("what cannot be read: %v", err)
	}
	nothing := func(func(state.Tensor) error, func(state.Rows) error) error { return nil }
	if err := again(nothing, from.Version); !errors.Is(err, state.ErrSnapshot) {
		t.Errorf("nothing: %v", err)
	}
	withoutRows := func(tensor func(state.Tensor) error, _ func(state.Rows) error) error {
		return from.Read(tensor, func(state.Rows) error { return nil })
	}
	if err := again(withoutRows, from.Version); !errors.Is(err, state.ErrSnapshot) {
		t.Errorf("parameters alone: %v", err)
	}
	if err := again(from.Read, from.Version+1); !errors.Is(err, state.ErrSnapshot) {
		t.Errorf("another version than is said: %v", err)
	}
}
