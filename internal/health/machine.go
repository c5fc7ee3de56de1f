package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// Machine is what is thought of the GPUs of one machine. It is not safe for concurrent use, and knows no clock: times
// come in with every call and never run backwards by much.
type Machine struct {
	policy Policy
	rules  []rule
	gpus   []*gpu // in order of their indices

	driver string
	nvml   string
	nobody string // why nothing can be asked at all; empty where something can be, or nothing was tried
	absent bool   // nobody says that there is no driver, rather than one that does not answer
	since  time.Time

	injected bool // the silence is

	probe   uint64          // counts probes, from 1
	boot    string          // names the present run of the machine
	kept    map[string]Kept // what is remembered, by UUID
	command string          // that acknowledges a GPU, to be followed by its index; empty where nothing is remembered

	faults []fault // memory faults, oldest first; at most faultsMax
}

// fault is a time within which memory went wrong.
type fault struct {
	uuid     string
	from, to time.Time
}

// faultsMax bounds the memory faults that are remembered; the oldest are merged.
const faultsMax = 256

// gpu is one of them.
type gpu struct {
	GPU
	state    schema.GPUState
	since    time.Time
	found    []*condition
	silent   string // why it is not known how it is; empty where it is
	last     Sample
	lastAt   time.Time
	sampled  bool
	injected bool // the last sample was altered, or is a made up one
	code     string

	uncorrectedFrom   *uint64 // count that this process, or who acknowledged it, started from
	uncorrectedBefore uint64
	corrected         window
	replays           window
	linkErrors        window
	linksSeen         uint64
	fabricSince       time.Time
	slow              slots

	xids      map[uint64]uint64   // by number, since the start; at most xidsMax numbers
	incidents map[uint64]incident // of class Restart: the last one
	recent    []seen              // XIDs of the last Policy.Pair, to pair the two sources

	// milliseconds since 1970: what was found up to then is forgotten, in this and in other processes
	acknowledged int64
	reset        int64    // the same, for a reset
	counters     Counters // as they were told last
}

// incident is a XID of class Restart.
type incident struct {
	at       time.Time
	before   bool // before this process knew the GPU: what ran on it then is gone
	injected bool
}

// xidsMax bounds the different XIDs of a GPU that are counted; others go under 0.
const xidsMax = 64

type seen struct {
	number uint64
	source string
	at     time.Time
}

// condition is a finding that holds.
type condition struct {
	Finding
	since time.Time
	seen  time.Time // the last event; zero where it is no event, or there was one only
	until time.Time // an event counts as a sign until then
	event bool
	clean int // polls in a row without a sign

	injected bool
}

// Change is something that happened to a GPU.
type Change struct {
	At     time.Time
	GPU    GPU
	From   schema.GPUState
	To     schema.GPUState // equal to From where the state did not change
	Code   string
	Reason string
	Action string
	// Restart says that what runs on the GPU must end, rather than go on with wrong values: it has become unhealthy, or
	// ContextLost.
	Restart bool
	// ContextLost says that what programs had on the GPU is gone: they must be started again.
	ContextLost bool
	// Alert says that the XID is not in the table.
	Alert    bool
	Injected bool
}

// New gives a machine of which nothing is known.
func New(p Policy) *Machine {
	return &Machine{policy: p, rules: rules(), probe: 1}
}

// Hello takes a probe's first line.
func (m *Machine) Hello(now time.Time, h *Hello) []Change {
	m.driver, m.nvml, m.nobody, m.absent = h.Driver, h.NVML, "", false
	m.probe++
	for _, g := range m.gpus { // of an earlier probe
		if !slices.ContainsFunc(h.GPUs, func(id GPU) bool { return id.UUID == g.UUID }) {
			g.add(now, &condition{Finding: *broken("gpu-lost", actPower, "the driver does not list the GPU any more"),
				since: now})
		}
	}
	for _, g := range h.GPUs {
		m.find(now, g)
	}
	return m.settleAll(now)
}

// Poll takes the end of a round of samples: somebody answers.
func (m *Machine) Poll() { m.nobody, m.absent = "", false }

// None takes a probe's word that there is nothing to ask.
func (m *Machine) None(now time.Time, n *None) []Change {
	m.injected = false
	return m.nobodyAnswers(now, n.Reason, !n.Driver)
}

// Silent says that the driver does not answer: nothing is known of any GPU until it does.
func (m *Machine) Silent(now time.Time, reason string, injected bool) []Change {
	m.injected = injected
	return m.nobodyAnswers(now, reason, false)
}

func (m *Machine) nobodyAnswers(now time.Time, reason string, absent bool) []Change {
	if m.nobody == "" {
		m.since = now
	}
	m.nobody, m.absent = reason, absent
	for _, g := range m.gpus {
		g.silent = reason
	}
	return m.settleAll(now)
}

