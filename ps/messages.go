package ps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// message is a verified control or heartbeat frame.
type message struct {
	job      schema.JobName
	from, to schema.Member
	head     schema.Head
	view     schema.View // of control; of a heartbeat nothing: its report is the reporter's
	bytes    int         // of the frame

	control *schema.Control // where it has been decoded; the view is empty then
	invalid error           // why it could not be
	name    string          // of the control message then, where it could not be
	checked bool            // the manifest of its join has been checked
	refused *schema.Refused // why there can be no such job; nil: there can
}

// decode gives the control message of a frame.
func (m *message) decode() (*schema.Control, error) {
	if m.control == nil {
		c, err := schema.DecodeControl(&m.view)
		if err != nil {
			m.name = schema.MessageOf(&m.view)
		}
		m.control, m.invalid, m.view = &c, err, schema.View{}
	}
	return m.control, m.invalid
}

const (
	// messagesMax and messageBytesMax bound what waits for the control loop: some seconds of heartbeats of the largest
	// job, and the bodies of control messages, of up to 1 MiB. What finds it full is dropped; trainers repeat all of it.
	messagesMax     = 4 * 4096
	messageBytesMax = 32 << 20
)

// inbox holds what fabric's goroutines have received for coordinators until the control loop reads it.
type inbox struct {
	server    *Server
	messages  chan *message // of which a place is small: few are ever taken
	bytes     atomic.Int64  // of those in messages
	manifests *manifests
}

func newInbox(s *Server) *inbox {
	return &inbox{server: s, messages: make(chan *message, messagesMax), manifests: newManifests(s.config.checkManifest)}
}

// receive takes what comes in for coordinators. It never waits.
func (in *inbox) receive(m fabric.Message) {
	s := in.server
	subject, err := m.Parse()
	ofServer := err == nil && subject.Job == string(schema.TelemetryJob) && schema.Member(subject.From).IsServer()
	if !ofServer && (err != nil || subject.From != string(schema.Coordinator)) { // those are our own, or nearly
		s.counters.received(len(m.Data))
	}
	if err != nil {
		s.counters.count(schema.ReasonMalformed)
		return
	}
	view, err := schema.Verify(m.Data, s.limits)
	if err != nil {
		in.refuse(&subject, schema.Head{}, schema.Refusing(err))
		return
	}
	head := view.Head()
	if kindToken(head.Kind) != subject.Kind {
		in.refuse(&subject, head, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s", head.Kind,
			subject.Kind))
		return
	}
	if head.Kind == schema.KindHeartbeat {
		if s.reporter.receive(&subject, &view); ofServer {
			return // a ps is no member of a job
		}
		view = schema.View{}
	}
	waits := &message{job: schema.JobName(subject.Job), from: schema.Member(subject.From), to: schema.Member(subject.To),
		head: head, view: view, bytes: len(view.Bytes())}
	switch large := waits.bytes > largeControlBytes && waits.from != schema.Coordinator && !waits.from.IsServer(); {
	case large && !isJoiner(waits.from):
		in.refuse(&subject, head, schema.Refuse(schema.ReasonOversized, "control message of %d bytes: want at most %d",
			waits.bytes, largeControlBytes))
	case large && !in.manifests.offer(waits), !large && !in.queue(waits):
		s.counters.dropped.Add(1)
	}
}

// queue has a message wait for the loop, and reports whether there is room.
func (in *inbox) queue(m *message) bool {
	if in.bytes.Add(int64(m.bytes)) <= messageBytesMax {
		select {
		case in.messages <- m:
			return true
		default:
		}
	}
	in.taken(m)
	return false
}

// taken gives back the room of a message that waits no more.
func (in *inbox) taken(m *message) { in.bytes.Add(-int64(m.bytes)) }

// refuse tells a sender in the coordinator's name why its frame went nowhere.
func (in *inbox) refuse(subject *fabric.Subject, head schema.Head, r *refusal) {
	if in.server.posts != nil {
		in.server.refuseAs(in.server.posts, schema.Coordinator, subject, head, r)
	}
}

