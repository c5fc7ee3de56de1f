package health

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// Kept is what is remembered of a GPU beyond the end of the process that found it out, and shared with others that
// watch it. Times are milliseconds since 1970.
type Kept struct {
	GPU                      // as it was last seen
	Findings  []KeptFinding  `json:"findings,omitempty"`  // that hold until they are acknowledged or the GPU is reset
	Incidents []KeptIncident `json:"incidents,omitempty"` // of class Restart: the last of each XID
	// AcknowledgedMS and ResetMS are when everything up to then was acknowledged, and ended by a reset: who still has
	// older findings drops them.
	AcknowledgedMS int64    `json:"acknowledged_ms,omitempty"`
	ResetMS        int64    `json:"reset_ms,omitempty"`
	Counters       Counters `json:"counters"`
}

// KeptFinding is a finding that is remembered. It makes the GPU unhealthy.
type KeptFinding struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Action  string `json:"action"`
	SinceMS int64  `json:"since_ms"`
	SeenMS  int64  `json:"seen_ms"` // the last sign of it that is an event
	Memory  bool   `json:"memory,omitempty"`
}

// KeptIncident is a XID of class Restart, which counts as a repeat for a day.
type KeptIncident struct {
	XID  uint64 `json:"xid"`
	AtMS int64  `json:"at_ms"`
}

// Counters are those by which a reset is seen, as they were told last.
type Counters struct {
	AtMS int64  `json:"at_ms,omitempty"`
	Boot string `json:"boot,omitempty"` // of the machine; empty is not known
	// the driver keeps the GPU while nobody uses it, and so its counters
	Persistent     bool    `json:"persistent,omitempty"`
	Energy         *uint64 `json:"energy_mj,omitempty"`
	ECCCorrected   *uint64 `json:"ecc_corrected,omitempty"`
	ECCUncorrected *uint64 `json:"ecc_uncorrected,omitempty"`

	probe uint64 // that told them; 0 is one of another process
}

// Keepable says whether what is found of a GPU may be remembered: it is no made up one, nor one that could not say
// which it is.
func (g *GPU) Keepable() bool { return strings.HasPrefix(g.UUID, "GPU-") }

// Holds says whether anything is remembered that an acknowledgement would end.
func (k *Kept) Holds() bool { return len(k.Findings)+len(k.Incidents) > 0 }

// Acknowledge forgets what was wrong, for whoever has the GPU's record and not the GPU. It gives what it forgets.
func (k *Kept) Acknowledge(now time.Time) (findings []KeptFinding, incidents []KeptIncident) {
	findings, incidents = k.Findings, k.Incidents
	at := max(now.UnixMilli(), k.AcknowledgedMS+1)
	for _, f := range findings { // a clock that was set back must not make it void
		at = max(at, f.last())
	}
	for _, i := range incidents {
		at = max(at, i.AtMS)
	}
	k.AcknowledgedMS, k.Findings, k.Incidents = at, nil, nil
	return findings, incidents
}

func (f *KeptFinding) last() int64 { return max(f.SinceMS, f.SeenMS) }

// Same says that a record says nothing new. Counters alone are no reason to write one; nor are the words of a finding,
// in which every process counts from its own beginning: two that watch the same GPU must come to rest.
func (k *Kept) Same(other *Kept) bool {
	same := func(a, b KeptFinding) bool {
		return a.Code == b.Code && a.SinceMS == b.SinceMS && a.SeenMS == b.SeenMS && a.Memory == b.Memory
	}
	return slices.EqualFunc(k.Findings, other.Findings, same) && slices.Equal(k.Incidents, other.Incidents) &&
		k.AcknowledgedMS == other.AcknowledgedMS && k.ResetMS == other.ResetMS
}

// Kept gives what is to be remembered of every GPU of which something is. Nothing that was injected is among it.
func (m *Machine) Kept(now time.Time) []Kept {
	var all []Kept
	for _, g := range m.gpus {
		if !g.Keepable() {
			continue
		}
		k := Kept{GPU: g.GPU, AcknowledgedMS: g.acknowledged, ResetMS: g.reset, Counters: g.counters}
		for _, c := range g.found {
			if c.Sticky && !c.injected {
				seen := max(c.last().UnixMilli(), g.acknowledged+1, g.reset+1) // also where the clock was set back since
				k.Findings = append(k.Findings, KeptFinding{c.Code, c.Reason, c.Action, c.since.UnixMilli(), seen, c.Memory})
			}
		}
		slices.SortFunc(k.Findings, func(a, b KeptFinding) int {
			return cmp.Or(cmp.Compare(a.SinceMS, b.SinceMS), cmp.Compare(a.Code, b.Code))
		})
		for number, i := range g.incidents {
			if !i.injected && now.Sub(i.at) <= m.policy.Repeat {
				k.Incidents = append(k.Incidents, KeptIncident{number, i.at.UnixMilli()})
			}
		}
		slices.SortFunc(k.Incidents, func(a, b KeptIncident) int { return cmp.Compare(a.XID, b.XID) })
		if !k.Same(&Kept{}) {
			all = append(all, k)
		}
	}
	return all
}

// AcknowledgeBy says which command acknowledges a GPU, followed by its index, in this process and those that remember
// the same.
func (m *Machine) AcknowledgeBy(command string) { m.command = command }

