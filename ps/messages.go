package ps

import (
	"context"
	"fmt"
	"strings"
	"time"

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

// jobOf finds the job that a message is for: one that is registered here, in the run that the frame names; of a frame
// without a run, in whichever. Messages reach a job by this alone.
func (l *controlLoop) jobOf(m *message) (j *job, registered bool) {
	if j = l.job(m.job); j != nil && (m.head.Job == 0 || m.head.Job == j.run) {
		return j, true
	}
	return nil, false
}

// read takes a message to the coordinator it is for, or to the shards here.
func (l *controlLoop) read(ctx context.Context, m *message) {
	if m.from == schema.Coordinator {
		l.readCoordinator(ctx, m)
		return
	}
	_, registered := l.jobOf(m)
	var r *refusal
	switch {
	case registered && m.from == l.server.member: // what this ps says to itself stays here
		l.forged(m)
		return
	case registered && m.head.Job == 0 && !isJoiner(m.from):
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
	l.refuse(&subject, m.head, r)
}

// refuseVersion tells a program that reads another protocol so, in the one message that all of them read: refused, with
// no more than a reason and a text. Of a job that another ps coordinates, that one answers.
func (l *controlLoop) refuseVersion(m *message, r *refusal) {
	if l.job(m.job) == nil && l.coordinatedElsewhere(time.Now(), m.job) {
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

// forged counts a message that cannot be its sender's: of the coordinator of a job that this ps coordinates, or where
// no other ps is that could, or of this ps to itself. No answer is sent.
func (l *controlLoop) forged(m *message) {
	l.server.counters.count(schema.ReasonWrongSender)
	l.server.logRefusal(string(m.job), string(m.from), schema.ReasonWrongSender,
		"another process speaks for "+string(m.from)+", which is here")
}

// unverified is a message of a coordinator that came while no other ps was known that could be one.
type unverified struct {
	message message
	looks   int // at who is announced, since
}

const (
	// unverifiedMax bounds the messages that wait for a look at which ps are announced. A coordinator repeats its own.
	unverifiedMax = 16
	// unverifiedLooks is after how many looks without another ps a message counts as forged: one look may have begun
	// before it came.
	unverifiedLooks = 2
)

// verifyLater holds a message until it is known whether another ps has come a moment ago.
func (l *controlLoop) verifyLater(m *message) {
	if len(l.unverified) == unverifiedMax {
		l.forged(m)
		return
	}
	l.unverified = append(l.unverified, unverified{message: *m})
}

// verify reads the messages of coordinators that another ps can have sent. It is called after a look.
func (l *controlLoop) verify(ctx context.Context) {
	all := l.unverified
	l.unverified = nil
	for _, q := range all {
		switch q.looks++; {
		case !l.server.registry.alone.Load():
			l.read(ctx, &q.message)
		case q.looks == unverifiedLooks:
			l.forged(&q.message)
		default:
			l.unverified = append(l.unverified, q)
		}
	}
}

// readCoordinator takes what a coordinator on another ps says to the shard servers of its job.
func (l *controlLoop) readCoordinator(ctx context.Context, m *message) {
	head := &m.head
	if head.Kind == schema.KindHeartbeat {
		l.hearCoordinator(m.job, head.Job)
		return
	}
	if _, registered := l.jobOf(m); registered && head.Job != 0 {
		l.forged(m)
		return
	}
	if l.server.embedsControl() && l.server.registry.alone.Load() {
		l.verifyLater(m)
		return
	}
	control, err := m.decode()
	if err != nil || m.to != l.server.member {
		l.server.log.Warn("word of a coordinator not understood", "job", m.job, "to", m.to, "err", err)
		return
	}
	a := l.assignments[m.job]
	switch {
	case control.Query != nil:
		l.answerKept(m, control.Query)
		return
	case control.Keep != nil && control.Keep.Job == nil && !l.server.replicas.knows(head.Job):
		return // it is for the ps that was here before
	case control.Assign != nil && (a == nil || a.run != head.Job),
		control.Keep != nil && !l.server.replicas.knows(head.Job):
		l.askAbout(m, head.Job, control)
		return
	}
	l.readAsShardServer(ctx, m.job, head.Job, control)
}

func (l *controlLoop) readHeartbeat(m *message) *refusal {
	if a := l.assignments[m.job]; a != nil && a.run == m.head.Job {
		a.hearTrainer(m.from, time.Now())
	}
	j, registered := l.jobOf(m)
	if !registered || m.head.Job == 0 {
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
	a := l.assignments[m.job]
	switch {
	case e == nil && a != nil && a.run == run:
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
		l.noteForeign(m, err)
		return schema.Refusing(err)
	}
	switch {
	case control.Follow != nil:
		return l.follow(m, control.Follow)
	case control.Query != nil:
		answer := schema.Lost{Run: control.Query.Run, Text: "this ps stands by for no other"}
		if b := l.server.standby; b != nil {
			answer = b.lost(m.job, control.Query.Run)
		}
		l.send(m.job, 0, m.from, schema.Control{Lost: &answer})
	case control.Takeover != nil:
		text := l.takeover(m.job)
		l.send(m.job, 0, m.from, schema.Control{Lost: &schema.Lost{Lost: text == "", Text: schema.Clip(text)}})
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
	_, registered := l.jobOf(m)
	switch {
	case !isJoiner(m.from):
		return schema.Refuse(schema.ReasonUnknownSender,
			"a join from %s: want a name that begins with j-, since members have names already", m.from)
	case join.Job.Name != m.job:
		r := &schema.Refused{Reason: "invalid_job", Field: "name", Have: string(m.job), Want: string(join.Job.Name),
			Text: schema.Clip(fmt.Sprintf("manifest of job %s sent as job %s", join.Job.Name, m.job))}
		l.joinRefused(m.job, m.from, join.Host, r)
		l.send(m.job, 0, m.from, schema.Control{Refused: r})
	case m.head.Job != 0 && !registered: // it waits for others of a run
		e := l.history.find(m, m.head.Job) // where that has failed its session is told
		if e != nil && e.failed == nil || l.job(m.job) != nil || e == nil && l.server.byItself() {
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
	j, registered := l.jobOf(m)
	if !registered {
		return l.readOfEnded(m, c)
	}
	switch {
	case c.Report != nil || c.Failed != nil:
		if !l.readFromShardServer(j, m.from, c) {
			return schema.Refuse(schema.ReasonUnknownSender, "%s has no shard of job %s", m.from, m.job)
		}
	case c.ScaleLR != nil:
		l.carryOut(j, j.coordinator.ScaleLR(m.from, c.ScaleLR))
	case c.LRTaken != nil:
		l.carryOut(j, j.coordinator.LRTaken(m.from, m.head.Generation, c.LRTaken))
	case c.Leaving != nil:
		l.carryOut(j, j.coordinator.Leaving(m.from))
	case c.Leave != nil:
		if a := l.shardsOf(j); a != nil {
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

// readOfEnded answers a control message for the coordinator of a job that is not registered here: shard servers are
// told to release what they have, trainers how the job has ended.
func (l *controlLoop) readOfEnded(m *message, c *schema.Control) *refusal {
	switch {
	case c.Report != nil || c.Failed != nil:
		if over := l.history.find(m, m.head.Job); over != nil {
			l.send(m.job, m.head.Job, m.from, endOf(over.failed))
		}
		return nil
	case c.Leave != nil:
		l.leftSince(m, m.head.Job, c.Leave)
	case c.ScaleLR == nil && c.LRTaken == nil && c.Leaving == nil:
		return notForCoordinator(c)
	}
	return l.answerEnded(m, m.head.Job)
}

func notForCoordinator(c *schema.Control) *refusal {
	return schema.Refuse(schema.ReasonMalformed,
		"control %s: a coordinator takes join, leave, leaving, scale_lr, lr_taken, report and failed", c.Name())
}
