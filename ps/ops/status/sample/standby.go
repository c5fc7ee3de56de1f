package sample

import (
	"strings"
	"time"

	"gradbus/schema"
)

// Standby is who stands by for the job; the zero value is nobody, now as ever.
type Standby struct {
	Server  string // id of the ps, or of several (Peers) with commas; empty: none does, where one has before
	Failure string // why it cannot take the job, or is gone
	Off     string // why nobody can stand by for the job
	Stuck   bool   // it takes no version
	Peers   bool   // several stand by for each other, of which the last fails, or is stuck

	known   bool
	version schema.Version
	at      time.Time
	bytes   uint64
	late    time.Time
	since   time.Time
}

// tell lets a second pass: a version is told, or is not.
func (c *Cluster) tell() {
	b := &c.StoodBy
	b.known = b.known || b.Server != "" || b.Peers
	ready := b.Server != "" && b.Failure == "" && b.Off == ""
	switch {
	case !b.known || c.Phase != schema.PhaseRunning:
	case !ready:
		b.version, b.late = 0, time.Time{}
		if b.since.IsZero() && b.Off == "" {
			b.since = c.Now
		}
	case b.Stuck:
		if b.late.IsZero() {
			b.late = c.Now
		}
	default:
		b.version, b.at, b.late, b.since = schema.Version(c.batch), c.Now, time.Time{}, time.Time{}
		b.bytes += 3 * mib
	}
}

// standby is what the coordinator says of it.
func (c *Cluster) standby() *schema.StandbyReport {
	b := &c.StoodBy
	if !b.known || c.Phase == schema.PhaseEnded {
		return nil
	}
	p := &schema.StandbyReport{Off: b.Off, Failure: b.Failure, Version: b.version, Bytes: b.bytes, Ready: b.version > 0,
		Peers: b.Peers}
	switch {
	case b.Peers && b.Server != "":
		p.Kept = b.kept(schema.Version(c.batch))
	case b.Server != "":
		p.Server, p.URL = b.Server, "nats://10.0.0.2:4222"
	}
	if b.version > 0 {
		p.ToldMS, p.TookSeconds = b.at.UnixMilli(), 0.018
	}
	if !b.since.IsZero() {
		p.UnreadyMS = c.Now.Sub(b.since).Milliseconds()
	}
	if !b.late.IsZero() {
		p.LateMS = c.Now.Sub(b.late).Milliseconds()
	}
	return p
}

// kept is what each of several keeps, of itself and of the one before.
func (b *Standby) kept(newest schema.Version) (all []schema.KeptReport) {
	ids := strings.Split(b.Server, ",")
	for i, id := range ids {
		k := schema.KeptReport{Server: id, Of: []string{id, ids[(i+len(ids)-1)%len(ids)]}, Ready: true, Version: newest}
		switch last := i == len(ids)-1; {
		case last && b.Failure != "":
			k.Failure, k.Ready, k.Version = b.Failure, false, 0
		case last && b.Stuck:
			k.Version = b.version
		}
		all = append(all, k)
	}
	return all
}