// Learn takes what is remembered of GPUs: when the process begins, and whenever another one has changed it. boot names
// the present run of the machine.
func (m *Machine) Learn(now time.Time, boot string, all []Kept) []Change {
	m.boot, m.kept = boot, map[string]Kept{}
	for _, k := range all {
		m.kept[k.UUID] = k
	}
	var changes []Change
	for _, g := range m.gpus {
		k, ok := m.kept[g.UUID]
		if !ok {
			continue
		}
		had := len(g.found) > 0
		acknowledged := m.adopt(now, g, &k, false)
		told := m.settle(now, g, Change{})
		for i := range told {
			if acknowledged && had && told[i].To != schema.GPUUnhealthy {
				told[i].Code, told[i].Reason, told[i].Action = acknowledgedCode, acknowledgedReason, ""
			}
		}
		changes = append(changes, told...)
	}
	return changes
}

const (
	acknowledgedCode   = "acknowledged"
	acknowledgedReason = "Somebody has acknowledged what was wrong."
)

// adopt takes what is remembered of a GPU. fresh says that this process has just begun to know it.
func (m *Machine) adopt(now time.Time, g *gpu, k *Kept, fresh bool) (acknowledged bool) {
	if k.AcknowledgedMS > g.acknowledged {
		g.acknowledged, acknowledged = k.AcknowledgedMS, true
		g.dropUntil(g.acknowledged)
		for number, i := range g.incidents {
			if i.at.UnixMilli() <= g.acknowledged {
				delete(g.incidents, number)
			}
		}
	}
	if k.ResetMS > g.reset {
		g.reset = k.ResetMS
		g.dropUntil(g.reset)
	}
	if fresh {
		g.counters = k.Counters
		g.counters.probe = 0
		// the machine was started anew
		if k.Counters.Boot != "" && m.boot != "" && k.Counters.Boot != m.boot && len(k.Findings) > 0 {
			for _, f := range k.Findings {
				g.reset = max(g.reset, f.last())
			}
		}
	}
	for _, f := range k.Findings {
		if f.last() > max(g.acknowledged, g.reset) {
			m.recall(g, &f)
		}
	}
	for _, i := range k.Incidents {
		at := time.UnixMilli(i.AtMS)
		if known, ok := g.incidents[i.XID]; ok && !known.injected && !known.at.Before(at) || i.AtMS <= g.acknowledged {
			continue
		}
		g.incident(i.XID, incident{at: at, before: fresh})
	}
	return acknowledged
}

// recall makes a finding hold that is remembered.
func (m *Machine) recall(g *gpu, f *KeptFinding) {
	since, seen := time.UnixMilli(f.SinceMS), time.UnixMilli(f.last())
	c := g.condition(f.Code)
	if c == nil || !c.Sticky || c.injected {
		g.drop(f.Code)
		c = &condition{Finding: Finding{Code: f.Code, State: schema.GPUUnhealthy, Reason: f.Reason, Action: f.Action,
			Sticky: true, Memory: f.Memory}, since: since, seen: seen}
		g.found = append(g.found, c)
		if f.Memory {
			m.fault(g.UUID, since, seen)
		}
		return
	}
	if since.Before(c.since) {
		c.since = since
	}
	if seen.After(c.last()) {
		c.seen = seen
	}
}

// dropUntil drops what was found up to a time, and begins anew where nothing is left.
func (g *gpu) dropUntil(ms int64) {
	had := len(g.found)
	g.found = slices.DeleteFunc(g.found, func(c *condition) bool { return c.last().UnixMilli() <= ms })
	if had > 0 && len(g.found) == 0 {
		g.forget(&g.last)
	}
}

// last is when there was a sign of a condition last, as far as signs are events.
func (c *condition) last() time.Time {
	if c.seen.After(c.since) {
		return c.seen
	}
	return c.since
}

// acknowledge forgets what was wrong. Others are to forget it too, where it is remembered.
func (g *gpu) acknowledge(now time.Time) {
	newest := g.newest()
	for _, i := range g.incidents {
		if !i.injected {
			newest = max(newest, i.at.UnixMilli())
		}
	}
	if newest > 0 { // a clock that was set back must not make it void
		g.acknowledged = max(now.UnixMilli(), g.acknowledged+1, newest)
	}
	g.found, g.incidents = nil, nil
	g.forget(&g.last)
}

// newest is when there was a sign of anything that is remembered; 0 where nothing is.
func (g *gpu) newest() (ms int64) {
	for _, c := range g.found {
		if c.Sticky && !c.injected {
			ms = max(ms, c.last().UnixMilli())
		}
	}
	return ms
}

// wasReset sees that a GPU was reset, or its driver loaded again: counters that only rise have fallen. They also fall
// where the driver lets a GPU go that nobody uses, which is no reset: from one probe to the next that is told apart by
// its persistence mode.
func (g *gpu) wasReset(s *Sample, probe uint64) bool {
	old := &g.counters
	if s.Lost != "" || old.probe != probe && !(old.Persistent && s.Persistent != nil && *s.Persistent) {
		return false
	}
	fell := func(a, b *uint64) bool { return a != nil && b != nil && *b < *a }
	return fell(old.Energy, s.Energy) || fell(old.ECCUncorrected, s.ECCUncorrected) ||
		fell(old.ECCCorrected, s.ECCCorrected)
}

// note remembers the counters of a sample, where it tells any.
func (g *gpu) note(now time.Time, s *Sample, probe uint64, boot string) {
	if s.Lost != "" || s.Energy == nil && s.ECCUncorrected == nil && s.ECCCorrected == nil {
		return
	}
	g.counters = Counters{AtMS: now.UnixMilli(), Boot: boot, Persistent: s.Persistent != nil && *s.Persistent,
		Energy: s.Energy, ECCCorrected: s.ECCCorrected, ECCUncorrected: s.ECCUncorrected, probe: probe}
}