// find gives the GPU of that UUID, or takes it in.
func (m *Machine) find(now time.Time, id GPU) *gpu {
	for _, g := range m.gpus {
		if g.UUID == id.UUID {
			g.GPU = id
			return g
		}
	}
	g := &gpu{GPU: id, state: schema.GPUUnknown, since: now, silent: notAsked}
	if k, ok := m.kept[id.UUID]; ok {
		m.adopt(now, g, &k, true)
	}
	m.gpus = append(m.gpus, g)
	slices.SortStableFunc(m.gpus, func(a, b *gpu) int { return a.Index - b.Index })
	if len(m.gpus) > GPUsMax {
		m.gpus = m.gpus[:GPUsMax]
	}
	return g
}

// Sample takes what the driver said of a GPU.
func (m *Machine) Sample(now time.Time, s *Sample, injected bool) []Change {
	g := m.find(now, s.GPU)
	m.nobody, m.absent = "", false
	g.injected = injected
	g.silent = ""
	before := g.lastAt
	if !injected && g.wasReset(s, m.probe) {
		g.reset = max(g.reset, g.newest())
		g.found = nil
		g.forget(s)
	}
	if !injected {
		g.note(now, s, m.probe, m.boot)
	}
	g.last, g.lastAt, g.sampled = *s, now, true
	for _, r := range m.rules {
		told, found := r.look(&m.policy, g, s, now)
		if !told {
			continue
		}
		if found != nil && found.Memory && !g.has(found.Code) {
			from := before
			if from.IsZero() {
				from = now
			}
			m.fault(g.UUID, from, now)
		}
		g.sign(now, r.codes, found, m.policy.CleanPolls, injected)
	}
	g.age(now, m.policy.CleanPolls)
	return m.settle(now, g, Change{})
}

// forget begins to count anew: after a reset, and where somebody acknowledges what was. Incidents stay through a reset.
func (g *gpu) forget(s *Sample) {
	g.uncorrectedFrom, g.uncorrectedBefore = nil, 0
	if s != nil && s.ECCUncorrected != nil {
		from := *s.ECCUncorrected
		g.uncorrectedFrom = &from
	}
	g.linksSeen = 0
	g.fabricSince = time.Time{}
	g.corrected, g.replays, g.linkErrors, g.slow = window{}, window{}, window{}, slots{}
}

func (g *gpu) has(code string) bool { return g.condition(code) != nil }

func (g *gpu) condition(code string) *condition {
	for _, c := range g.found {
		if c.Code == code {
			return c
		}
	}
	return nil
}

// sign takes a rule's word on the codes that it gives: the one of found holds, the others were not seen in this poll.
func (g *gpu) sign(now time.Time, codes []string, found *Finding, cleanPolls int, injected bool) {
	for _, code := range codes {
		c := g.condition(code)
		switch {
		case found != nil && found.Code == code && c != nil:
			c.clean, c.Reason, c.Action = 0, found.Reason, found.Action
			c.injected = c.injected && injected
		case found != nil && found.Code == code:
			g.found = append(g.found, &condition{Finding: *found, since: now, injected: injected})
		case c != nil && !c.Sticky && !c.event:
			if c.clean++; c.clean >= cleanPolls {
				g.drop(code)
			}
		}
	}
}

// age lets conditions go that came of events, once these are old and the polls after are clean of them.
func (g *gpu) age(now time.Time, cleanPolls int) {
	for _, c := range slices.Clone(g.found) {
		if !c.event || c.Sticky || now.Before(c.until) {
			continue
		}
		if c.clean++; c.clean >= cleanPolls {
			g.drop(c.Code)
		}
	}
}

func (g *gpu) drop(code string) {
	g.found = slices.DeleteFunc(g.found, func(c *condition) bool { return c.Code == code })
}

// worst is the condition that the state comes of: the worst, and of these the one that has held longest.
func (g *gpu) worst() *condition {
	var worst *condition
	for _, c := range g.found {
		if worst == nil || c.State == schema.GPUUnhealthy && worst.State != schema.GPUUnhealthy {
			worst = c
		}
	}
	return worst
}

// settleAll settles every GPU.
func (m *Machine) settleAll(now time.Time) []Change {
	var all []Change
	for _, g := range m.gpus {
		all = append(all, m.settle(now, g, Change{})...)
	}
	return all
}

// notAsked is why the state of a GPU is not known that was listed just now.
const notAsked = "it was not asked yet"