// read takes a message to the coordinator it is for, or to the shards here.
func (l *controlLoop) read(ctx context.Context, m *message) {
	if m.from == schema.Coordinator {
		l.readCoordinator(ctx, m)
		return
	}
	j := l.jobs.addressed(m)
	var r *refusal
	switch {
	case j != nil && m.from == l.server.member: // what this ps says to itself stays here
		l.inbox.forged(m)
		return
	case j != nil && m.head.Job == 0 && !isJoiner(m.from):
		r = schema.Refuse(schema.ReasonForeignJob,
			"%v frame of %s without a run id: want the one of job %s, which joined told", m.head.Kind, m.from, m.job)
	case m.head.Kind == schema.KindHeartbeat:
		r = l.readHeartbeat(m)
	case m.head.Kind == schema.KindControl:
		r = l.readControl(m)
	case m.head.Kind == schema.KindRefusal: // a trainer has no reason to refuse anything of ours
		l.server.log.Warn("trainer refused a frame", "job", m.job, "member", m.from)
	}
	if r == nil {
		l.server.counters.count(schema.ReasonOK)
		return
	}
	if r.Reason == schema.ReasonUnknownVersion {
		l.refuseVersion(m, r)
		return
	}
	subject := fabric.At(string(m.job), string(m.from), fabric.KindCtl, string(schema.Coordinator))
	l.inbox.refuse(&subject, m.head, r)
}

// refuseVersion tells a program that reads another protocol so, in the one message that all of them read: refused, with
// no more than a reason and a text. Of a job that another ps coordinates, that one answers.
func (l *controlLoop) refuseVersion(m *message, r *refusal) {
	if l.jobs.of(m.job) == nil && l.coordinatedElsewhere(time.Now(), m.job) {
		return
	}
	l.server.counters.count(r.Reason)
	refused := &schema.Refused{Reason: r.Reason.String(), Text: schema.Clip(r.Detail)}
	if m.name == "join" {
		l.joinRefused(m.job, m.from, string(m.from), refused) // its host is in what cannot be read
	} else {
		l.server.logRefusal(string(m.job), string(m.from), r.Reason, r.Detail)
	}
	l.send(m.job, 0, m.from, schema.Control{Refused: refused})
}

// isJoiner reports whether a name is one under which a trainer joins, rather than a member's.
func isJoiner(name schema.Member) bool { return strings.HasPrefix(string(name), "j-") }

// forged counts a message that cannot be its sender's: of the coordinator of a job that this ps coordinates, or while no
// other ps is known that could be one, or of this ps to itself. No answer is sent. A coordinator on a ps that has been
// announced a moment ago repeats its own.
func (in *inbox) forged(m *message) {
	in.server.counters.count(schema.ReasonWrongSender)
	in.server.logRefusal(string(m.job), string(m.from), schema.ReasonWrongSender,
		"another process speaks for "+string(m.from)+", which is here")
}

// readCoordinator takes what a coordinator on another ps says to the shard servers of its job.
func (l *controlLoop) readCoordinator(ctx context.Context, m *message) {
	head := &m.head
	a := l.shards.of(m.job, head.Job)
	if head.Kind == schema.KindHeartbeat {
		if a != nil {
			a.coordinator.Begin(time.Now())
		}
		return
	}
	if l.jobs.addressed(m) != nil && head.Job != 0 || l.server.embedsControl() && l.server.registry.alone.Load() {
		l.inbox.forged(m)
		return
	}
	control, err := m.decode()
	if err != nil || m.to != l.server.member {
		l.server.log.Warn("word of a coordinator not understood", "job", m.job, "to", m.to, "err", err)
		return
	}
	switch {
	case control.Query != nil:
		said := l.server.replicas.kept(control.Query.Run)
		l.sendAs(l.server.member, m.job, said.Run, schema.Coordinator, schema.Control{Kept: &said})
	case control.Keep != nil && control.Keep.Job == nil && !l.server.replicas.knows(head.Job):
		// it is for the ps that was here before
	case control.Assign != nil && a == nil, control.Keep != nil && !l.server.replicas.knows(head.Job):
		select { // the registry tells whether the coordinator may say so: see answered
		case l.server.registry.assigns <- assignRequest{message: *m, run: head.Job, control: control}:
		default:
			l.server.counters.dropped.Add(1)
		}
	default:
		l.readAsShardServer(ctx, m.job, head.Job, control)
	}
}

