package shard

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"gradbus/schema"
	"gradbus/shard/state"
)

// mirrored is a replica that is told of one version after the other while shards are stepped.
type mirrored struct {
	replica *Replica
	pieces  *Pieces
	version schema.Version // that is being told of; 0: none
	since   schema.Version
	series  []*Series // by shard; nil of one that has ended
	frames  []mirroredFrame
	told    int // versions that were whole
	changes int // of these, as changes
	given   int // up
}

type mirroredFrame struct {
	shard int
	frame *schema.Frame
}

// mirroring has somebody hold replicas with so many shards.
func (s *simulation) mirroring(shards int) {
	s.t.Helper()
	place := schema.NewPlacement(s.p.Job, shards)
	var configs []Config
	for i := range shards {
		configs = append(configs, Config{Job: s.p.Job, Placement: place, Index: i, Backend: s.p.Backend, Undo: true,
			Touches: true})
	}
	replica, err := NewReplica(context.Background(), len(s.shards), configs, 1<<30)
	must(s.t, err)
	s.t.Cleanup(replica.Close)
	s.replica = &mirrored{replica: replica, pieces: NewPieces(s.p.Job)}
}

// mirrorSome tells some pieces, asks for the next version where none is being told of, and gives one up now and then.
func (s *simulation) mirrorSome() {
	m := s.replica
	if m == nil {
		return
	}
	s.t.Helper()
	if m.version == 0 || s.r.IntN(400) == 0 {
		s.mirrorNext()
		return
	}
	open := 0
	for i, shard := range s.shards {
		at, ok := shard.Replicating()
		if m.series[i] == nil || !shard.Idle() && (!ok || at != m.version) {
			if m.series[i] != nil {
				open++
			}
			continue
		}
		piece, more := state.CopyPiece{}, false
		if !shard.Idle() {
			var err error
			piece, more, err = shard.NextPiece(1 + s.r.IntN(2000))
			must(s.t, err)
		}
		must(s.t, m.pieces.Write(m.series[i], &piece))
		if more {
			open++
			continue
		}
		if !shard.Idle() {
			shard.EndCopy()
		}
		must(s.t, m.series[i].End(m.since))
		m.series[i] = nil
	}
	if open == 0 {
		s.takeMirrored()
	}
}

// mirrorNext asks all shards for a version that none has begun a batch on.
func (s *simulation) mirrorNext() {
	m := s.replica
	if m.version != 0 {
		m.given++
	}
	v := schema.Version(0)
	for _, shard := range s.shards {
		v = max(v, schema.Version(shard.Batch())+1)
	}
	m.version, m.frames, m.series = v, nil, nil
	for i, shard := range s.shards {
		if _, ok := shard.Replicating(); ok {
			shard.EndCopy()
		}
		if !shard.Idle() && !shard.ReplicateAt(state.CopyRequest{At: v, Since: m.since, All: m.since == 0, BytesMax: 1 << 30}) {
			s.t.Fatalf("shard %d has begun batch %d, and is at %d", i, v, shard.Batch())
		}
		head := schema.Head{Batch: schema.Batch(v)}
		if m.since > 0 {
			head.Flags = schema.FlagMore
		}
		m.series = append(m.series, &Series{Head: head, Send: func(f *schema.Frame) error {
			f.Seal()
			m.frames = append(m.frames, mirroredFrame{i, f})
			return nil
		}})
	}
}

// takeMirrored gives the replica all frames of a version, in any order.
func (s *simulation) takeMirrored() {
	m := s.replica
	for n, at := range s.r.Perm(len(m.frames)) {
		f := m.frames[at]
		v := f.frame.View()
		view, err := schema.Verify(v.Bytes(), schema.Limits{})
		must(s.t, err)
		before := m.replica.Version()
		whole, err := m.replica.Take(f.shard, &view, nil)
		must(s.t, err)
		switch last := n == len(m.frames)-1; {
		case whole != last:
			s.t.Fatalf("frame %d of %d makes version %d whole: %v", n+1, len(m.frames), m.version, whole)
		case m.since > 0 && m.replica.Version() != before:
			s.t.Fatalf("version %d is there before %d is committed", m.replica.Version(), m.version)
		case whole && m.replica.Whole() != m.version:
			s.t.Fatalf("version %d is whole, want %d", m.replica.Whole(), m.version)
		}
	}
	must(s.t, m.replica.Commit())
	if m.replica.Version() != m.version || m.replica.bytes != 0 {
		s.t.Fatalf("the replica has version %d and %d bytes wait: want version %d alone", m.replica.Version(),
			m.replica.bytes, m.version)
	}
	m.told++
	if m.since > 0 {
		m.changes++
	}
	m.since, m.version = m.version, 0
}

