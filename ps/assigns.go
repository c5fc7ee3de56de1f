package ps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"gradbus/fabric"
	"gradbus/schema"
)

// assignRequest asks whether an assignment that came from elsewhere is that of the coordinator whom the registry names.
type assignRequest struct {
	letter letter
	run    schema.RunID
	assign *schema.Assign
	err    error // the answer: errForged, or that it is not known; nil: it is
}

// assignsMax bounds the assignments that wait for an answer. A coordinator says its own again each second.
const assignsMax = 64

// errForged says that an assignment does not agree with the registry.
var errForged = errors.New("the registry says otherwise")

// askAbout has the registry looked up before anything is made of an assignment that begins something.
func (d *desk) askAbout(l *letter, run schema.RunID, a *schema.Assign) {
	if _, asked := d.asked[l.job]; asked {
		return
	}
	select {
	case d.server.registry.assigns <- assignRequest{letter: *l, run: run, assign: a}:
		d.asked[l.job] = struct{}{}
	default:
		d.server.counters.dropped.Add(1)
	}
}

// answered carries an assignment out that is the coordinator's.
func (d *desk) answered(ctx context.Context, q *assignRequest) {
	delete(d.asked, q.letter.job)
	switch {
	case errors.Is(q.err, errForged):
		d.server.counters.count(schema.ReasonWrongSender)
		d.server.logRefusal(string(q.letter.job), string(q.letter.from), schema.ReasonWrongSender, q.err.Error())
	case q.err != nil:
		d.server.log.Warn("assignment put off, the registry cannot be read", "job", q.letter.job, "err", q.err)
	default:
		d.assigned(ctx, q.letter.job, q.run, q.assign)
	}
}

// answer looks an assignment up, and tells the desk.
func (r *registry) answer(ctx context.Context, q assignRequest) {
	within, cancel := context.WithTimeout(ctx, renewWithin)
	q.err = r.check(within, &q)
	cancel()
	select {
	case r.answers <- q:
	case <-ctx.Done():
	}
}

// check compares an assignment with the job's record, which its coordinator has written before it said anything.
func (r *registry) check(ctx context.Context, q *assignRequest) error {
	e, err := r.jobs.Get(ctx, string(q.letter.job))
	if errors.Is(err, fabric.ErrNoKey) {
		return fmt.Errorf("assign: %w: no such job", errForged)
	} else if err != nil {
		return err
	}
	var record jobRecord
	if err := json.Unmarshal(e.Value, &record); err != nil || record.Job == nil || record.RunID != q.run || record.Incarnation == r.self.Incarnation {
		return fmt.Errorf("assign: %w: another run, or one of this ps", errForged)
	}
	wanted := record.Job.WithChunkBytes(min(record.Job.ChunkBytes, q.assign.Job.ChunkBytes)) // the coordinator may have had room for smaller ones only
	if field, have, want, differs := wanted.Diff(q.assign.Job); differs {
		return fmt.Errorf("assign: %w: %s is %s, not %s", errForged, field, have, want)
	}
	shards := 0
	for _, s := range record.Servers {
		shards += len(s.Shards)
	}
	ours := slices.IndexFunc(record.Servers, func(s schema.DataServer) bool { return s.ID == r.self.ID })
	if ours < 0 || shards != q.assign.Shards || !slices.Equal(record.Servers[ours].Shards, q.assign.Own) {
		return fmt.Errorf("assign: %w: shards %v of %d are not those of ps %s", errForged, q.assign.Own, q.assign.Shards, r.self.ID)
	}
	return nil
}

// listen subscribes to what is sent to shards, unless that is done.
func (s *Server) listen(shards []int) error {
	for _, shard := range shards {
		if _, ok := s.listening[shard]; ok {
			continue
		}
		s.listening[shard] = struct{}{}
		for _, pattern := range fabric.ListenAt(fabric.Any, string(schema.ShardMember(shard))) {
			if err := s.conn.Subscribe(pattern, func(m fabric.Message) { s.receive(s.conn, shard, m) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// unlisten ends the subscriptions of shards that no job has here, but for those of jobs that are on this ps alone.
func (s *Server) unlisten(jobs []*kept) {
	for shard := range s.listening {
		if shard < s.config.Shards || slices.ContainsFunc(jobs, func(k *kept) bool { return slices.Contains(k.own, shard) }) {
			continue
		}
		delete(s.listening, shard)
		for _, pattern := range fabric.ListenAt(fabric.Any, string(schema.ShardMember(shard))) {
			s.conn.Unsubscribe(pattern)
		}
	}
}