// settle gives a GPU its state, and says how it changed. happened is an event that is told in any case, where its code
// is not empty.
func (m *Machine) settle(now time.Time, g *gpu, happened Change) []Change {
	from, to := g.state, schema.GPUHealthy
	worst := g.worst()
	switch {
	case worst != nil && worst.State == schema.GPUUnhealthy: // what is known to be broken stays so while nobody answers
		to = schema.GPUUnhealthy
	case g.silent != "":
		to = schema.GPUUnknown
	case worst != nil:
		to = schema.GPUDegraded
	}
	if from != to {
		g.state, g.since = to, now
		if to == schema.GPUUnhealthy && worst.since.Before(now) { // remembered
			g.since = worst.since
		}
	}
	code, reason, action := m.words(g)
	if g.silent == notAsked && from == to && happened.Code == "" {
		return nil // nothing is known before the first answer, or before it fails to come
	}
	told := from != to || code != g.code
	g.code = code
	c := happened
	if c.Code == "" && !told {
		return nil
	}
	if c.Code == "" {
		c.Code, c.Reason, c.Action = code, reason, action
	}
	c.At, c.GPU, c.From, c.To, c.Injected = now, g.GPU, from, to, m.isInjected(g)
	c.ContextLost = c.ContextLost || code != "" && g.last.Lost != ""
	c.Restart = c.ContextLost || to == schema.GPUUnhealthy && from != to
	return []Change{c}
}

// isInjected says that something of a GPU's state was injected.
func (m *Machine) isInjected(g *gpu) bool {
	return g.injected || g.silent != "" && m.injected ||
		slices.ContainsFunc(g.found, func(c *condition) bool { return c.injected })
}

// words are the code, reason and action of a GPU's state.
func (m *Machine) words(g *gpu) (code, reason, action string) {
	worst := g.worst()
	switch {
	case worst == nil && g.silent == "" || g.state == schema.GPUHealthy:
		return "", "", ""
	case g.state == schema.GPUUnknown:
		return "no-answer", sentence(g.silent), actAnswer
	}
	reason = worst.Reason
	if n := len(g.found) - 1; n > 0 {
		var others []string
		for _, c := range g.found {
			if c != worst {
				others = append(others, c.Code)
			}
		}
		reason += "; besides: " + strings.Join(others, ", ")
	}
	action = worst.Action
	switch {
	case !worst.Sticky:
	case m.command != "" && !worst.injected:
		action += fmt.Sprintf(" When that is done, acknowledge it on that machine: %s %d.", m.command, g.Index)
	default:
		action += " When that is done, acknowledge it: kill -USR1 the ps or trainer that watches it."
	}
	return worst.Code, sentence(reason), action
}

const actAnswer = "See whether nvidia-smi answers and what the kernel's log says (dmesg, lines with NVRM); " +
	"reboot the " +
	"machine if it does not."

// sentence writes a reason with a capital letter and a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// Mismatch says that results of a GPU differed from those of the CPU, which has the same arithmetic.
func (m *Machine) Mismatch(now time.Time, uuid, what string, injected bool) []Change {
	for _, g := range m.gpus {
		if g.UUID == uuid {
			m.fault(uuid, now, now)
			g.add(now,
				&condition{
					Finding: *broughtMemory(broken("verify-mismatch", actReplace, "its results differ from those of the CPU: %s",
						what)), since: now, event: true, injected: injected,
				})
			return m.settle(now, g, Change{})
		}
	}
	return nil
}

func (g *gpu) add(now time.Time, c *condition) {
	if old := g.condition(c.Code); old != nil {
		old.clean, old.until, old.seen, old.Reason, old.Action = 0, c.until, now, c.Reason, c.Action
		old.injected = old.injected && c.injected
		if c.State == schema.GPUUnhealthy && old.State != schema.GPUUnhealthy {
			// a rehearsal makes no real warning a real quarantine
			old.State, old.Sticky, old.since, old.injected = c.State, c.Sticky, now, c.injected
		}
		return
	}
	g.found = append(g.found, c)
}

// Acknowledge says that somebody has seen to a GPU: what was wrong is forgotten, and what still is comes back with the
// next sample. uuid may be an unambiguous beginning, or an index.
func (m *Machine) Acknowledge(now time.Time, uuid string) ([]Change, error) {
	g, err := m.pick(uuid)
	if err != nil {
		return nil, err
	}
	if len(g.found) == 0 {
		return nil, fmt.Errorf("GPU %s: nothing is wrong with it", g.UUID)
	}
	g.acknowledge(now)
	changes := m.settle(now, g, Change{})
	for i := range changes {
		changes[i].Code, changes[i].Reason = acknowledgedCode, acknowledgedReason
	}
	return changes, nil
}

func (m *Machine) pick(name string) (*gpu, error) {
	var found []*gpu
	var known []string
	for _, g := range m.gpus {
		known = append(known, g.UUID)
		if g.UUID == name || fmt.Sprint(g.Index) == name {
			return g, nil
		}
		if name != "" && strings.HasPrefix(strings.ToLower(g.UUID), strings.ToLower(name)) {
			found = append(found, g)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("GPU %q: it could be %s or %s: want more of the UUID", name, found[0].UUID, found[1].UUID)
	case known == nil:
		return nil, fmt.Errorf("GPU %q: this machine has none that answers", name)
	}
	return nil, fmt.Errorf("GPU %q: want a UUID of %s, its beginning, or an index", name, strings.Join(known, ", "))
}