// answered carries an assignment out that is the coordinator's.
func (l *controlLoop) answered(ctx context.Context, q *assignRequest) {
	switch {
	case errors.Is(q.err, errForged):
		l.server.counters.count(schema.ReasonWrongSender)
		l.server.logRefusal(string(q.message.job), string(q.message.from), schema.ReasonWrongSender, q.err.Error())
	case q.err != nil:
		l.server.log.Warn("assignment postponed, registry not readable", "job", q.message.job, "err", q.err)
	default:
		l.readAsShardServer(ctx, q.message.job, q.run, q.control)
	}
}

// readAsShardServer takes a message of a coordinator to its shard servers.
func (l *controlLoop) readAsShardServer(ctx context.Context, name schema.JobName, run schema.RunID, c *schema.Control) {
	switch {
	case c.Ended != nil:
		l.shards.release(l.shards.of(name, run))
		l.server.replicas.ended(run, c.Ended.Back)
	case c.Keep != nil:
		l.server.replicas.keep(name, run, c.Keep, l.shards.of(name, run))
		l.shards.noteFree()
		l.tellKept()
	case c.Assign != nil:
		if j := l.jobs.of(name); j != nil && j.run != run && l.shards.of(name, j.run) != nil {
			return // two ps have registered the name; the registry says which of them
		}
		l.tell(name, run, l.shards.assign(ctx, name, run, c.Assign))
	}
}

// tell sends a message about a run with shards here to its coordinator; nil is none.
func (l *controlLoop) tell(name schema.JobName, run schema.RunID, c *schema.Control) {
	if c == nil {
		return
	}
	if j := l.jobs.of(name); j != nil && j.run == run {
		l.local = append(l.local, localMessage{name, run, l.server.member, *c})
		return
	}
	l.sendAs(l.server.member, name, run, schema.Coordinator, *c)
}

// localMessage goes between a coordinator and the shards on the same ps: it needs no wire. The control loop reads these
// after whatever wrote them.
type localMessage struct {
	job     schema.JobName
	run     schema.RunID
	from    schema.Member // coordinator, or this ps
	control schema.Control
}

// readLocal reads what this ps has written to itself.
func (l *controlLoop) readLocal(ctx context.Context) {
	for len(l.local) > 0 {
		m := l.local[0]
		l.local = l.local[1:]
		j := l.jobs.of(m.job)
		switch {
		case j == nil || j.run != m.run: // has ended meanwhile
		case m.from == schema.Coordinator:
			l.readAsShardServer(ctx, m.job, m.run, &m.control)
		default:
			l.readFromShardServer(j, m.from, &m.control)
		}
	}
	l.local = nil
}

// readFromShardServer is the coordinator's side. It reports whether the sender is a shard server of the job.
func (l *controlLoop) readFromShardServer(j *job, from schema.Member, c *schema.Control) bool {
	var decisions []coordinator.Decision
	var known bool
	switch {
	case c.Kept != nil:
		decisions, known = j.coordinator.Kept(time.Now(), from, c.Kept), true
	case c.Report != nil:
		decisions, known = j.coordinator.Report(time.Now(), from, c.Report)
	case c.Ended != nil:
		decisions, known = j.coordinator.ShardServerFailed(from, c.Ended)
	}
	l.carryOut(j, decisions)
	if known && l.jobs[j.name] == j {
		l.admitWaiting(j)
	}
	return known
}

func (l *controlLoop) readHeartbeat(m *message) *refusal {
	if a := l.shards.of(m.job, m.head.Job); a != nil {
		a.hearTrainer(m.from, time.Now())
	}
	j := l.jobs.addressed(m)
	if j == nil || m.head.Job == 0 {
		return l.answerEnded(m, m.head.Job)
	}
	decisions, known := j.coordinator.Heartbeat(time.Now(), m.from, &m.head)
	l.carryOut(j, decisions)
	if !known {
		return schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", m.from, m.job)
	}
	return nil
}

