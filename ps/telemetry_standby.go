package ps

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// stoodBy is the state of a job's standby, for reports. It is updated when the other ps reports, and at each tick.
type stoodBy struct {
	known bool           // a ps stands by for this one, or has
	off   string         // why none can for this job
	by    *follower      // nil: none does
	gone  string         // why not
	was   bool           // another ps could go on with the job, or this one has
	ready bool           // another ps can
	at    time.Time      // when version became that
	late  time.Time      // since when trainers are past it; zero: they are not
	since time.Time      // since when the job is not ready, though it was to be; zero: it is, or is not to be
	batch schema.Version // that trainers have begun

	peers bool                // several ps stand by for each other
	kept  []schema.KeptReport // what each ps keeps
	took  time.Duration       // to tell them the last version

	version schema.Version // that is whole there; 0: none
	failure string         // why the job has none there; empty since it has one
	bytes   uint64         // that were told
}

// noteStandby notes of all jobs what others keep of them.
func (l *controlLoop) noteStandby(now time.Time) {
	for _, j := range l.coordinated() {
		j.stoodBy.batch, j.stoodBy.peers = schema.Version(j.coordinator.Status().Batch), l.server.config.grouped()
		j.stoodBy.note(now, j.coordinator.Replicas(now), l.follower, l.gone)
	}
}

// note records the replicas of a job. by is the standby of its ps: nil if there is none, for the reason gone.
func (s *stoodBy) note(now time.Time, k coordinator.ReplicaReport, by *follower, gone string) {
	if by != s.by {
		s.by, s.failure = by, ""
	}
	s.known = s.known || s.peers || by != nil || gone != "" || s.was
	if s.off, s.gone = k.Off, gone; k.Missing != "" && (s.peers || by != nil) {
		s.gone, s.failure = k.Missing, ""
	}
	s.has(now, k.Version, k.Failure, k.Ready && (s.peers || by != nil && !by.silent(now)))
	if s.version > 0 {
		s.at = k.At
	}
	s.kept, s.bytes, s.took = k.Kept, k.Bytes, k.Took
}

// has notes a version that is whole elsewhere; ready says that the job could go on with it.
func (s *stoodBy) has(now time.Time, version schema.Version, failure string, ready bool) {
	s.ready = ready && s.off == ""
	fresh := version != s.version
	if fresh {
		s.version, s.at = version, now
	}
	if version > 0 || failure != "" { // else it is told all anew
		s.failure = failure
	}
	s.was = s.was || s.ready
	switch {
	case s.ready || s.off != "":
		s.since = time.Time{}
	case s.since.IsZero() && s.known: // for the first time, too: what never becomes ready must not look like what is
		s.since = now
	}
	switch {
	case !s.ready || s.batch <= s.version:
		s.late = time.Time{}
	case fresh || s.late.IsZero():
		s.late = now
	}
}

// report is what is told of it; nil where no ps has ever stood by.
func (s *stoodBy) report(now time.Time) *schema.StandbyReport {
	if !s.known {
		return nil
	}
	p := &schema.StandbyReport{Off: schema.ClipFailure(s.off), Ready: s.ready, Version: s.version,
		Failure: s.failure, Bytes: s.bytes, TookSeconds: schema.Real(s.took.Seconds()), Peers: s.peers, Kept: s.kept}
	if s.version > 0 {
		p.ToldMS = s.at.UnixMilli()
	}
	if s.by != nil {
		p.Server, p.URL = s.by.member.ServerID(), schema.Clip(fabric.WithoutUser(s.by.url))
	}
	switch {
	case s.gone != "":
		p.Failure = schema.ClipFailure(s.gone)
	case !s.peers && s.by == nil:
		p.Failure = "it has gone on here, and no ps stands by for this one"
	}
	if !s.since.IsZero() {
		p.UnreadyMS = max(0, now.Sub(s.since).Milliseconds())
	}
	if !s.late.IsZero() {
		p.LateMS = max(0, now.Sub(s.late).Milliseconds())
	}
	return p
}

// goneText returns the text that there is no standby any more.
func (f *follower) goneText(why string) string {
	return fmt.Sprintf("ps %s on %s %s", f.member.ServerID(), f.host, why)
}

// report is what a ps tells of the one that it stands by for.
func (b *standby) report(now time.Time) *schema.StandsByReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &schema.StandsByReport{URL: schema.Clip(fabric.WithoutUser(b.url)), Refused: schema.ClipFailure(b.refused)}
	if b.other != 0 {
		silent := b.silent.For(now)
		p.Reached, p.SilentMS = silent < cutMax && !b.cut.Lasts(), silent.Milliseconds()
	}
	for _, name := range slices.Sorted(maps.Keys(b.jobs)) {
		if len(p.Jobs) == schema.TelemetryJobsMax {
			break
		}
		j := b.jobs[name]
		h := b.server.replicas.holds(name, j.run)
		if h.Of, h.Lost = nil, j.gone; j.gone != "" && !j.ended {
			h.Lost, h.Missing = j.missing(name), j.absent()
		}
		h.Lost = schema.ClipFailure(h.Lost)
		p.Jobs = append(p.Jobs, h)
	}
	return p
}

// absent are the voters of a job that have not joined here.
func (j *followedJob) absent() (all []schema.Member) {
	for _, v := range j.voters {
		if !j.promised[v.Number] {
			all = append(all, v.Member)
		}
	}
	return all
}
