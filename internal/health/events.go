package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// XID takes an error of the driver. The same error may come by an event and by the kernel's log: it counts once.
func (m *Machine) XID(now time.Time, x *XID) []Change {
	g := m.of(x)
	if g == nil || g.paired(now, x, m.policy.Pair) {
		return nil
	}
	g.count(x.Number)
	e := entryOf(x.Number)
	f := Finding{Code: xidCode(x.Number), State: schema.GPUDegraded, Memory: e.memory, Action: e.action,
		Reason: fmt.Sprintf("XID %d: %s", x.Number, e.name)}
	// of Notice the next sample has it, seconds from now: see lookRecovery
	if e.class == Ignore || e.class == Notice && g.sampled && g.last.RecoveryAction != nil {
		return m.settle(now, g, Change{Code: f.Code, Reason: sentence(f.Reason), Action: f.Action})
	}
	restart := e.class == Restart
	switch e.class {
	case Quarantine:
		f.State, f.Sticky, restart = schema.GPUUnhealthy, true, true
	case Restart:
		if g.repeated(now, x, &m.policy) {
			f.State, f.Sticky, f.Action = schema.GPUUnhealthy, true, actReset
			f.Reason += fmt.Sprintf(", for the second time within %s", short(m.policy.Repeat))
		}
	}
	if e.memory {
		from := g.lastAt
		if from.IsZero() || from.After(now) {
			from = now
		}
		m.fault(g.UUID, from, now)
	}
	g.add(now, &condition{Finding: f, since: now, seen: now, until: now.Add(m.policy.EventHold), event: true,
		injected: x.Source == SourceInjected})
	return m.settle(now, g, Change{Code: f.Code, Reason: sentence(f.Reason), Action: f.Action, ContextLost: restart,
		Alert: e.class == Unlisted})
}

// repeated notes an incident of a XID of class Restart, and says whether there was one within Policy.Repeat. What was
// running then must have ended since, or it is a burst: time tells, but for what was before this process. An injected
// incident makes no real one a repeat.
func (g *gpu) repeated(now time.Time, x *XID, p *Policy) bool {
	last, again := g.incidents[x.Number]
	injected := x.Source == SourceInjected
	again = again && (injected || !last.injected)
	if !again || last.injected || !injected {
		g.incident(x.Number, incident{at: now, injected: injected}) // of a burst the last one counts
	}
	burst := p.Burst
	if last.before {
		burst = p.Pair
	}
	return again && now.Sub(last.at) > burst && now.Sub(last.at) <= p.Repeat
}

func (g *gpu) incident(number uint64, i incident) {
	if g.incidents == nil {
		g.incidents = map[uint64]incident{}
	}
	g.incidents[number] = i
}

// of finds the GPU that a XID is of.
func (m *Machine) of(x *XID) *gpu {
	for _, g := range m.gpus {
		if x.UUID != "" && g.UUID == x.UUID || x.UUID == "" && x.PCI != "" && SamePCI(g.PCI, x.PCI) {
			return g
		}
	}
	return nil
}

// SamePCI compares addresses of PCI devices in the forms that the driver uses: with a domain of four or eight digits,
// with or without a function.
func SamePCI(a, b string) bool { return shortPCI(a) == shortPCI(b) && shortPCI(a) != "" }

func shortPCI(text string) string {
	text = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(text)), "pci:")
	text, _, _ = strings.Cut(text, ".")
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return ""
	}
	for i := range parts {
		if parts[i] = strings.TrimLeft(parts[i], "0"); parts[i] == "" {
			parts[i] = "0"
		}
	}
	return strings.Join(parts, ":")
}

// paired says that the other source has told of this error already.
func (g *gpu) paired(now time.Time, x *XID, within time.Duration) bool {
	g.recent = slices.DeleteFunc(g.recent, func(s seen) bool { return now.Sub(s.at) > within })
	for i, s := range g.recent {
		if s.number == x.Number && s.source != x.Source && x.Source != SourceInjected && s.source != SourceInjected {
			g.recent = slices.Delete(g.recent, i, i+1)
			return true
		}
	}
	const recentMax = 256 // a burst of more is counted twice, which harms nobody
	if len(g.recent) < recentMax {
		g.recent = append(g.recent, seen{x.Number, x.Source, now})
	}
	return false
}

func (g *gpu) count(number uint64) {
	if g.xids == nil {
		g.xids = map[uint64]uint64{}
	}
	if _, known := g.xids[number]; !known && len(g.xids) >= xidsMax {
		number = 0
	}
	g.xids[number]++
}

// fault remembers that memory was wrong at some time between from and to.
func (m *Machine) fault(uuid string, from, to time.Time) {
	m.faults = append(m.faults, fault{uuid, from, to})
	if len(m.faults) > faultsMax { // the two oldest become one that spans both: nothing is forgotten
		a, b := m.faults[0], m.faults[1]
		if a.uuid != b.uuid {
			b.uuid = ""
		}
		b.from = a.from
		if a.to.After(b.to) {
			b.to = a.to
		}
		m.faults = append(m.faults[:0], append([]fault{b}, m.faults[2:]...)...)
	}
}

// Suspect says whether memory of a GPU was wrong at some time between from and to. uuid empty asks of any GPU.
func (m *Machine) Suspect(uuid string, from, to time.Time) bool {
	return slices.ContainsFunc(m.faults, func(f fault) bool {
		return (uuid == "" || f.uuid == "" || f.uuid == uuid) && !f.to.Before(from) && !f.from.After(to)
	})
}

// May gives nil where a GPU may be used, else why not. uuid is as in Acknowledge; a GPU of which nothing is known may
// be.
func (m *Machine) May(uuid string) error {
	g, err := m.pick(uuid)
	if err != nil || g.state != schema.GPUUnhealthy {
		return nil //nolint:nilerr // a GPU that is not known is not known to be broken
	}
	_, reason, action := m.words(g)
	return fmt.Errorf("GPU %d (%s, %s) is unhealthy since %s: %s %s", g.Index, g.Name, g.UUID,
		g.since.UTC().Format(time.RFC3339), reason, action)
}
