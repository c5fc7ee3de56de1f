package ps

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/internal/liveness"
	"gradbus/internal/process"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// A ps that holds replicas for this one says so some times a second (Follow). Coordinators here have it keep what the
// shards of their jobs have (Keep), and trainers are told where it is (Start).

// followedMax is the silence of a follower after which it does not count any more.
const followedMax = 5 * time.Second

// successor is what this ps knows of the one that may continue its jobs in a pair.
type successor struct {
	is      *follower // nil: there is none
	gone    string    // why there is none any more; empty: there is one, or never was
	foreign foreignPeer
	last    schema.Member            // the latest one; empty: there was none, or it has left
	yielded map[schema.JobName]yield // jobs that ended here while another ps may have continued them
}

// yield is the end of a job here that another ps may have continued.
type yield struct {
	at time.Time
	to schema.Member
}

// follower is the ps that holds replicas for this one.
type follower struct {
	member schema.Member
	url    string
	host   string
	drawn  uint64 // at its start
	heard  liveness.Silence
	over   []schema.OverRun // that were noted
}

// foreignPeer is a ps that would hold replicas for this one, and reads another protocol. Nothing is handed over to it.
type foreignPeer struct {
	why string    // empty: there has been none
	at  time.Time // it was heard last
}

// noteForeign notes that a message was refused which reads another protocol, if it is that of a ps that would hold
// replicas.
func (s *successor) noteForeign(m *message, err error, now time.Time) {
	if m.name == "follow" && m.from.IsServer() && schema.ReasonOf(err) == schema.ReasonUnknownVersion {
		s.foreign = foreignPeer{schema.Refusing(err).Detail, now}
	}
}

// loses names a job that would be lost with this ps, since the other one reads another protocol, and no version of the
// job is written; ok is false if there is none.
func (s *successor) loses(jobs jobTable, now time.Time) (job schema.JobName, ok bool) {
	if s.foreign.why == "" || now.Sub(s.foreign.at) > followedMax {
		return "", false
	}
	for name, j := range jobs.coordinated() {
		if c := j.coordinator; c.Trains() && j.notSaved != "" && !s.mayTake(j, now) {
			return name, true
		}
	}
	return "", false
}

// mayTake reports whether the ps that follows this one could go on with a job.
func (s *successor) mayTake(j *job, now time.Time) bool {
	r := j.coordinator.Replicas(now)
	return s.is != nil && r.Ready && slices.Contains(r.Members, s.is.member)
}

// mayContinue reports whether a job has ended here while the ps with the replica was not heard, and has not been heard
// since: it may continue the job with the trainers that were lost. cut says that this ps holds replicas for another
// one, which is silent.
func (s *successor) mayContinue(name schema.JobName, cut bool) bool {
	y, ended := s.yielded[name]
	if !ended {
		return false
	}
	if s.is == nil || s.is.member != y.to || !s.is.heard.Since().After(y.at) || cut {
		return true
	}
	delete(s.yielded, name)
	return false
}

// refuses returns why a ps may not hold the replicas; empty: it may. There is one such ps, and a tick finds out whether
// it is there no more. Another one does not take its place while it is silent and may have continued a job.
func (s *successor) refuses(from schema.Member, jobs jobTable) string {
	if s.is != nil && s.is.member != from {
		return fmt.Sprintf("ps %s on %s holds the replicas already", s.is.member.ServerID(), s.is.host)
	}
	if s.is != nil || s.last == "" || s.last == from {
		return ""
	}
	for name, j := range jobs.coordinated() {
		if j.coordinator.Status().Elsewhere {
			return fmt.Sprintf("ps %s held the replicas before, is not heard, and may have continued job %s. If it has ended: "+
				"%s takeover %s", s.last.ServerID(), name, process.Invoked("ps"), name)
		}
	}
	return ""
}

// pair returns a ps and the one that follows it, both of which may hold replicas; nil: none follows.
func (s *successor) pair(self *leaseRecord) []leaseRecord {
	if s.is == nil {
		return nil
	}
	return pairOf(self, leaseRecord{ID: s.is.member.ServerID(), Incarnation: s.is.drawn, Stands: true})
}

func pairOf(self *leaseRecord, other leaseRecord) []leaseRecord {
	return []leaseRecord{{ID: self.ID, Incarnation: self.Incarnation, Stands: true}, other}
}

// silent reports whether it was not heard lately.
func (f *follower) silent(now time.Time) bool { return f.heard.For(now) > 2*followEvery+tickEvery }

// listOf cuts a list of jobs to what a message may have: a longer one would be refused whole.
func listOf[T any](jobs []T) []T { return jobs[:min(len(jobs), schema.FollowMax)] }

// heard returns the answer to a follower. awaited are the jobs whose trainers are awaited here.
func (t jobTable) heard(self *leaseRecord, awaited []schema.JobName, now time.Time) *schema.Jobs {
	var kept, others []schema.JobProgress
	for name, j := range t.coordinated() {
		if len(j.coordinator.Replicas(now).Members) > 0 {
			kept = append(kept, schema.JobProgress{Job: name}) // first, since a job that is not named is dropped there
		} else {
			others = append(others, schema.JobProgress{Job: name})
		}
	}
	for _, name := range awaited {
		kept = append(kept, schema.JobProgress{Job: name})
	}
	return &schema.Jobs{Server: self.ID, Incarnation: self.Incarnation, Jobs: listOf(append(kept, others...))}
}

// lostTogether says what follows if this host is lost with the trainers on it: empty if a majority of the trainers is left
// to continue the job at the ps with the replica, or if that sees the end of this process itself.
func lostTogether(job *coordinator.Status, host, other string) string {
	name, _, _ := strings.Cut(host, " (")
	if other, _, _ := strings.Cut(other, " ("); other == name {
		return ""
	}
	here, all := 0, 0
	for _, m := range job.Members {
		if on, _, _ := strings.Cut(m.Host, " ("); m.Own && on == name {
			here++
		}
		if m.Own {
			all++
		}
	}
	if 2*(all-here) > all {
		return ""
	}
	return fmt.Sprintf("%d of its %d trainers are on %s, as its ps is: without them it waits for %s takeover %s", here, all,
		name, process.Invoked("ps"), job.Name)
}
