package ps

import (
	"gradbus/fabric"
	"gradbus/schema"
)

// refusal says why a frame was not taken. It changes nothing but a counter.
type refusal = schema.FrameError

// receive takes what comes in for one shard, of whichever job: verified here, once, then given to the job's worker,
// which may step it at once. It runs on the goroutines of the shard's lines and waits for no step lock, so that no job
// holds up another for longer than a step. The message is released by whoever sees the last of it. Who is refused is
// told on the connection it came by.
func (s *Server) receive(conn *fabric.Conn, shard int, m fabric.Message) {
	s.counters.received(len(m.Data))
	m.Keep() // but for what its sender lends
	if it, to, ok := s.admit(conn, shard, &m); ok {
		if name, module := m.Module(); module {
			to.deliverToModule(&it, name)
		} else if !to.deliver(&it) {
			s.counters.dropped.Add(1)
		}
		return
	}
	m.Release()
}

// admit verifies a message and finds whose worker it is for. Where that fails its sender has been told.
func (s *Server) admit(conn *fabric.Conn, shard int, m *fabric.Message) (it item, to *worker, ok bool) {
	subject, err := m.Parse()
	if err != nil {
		s.counters.count(schema.ReasonMalformed) // whoever sent it cannot be told
		return it, nil, false
	}
	a := (*s.jobs.Load())[schema.JobName(subject.Job)]
	if s.ofAnother(a, shard) {
		return it, nil, false
	}
	view, err := schema.Verify(m.Data, s.limits)
	if err != nil {
		s.refuse(conn, shard, &subject, schema.Head{}, schema.Refusing(err))
		return it, nil, false
	}
	head := view.Head()
	if !goesBy(head.Kind, subject.Kind) {
		s.refuse(conn, shard, &subject, head, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s",
			head.Kind, subject.Kind))
		return it, nil, false
	}
	if !a.has(shard) {
		s.refuse(conn, shard, &subject, head, schema.Refuse(schema.ReasonJobUnknown,
			"job %s is not registered here: it has ended, or the server has restarted", subject.Job))
		return it, nil, false
	}
	return item{from: schema.Member(subject.From), view: view, payload: m.Lease()}, a.workers[shard], true
}

// ofAnother reports whether a frame may be for a shard of another ps, which then answers for it: our data server is
// also the cluster by which some trainers reach the shards of all ps, and shards of any number are heard there.
func (s *Server) ofAnother(a *assignment, shard int) bool {
	return !a.has(shard) && s.embedsControl() && (a != nil || !s.registry.alone.Load())
}

// has reports whether a shard of the job is here. Of a job that is not known, none is.
func (a *assignment) has(shard int) bool {
	return a != nil && shard < a.shards && a.workers[shard] != nil
}

// refuse tells a sender in a shard's name why its frame went nowhere.
func (s *Server) refuse(conn outlet, shard int, subject *fabric.Subject, head schema.Head, r *refusal) {
	s.refuseAs(conn, schema.ShardMember(shard), subject, head, r)
}

// refuseAs counts a refusal and tells the sender, unless it, or others, were told too often this second.
func (s *Server) refuseAs(conn outlet, who schema.Member, subject *fabric.Subject, head schema.Head, r *refusal) {
	s.counters.count(r.Reason)
	s.logRefusal(subject.Job, subject.From, r.Reason, r.Detail)
	if !s.unroutable.Allow() {
		return
	}
	frame := schema.EncodeRefusal(head, r.Reason, r.Detail)
	s.publish(conn, fabric.At(subject.Job, string(who), fabric.KindCtl, subject.From), frame)
}

// goesBy reports whether a frame of a kind may come to a shard on a subject of a kind.
func goesBy(k schema.Kind, subject string) bool {
	switch k {
	case schema.KindLookup:
		return subject == fabric.KindLookup || subject == fabric.KindPool
	case schema.KindState:
		return subject == fabric.KindReplica
	}
	return kindToken(k) == subject
}

// kindToken is the word for a kind in subjects.
func kindToken(k schema.Kind) string {
	switch k {
	case schema.KindDense:
		return fabric.KindDense
	case schema.KindSparse:
		return fabric.KindSparse
	case schema.KindMean:
		return fabric.KindMean
	case schema.KindLookup:
		return fabric.KindLookup
	case schema.KindRows:
		return fabric.KindRows
	case schema.KindPull:
		return fabric.KindPull
	case schema.KindAck:
		return fabric.KindAck
	case schema.KindHeartbeat:
		return fabric.KindHeartbeat
	case schema.KindState:
		return fabric.KindState
	case schema.KindForward, schema.KindBackward, schema.KindStep, schema.KindWeights, schema.KindOutput:
		return fabric.KindModule
	}
	return fabric.KindCtl
}