// answerEnded answers a message about a run that has ended, or is not known here.
func (l *controlLoop) answerEnded(m *message, run schema.RunID) *refusal {
	e := l.history.find(m, run)
	switch {
	case e == nil && l.shards.of(m.job, run) != nil:
		return nil // its coordinator is on another ps
	case e == nil && !l.server.isAlone():
		return nil // another ps may know more
	case e == nil:
		return schema.Refuse(schema.ReasonJobUnknown,
			"job %s with this run id is not registered here: it has ended, or the server has restarted", m.job)
	default:
		l.send(e.name, e.run, m.from, endOf(e.failed))
	}
	return nil
}

// readControl takes a control message: one for this ps itself, or one for a job, which readForJob takes.
func (l *controlLoop) readControl(m *message) *refusal {
	control, err := m.decode()
	if err != nil {
		l.successor.noteForeign(m, err, l.server.now())
		return schema.Refusing(err)
	}
	switch {
	case control.Follow != nil:
		return l.follow(m, control.Follow)
	case control.Query != nil:
		lost, text := false, "this ps holds replicas for no other"
		if b := l.server.primary; control.Query.Over {
			text = l.takeover(m.job)
			lost = text == ""
		} else if b != nil {
			lost, text = b.lost(m.job, control.Query.Run)
		}
		answer := schema.Control{Refused: &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(text)}}
		if lost {
			answer = schema.Control{Ended: &schema.Ended{Text: text, Back: true, End: schema.EndContinued}}
		}
		l.send(m.job, 0, m.from, answer)
	case control.Kept != nil:
		l.heardKept(m, control.Kept)
	case control.Drain != nil:
		l.drain(m, control.Drain)
	case control.Join != nil:
		return l.readJoin(m, control.Join)
	default:
		return l.readForJob(m, control)
	}
	return nil
}

// readJoin takes a join.
func (l *controlLoop) readJoin(m *message, join *schema.Join) *refusal {
	switch {
	case !isJoiner(m.from):
		return schema.Refuse(schema.ReasonUnknownSender,
			"a join from %s: want a name that begins with j-, since members have names already", m.from)
	case join.Job.Name != m.job:
		r := &schema.Refused{Reason: "invalid_job", Field: "name", Have: string(m.job), Want: string(join.Job.Name),
			Text: schema.Clip(fmt.Sprintf("manifest of job %s sent as job %s", join.Job.Name, m.job))}
		l.joinRefused(m.job, m.from, join.Host, r)
		l.send(m.job, 0, m.from, schema.Control{Refused: r})
	case m.head.Job != 0 && l.jobs.addressed(m) == nil: // it waits for others of a run
		e := l.history.find(m, m.head.Job) // where that has failed its session is told
		if e != nil && e.failed == nil || l.jobs.of(m.job) != nil || e == nil && l.server.byItself() {
			l.send(m.job, 0, m.from, schema.Control{Refused: coordinator.RunOver(m.job)})
		}
	default:
		l.join(m, join)
	}
	return nil
}

// readForJob takes a control message for the coordinator of a job. Of one that is not registered here the sender is
// told what has become of it, whatever the message says.
func (l *controlLoop) readForJob(m *message, c *schema.Control) *refusal {
	j := l.jobs.addressed(m)
	if j == nil {
		return l.readOfEnded(m, c)
	}
	switch {
	case c.Report != nil || c.Ended != nil:
		if !l.readFromShardServer(j, m.from, c) {
			return schema.Refuse(schema.ReasonUnknownSender, "%s has no shard of job %s", m.from, m.job)
		}
	case c.LR != nil && len(c.LR.Changes) == 1:
		l.carryOut(j, j.coordinator.ScaleLR(m.from, c.LR))
	case c.LRTaken != nil:
		l.carryOut(j, j.coordinator.LRTaken(m.from, m.head.Generation, c.LRTaken))
	case c.Checkpoint != nil:
		l.checkpoint(j, m.from, c.Checkpoint)
	case c.Leave != nil && c.Leave.Later:
		l.carryOut(j, j.coordinator.Leaving(m.from))
	case c.Leave != nil:
		if a := l.shards.of(j.name, j.run); a != nil {
			a.trainerLeft(m.from)
		}
		// its last one may be a second old; who is no member is told by Leave
		decisions, _ := j.coordinator.Heartbeat(time.Now(), m.from, &m.head)
		l.carryOut(j, append(decisions, j.coordinator.Leave(time.Now(), m.from, m.head.Generation, c.Leave)...))
	default:
		return notForCoordinator(c)
	}
	return nil
}