// Whoever holds the replica goes on from the version that was told last as the model does, on any number of shards:
// with equal bits of parameters, rows and slots.
func TestReplicaGoesOn(t *testing.T) {
	const batches = 9
	resumed, changes, given := 0, 0, 0
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			first := newSimulation(t, seed)
			if first.p.Job.Apply != schema.ApplyUpdate {
				t.Skip("its trainers have the parameters")
			}
			shards := 1 + int(seed/3%3)
			first.mirroring(shards)
			first.run(batches)
			m := first.replica
			changes, given = changes+m.changes, given+m.given
			if m.told == 0 {
				t.Skip("nothing was told in time")
			}
			resumed++
			second := newSimulation(t, seed)
			second.shards, second.place = nil, schema.NewPlacement(second.p.Job, shards)
			for i := range shards {
				second.makeShard(i, m.replica.Resumed(i))
			}
			second.runFrom(schema.Batch(m.since), batches)
		})
	}
	if resumed < 30 || changes < 30 || given == 0 {
		t.Errorf("%d of 60 went on, %d versions were told as changes, and %d were given up", resumed, changes, given)
	}
}

// What does not follow, or does not fit, is refused, and changes nothing that is whole.
func TestReplicaRefuses(t *testing.T) {
	seed := uint64(0)
	s := newSimulation(t, seed)
	for s.p.Job.Apply != schema.ApplyUpdate || len(s.p.Job.Tables) == 0 || len(s.shards) > 1 {
		seed++
		s = newSimulation(t, seed)
	}
	s.mirroring(1)
	s.run(9)
	m := s.replica
	if m.told == 0 {
		t.Fatal("nothing was told")
	}
	at := m.replica.Version()
	frame := func(l schema.Layout, h schema.Head, fill func(*schema.Frame)) *schema.View {
		l.Kind = schema.KindState
		f, err := schema.NewFrame(l)
		must(t, err)
		f.SetHead(h)
		if fill != nil {
			fill(f)
		}
		v := f.View()
		f.Seal()
		view, err := schema.Verify(v.Bytes(), schema.Limits{})
		must(t, err)
		return &view
	}
	next := schema.Batch(at) + 1
	section := func(table, dim uint32) func(*schema.Frame) {
		return func(f *schema.Frame) {
			f.SetSection(0, schema.Section{Table: schema.Table(table), Dim: dim, Count: 1})
		}
	}
	for _, c := range []struct {
		name string
		view *schema.View
		want error
	}{
		{"changes since another version", frame(schema.Layout{}, schema.Head{Batch: next, Chunks: 1,
			Offset: uint64(at) + 7, Flags: schema.FlagMore}, nil), ErrSeries},
		{"a table that is not there", frame(schema.Layout{Sections: 1, Keys: 1, Values: 4}, schema.Head{Batch: next + 1,
			Flags: schema.FlagMore}, section(99, 1)), nil},
		{"a row that is too short", frame(schema.Layout{Sections: 1, Keys: 1, Values: 4}, schema.Head{Batch: next + 2,
			Flags: schema.FlagMore}, section(0, 2)), nil},
		{"a parameter that is not there", frame(schema.Layout{Values: 4}, schema.Head{Batch: next + 3, Bucket: 99,
			Flags: schema.FlagMore | schema.FlagParameters}, nil), nil},
		{"values of nothing", frame(schema.Layout{Values: 4}, schema.Head{Batch: next + 4, Flags: schema.FlagMore}, nil),
			nil},
	} {
		_, err := m.replica.Take(0, c.view, nil)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if m.replica.Version() != at {
			t.Fatalf("%s: the replica is at version %d, and was at %d", c.name, m.replica.Version(), at)
		}
	}
	whole, err := m.replica.Take(0, frame(schema.Layout{}, schema.Head{Batch: schema.Batch(at), Chunks: 1}, nil), nil)
	if whole || err != nil {
		t.Errorf("a frame of a version that is there: %v, %v", whole, err)
	}
	must(t, m.replica.Resumed(0).Read(func(state.Tensor) error { return nil }, nil))
}
