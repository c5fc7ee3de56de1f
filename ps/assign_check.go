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
	message message
	run     schema.RunID
	control *schema.Control // assign or keep
	err     error           // the answer: errForged, or that it is not known; nil: it is
}

// assignsMax bounds the assignments that wait for an answer. A coordinator says its own again each second.
const assignsMax = 64

// errForged says that an assignment does not agree with the registry.
var errForged = errors.New("the registry says otherwise")

// askAbout has the registry looked up before anything is made of an assignment that begins something.
func (l *controlLoop) askAbout(m *message, run schema.RunID, control *schema.Control) {
	if l.checks[m.job] != nil {
		return
	}
	q := &assignRequest{message: *m, run: run, control: control}
	select {
	case l.server.registry.assigns <- *q:
		l.checks[m.job] = q
	default:
		l.server.counters.dropped.Add(1)
	}
}

// answered carries an assignment out that is the coordinator's.
func (l *controlLoop) answered(ctx context.Context, q *assignRequest) {
	delete(l.checks, q.message.job)
	switch {
	case errors.Is(q.err, errForged):
		l.server.counters.count(schema.ReasonWrongSender)
		l.server.logRefusal(string(q.message.job), string(q.message.from), schema.ReasonWrongSender, q.err.Error())
	case q.err != nil:
		l.server.log.Warn("assignment put off, the registry cannot be read", "job", q.message.job, "err", q.err)
	default:
		l.readAsShardServer(ctx, q.message.job, q.run, q.control)
	}
}

// answer looks an assignment up, and tells the control loop.
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
	e, err := r.jobs.Get(ctx, string(q.message.job))
	if errors.Is(err, fabric.ErrNoKey) {
		return fmt.Errorf("assign: %w: no such job", errForged)
	} else if err != nil {
		return err
	}
	var record jobRecord
	if err := json.Unmarshal(e.Value, &record); err != nil || record.Job == nil || record.RunID != q.run ||
		record.Incarnation == r.self.Incarnation {
		return fmt.Errorf("assign: %w: another run, or one of this ps", errForged)
	}
	job, own, of := (*schema.Job)(nil), []int(nil), 0
	if keep := q.control.Keep; keep != nil {
		job, of = keep.Job, keep.Shards
	} else {
		job, own, of = q.control.Assign.Job, q.control.Assign.Own, q.control.Assign.Shards
	}
	// the coordinator may have had room for smaller ones only
	wanted := record.Job.WithChunkBytes(min(record.Job.ChunkBytes, job.ChunkBytes))
	if field, have, want, differs := wanted.Diff(job); differs {
		return fmt.Errorf("assign: %w: %s is %s, not %s", errForged, field, have, want)
	}
	shards := 0
	for _, s := range record.Servers {
		shards += len(s.Shards)
	}
	ours := slices.IndexFunc(record.Servers, func(s schema.DataServer) bool { return s.ID == r.self.ID })
	if r.measure != nil {
		r.measure(job)
	}
	if shards != of || q.control.Assign != nil && (ours < 0 || !slices.Equal(record.Servers[ours].Shards, own)) {
		return fmt.Errorf("assign: %w: shards %v of %d are not those of ps %s", errForged, own, of, r.self.ID)
	}
	return nil
}