// checkpoint takes a trainer's request for a durable version.
func (l *controlLoop) checkpoint(j *job, from schema.Member, r *schema.Checkpoint) {
	var policy *coordinator.CheckpointPolicy
	if s := l.server; s.folder.local && j.notSaved != "" { // it may have a folder since
		f := located{}
		if f.epoch, f.not = s.numberRun(j.manifest); f.not != nil {
			j.notSaved = f.not.Error()
		} else {
			j.notSaved, policy = "", f.policy(&s.config)
		}
	}
	if j.notSaved != "" {
		l.send(j.name, j.run, from, schema.Control{Refused: &schema.Refused{Reason: schema.RefusedCheckpoint,
			Text: schema.Clip(j.notSaved)}})
		return
	}
	l.carryOut(j, j.coordinator.Checkpoint(l.server.now(), from, r, policy))
}

// readOfEnded answers a control message for the coordinator of a job that is not registered here: shard servers are
// told to release what they have, trainers how the job has ended.
func (l *controlLoop) readOfEnded(m *message, c *schema.Control) *refusal {
	switch {
	case c.Report != nil || c.Ended != nil:
		if over := l.history.find(m, m.head.Job); over != nil {
			l.send(m.job, m.head.Job, m.from, endOf(over.failed))
		}
		return nil
	case c.Leave != nil && !c.Leave.Later && l.jobs.of(m.job) == nil:
		if e := l.history.leftSince(m, m.head.Job, c.Leave); e != nil {
			l.server.folder.forget(e.name)
			l.server.folder.over(e.name, e.run, checkpoint.End)
		}
	case c.Leave == nil && c.LR == nil && c.LRTaken == nil && c.Checkpoint == nil:
		return notForCoordinator(c)
	}
	return l.answerEnded(m, m.head.Job)
}

func notForCoordinator(c *schema.Control) *refusal {
	return schema.Refuse(schema.ReasonMalformed,
		"control %s: a coordinator takes join, leave, lr, lr_taken, checkpoint, report and ended", c.Name())
}

// look takes what the registry has seen.
func (l *controlLoop) look(n registryNews) {
	if n.taken != nil {
		l.server.log.Error("this ps has to end", "err", n.taken)
		l.server.fail(n.taken)
		return
	}
	if n.changed.run != 0 {
		if j := l.jobs.of(n.changed.name); j != nil && j.run == n.changed.run {
			l.carryOut(j, j.coordinator.Recorded(l.server.now(), n.changed.lr, n.changed.voters))
		}
		return
	}
	if n.stolen != "" {
		if j := l.jobs.of(n.stolen); j != nil {
			l.carryOut(j, j.coordinator.Fail(schema.Coordinator,
				"another ps has taken the record of the job, while this one did not reach the control server"))
		}
		return
	}
	holders := n.servers // of replicas, if they say so
	if !l.server.config.grouped() {
		holders = l.successor.pair(&l.server.registry.self)
	}
	for name, j := range l.jobs.coordinated() {
		if l.registerAnew(j, n.servers) {
			continue
		}
		if i, how := j.findReplaced(n.servers, l.server.ID()); i >= 0 {
			l.carryOut(j, j.coordinator.ShardServerGone(i, how))
		}
		if l.jobs[name] == j {
			l.carryOut(j, j.coordinator.Peers(l.server.now(), peersOf(holders)))
		}
	}
}
