// Package gpu watches the GPUs of this machine for processes that compute on them or show them. Samples and errors of
// the driver go in; a state with a reason, its time, and what to do come out. README.md has the states, signals and
// rules.
//
// Machine decides. It is pure: it knows no driver, no process and no clock, and receives the lines of a probe with
// their times. Monitor runs the probe in a process of its own, because calls of NVIDIA's driver may hang forever, and
// answers from memory. The package must not know jobs, NATS or HTTP.
package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// Thresholds; README.md says where they come from.
const (
	cleanPolls = 3                // in a row without a sign before a degradation ends
	eventHold  = 10 * time.Minute // for which a degrading event counts as a sign

	retiredPagesSoft, retiredPagesMany = 15, 63 // degraded, unhealthy from here on
	thermalMarginMin                   = 5      // degrees Celsius to the next slowdown

	xidsMax = 64 // different XIDs of a GPU that are counted; others go under 0
)

// Machine is the state of the GPUs of one machine. It is not safe for concurrent use, and knows no clock: every call
// has a time, and times never go back by much.
type Machine struct {
	expected int    // GPUs that the machine should have; missing ones are absent
	gpus     []*gpu // in order of their indices

	driver   string
	noAnswer string // why nothing can be asked at all; empty where something can be, or nothing was tried
	absent   bool   // noAnswer says that there is no driver, rather than one that does not answer
	injected bool   // the silence is
	since    time.Time

	kept    map[string]Kept // what is remembered, by UUID
	command string          // that acknowledges a GPU, to be followed by its index; empty where nothing is remembered
}

// gpu is one of them.
type gpu struct {
	GPU
	state    schema.GPUState
	since    time.Time
	code     string
	found    []*condition
	silent   string // why it is not known how it is; empty where it is
	last     Sample
	lastAt   time.Time // zero where it was not sampled yet
	injected bool      // the last sample was altered, or is a made up one
	faulted  time.Time // when memory was last seen to be wrong

	uncorrectedFrom   *uint64 // count at the start of this process, or at the last acknowledgement
	uncorrectedBefore uint64

	xids         map[uint64]uint64 // by number, since the start
	acknowledged bool              // here, which the file has yet to be told
}

// condition is a finding that holds.
type condition struct {
	Finding
	since time.Time
	until time.Time // an event counts as a sign until then; zero where it is no event
	clean int       // polls in a row without a sign
	kept  bool      // the file has it

	injected bool
}

// sticky reports whether the condition holds until it is acknowledged.
func (c *condition) sticky() bool { return c.State == schema.GPUUnhealthy }

// Change is something that happened to a GPU.
type Change struct {
	GPU    GPU
	From   schema.GPUState
	To     schema.GPUState // equal to From where the state did not change
	Code   string
	Reason string
	Action string
	// ContextLost says that what programs had on the GPU is gone: they must be started again.
	ContextLost bool
	Injected    bool
}

// New gives a machine of which nothing is known, and which should have so many GPUs.
func New(expected int) *Machine { return &Machine{expected: expected} }

// Hello takes a probe's first line.
func (m *Machine) Hello(now time.Time, h *Hello) []Change {
	m.driver, m.noAnswer, m.absent = h.Driver, "", false
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

// Poll takes the end of a round of samples: the driver answers.
func (m *Machine) Poll() { m.noAnswer, m.absent = "", false }

// Silent records that no driver answers, with the reason, so that nothing is known of any GPU until one does. absent
// says that there is no driver, rather than one that does not answer.
func (m *Machine) Silent(now time.Time, reason string, absent, injected bool) []Change {
	if m.noAnswer == "" {
		m.since = now
	}
	m.noAnswer, m.absent, m.injected = reason, absent, injected
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
	g := &gpu{GPU: id, state: schema.GPUUnknown, since: now, silent: notAsked, xids: map[uint64]uint64{}}
	if k, ok := m.kept[id.UUID]; ok {
		g.merge(&k, false)
	}
	m.gpus = append(m.gpus, g)
	slices.SortStableFunc(m.gpus, func(a, b *gpu) int { return a.Index - b.Index })
	m.gpus = m.gpus[:min(len(m.gpus), GPUsMax)]
	return g
}

// Sample takes what the driver said of a GPU.
func (m *Machine) Sample(now time.Time, s *Sample, injected bool) []Change {
	g := m.find(now, s.gpu())
	m.noAnswer, m.absent = "", false
	g.injected, g.silent = injected, ""
	l := looking{g, s, now}
	l.memory()
	l.load()
	l.links()
	g.last, g.lastAt = *s, now
	g.age(now)
	return m.settle(now, g, Change{})
}

// XID takes an error of the driver.
func (m *Machine) XID(now time.Time, x *XID, injected bool) []Change {
	at := slices.IndexFunc(m.gpus, func(g *gpu) bool { return g.UUID == x.UUID })
	if at < 0 {
		return nil
	}
	g, e := m.gpus[at], entryOf(x.Number)
	if _, known := g.xids[x.Number]; !known && len(g.xids) >= xidsMax {
		g.xids[0]++
	} else {
		g.xids[x.Number]++
	}
	f := Finding{Code: fmt.Sprintf("xid-%d", x.Number), State: schema.GPUDegraded, Memory: e.memory, Action: e.action,
		Reason: fmt.Sprintf("XID %d: %s", x.Number, e.name)}
	told := Change{Code: f.Code, ContextLost: e.class == Restart || e.class == Quarantine}
	// of Notice the next sample has it, seconds from now: see recovery
	if e.class != Ignore && (e.class != Notice || g.last.RecoveryAction == nil) {
		if e.class == Quarantine {
			f.State = schema.GPUUnhealthy
		}
		g.add(now, &condition{Finding: f, since: now, until: now.Add(eventHold), injected: injected})
	}
	told.Reason, told.Action = sentence(f.Reason), f.Action
	return m.settle(now, g, told)
}

// Mismatch says that results of a GPU differed from those of the CPU, which has the same arithmetic.
func (m *Machine) Mismatch(now time.Time, uuid, what string, injected bool) []Change {
	for _, g := range m.gpus {
		if g.UUID == uuid {
			f := broughtMemory(broken("verify-mismatch", actReplace, "its results differ from those of the CPU: %s", what))
			g.add(now, &condition{Finding: *f, since: now, until: now, injected: injected})
			return m.settle(now, g, Change{})
		}
	}
	return nil
}

// add takes an event.
func (g *gpu) add(now time.Time, c *condition) {
	if c.Memory {
		g.faulted = now
	}
	old := g.condition(c.Code)
	if old == nil {
		g.found = append(g.found, c)
		return
	}
	old.clean, old.until, old.Reason, old.Action = 0, c.until, c.Reason, c.Action
	old.injected = old.injected && c.injected
	if c.State == schema.GPUUnhealthy && old.State != schema.GPUUnhealthy {
		// a rehearsal makes no real warning a real quarantine
		old.State, old.since, old.injected = c.State, now, c.injected
	}
}

// sign takes a rule's word on the codes that it gives: the one of found holds, the others were not seen in this poll.
func (g *gpu) sign(now time.Time, found *Finding, codes ...string) {
	for _, code := range codes {
		c := g.condition(code)
		switch {
		case found != nil && found.Code == code && c != nil:
			c.clean, c.Reason, c.Action = 0, found.Reason, found.Action
			c.injected = c.injected && g.injected
		case found != nil && found.Code == code:
			g.found = append(g.found, &condition{Finding: *found, since: now, injected: g.injected})
			if found.Memory {
				g.faulted = now
			}
		case c != nil && !c.sticky() && c.until.IsZero():
			g.passed(c)
		}
	}
}

// age lets conditions go that came of events, once these are old and the polls after are clean of them.
func (g *gpu) age(now time.Time) {
	for _, c := range slices.Clone(g.found) {
		if !c.until.IsZero() && !c.sticky() && !now.Before(c.until) {
			g.passed(c)
		}
	}
}

// passed notes a poll without a sign of a condition.
func (g *gpu) passed(c *condition) {
	if c.clean++; c.clean >= cleanPolls {
		g.drop(c.Code)
	}
}

func (g *gpu) condition(code string) *condition {
	for _, c := range g.found {
		if c.Code == code {
			return c
		}
	}
	return nil
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
	case worst != nil && worst.State == schema.GPUUnhealthy: // a broken GPU stays broken while no driver answers
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
	told := from != to || code != g.code
	if c := happened.Code; c == "" && (!told || g.silent == notAsked && from == to) {
		return nil // nothing is known before the first answer, or before it fails to come
	}
	g.code = code
	c := happened
	if c.Code == "" {
		c.Code, c.Reason, c.Action = code, reason, action
	}
	c.GPU, c.From, c.To, c.Injected = g.GPU, from, to, m.isInjected(g)
	c.ContextLost = c.ContextLost || code != "" && g.last.Lost != ""
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
	var others []string
	for _, c := range g.found {
		if c != worst {
			others = append(others, c.Code)
		}
	}
	if others != nil {
		reason += "; besides: " + strings.Join(others, ", ")
	}
	action = worst.Action
	switch {
	case !worst.sticky():
	case m.command != "" && !worst.injected:
		action += fmt.Sprintf(" When that is done, acknowledge it on that machine: %s %d.", m.command, g.Index)
	default:
		action += " When that is done, acknowledge it: kill -USR1 the ps or trainer that watches it."
	}
	return worst.Code, sentence(reason), action
}

const actAnswer = "See whether nvidia-smi answers and what the kernel's log says (dmesg, lines with NVRM); reboot the " +
	"machine if it does not."

// sentence writes a reason with a capital letter and a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// Suspect says whether memory of a GPU was seen to be wrong since a time.
func (m *Machine) Suspect(uuid string, since time.Time) bool {
	return slices.ContainsFunc(m.gpus, func(g *gpu) bool {
		return g.UUID == uuid && !g.faulted.IsZero() && !g.faulted.Before(since)
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

// Acknowledge records that an operator has dealt with a GPU: earlier findings are dropped, and what is still wrong
// returns with the next sample. uuid may be an unambiguous prefix, or an index.
func (m *Machine) Acknowledge(now time.Time, uuid string) ([]Change, error) {
	g, err := m.pick(uuid)
	if err != nil {
		return nil, err
	}
	if len(g.found) == 0 {
		return nil, fmt.Errorf("GPU %s: nothing is wrong with it", g.UUID)
	}
	g.found, g.acknowledged = nil, true
	g.forget()
	changes := m.settle(now, g, Change{})
	for i := range changes {
		changes[i].Code, changes[i].Reason = acknowledgedCode, acknowledgedReason
	}
	return changes, nil
}

const (
	acknowledgedCode   = "acknowledged"
	acknowledgedReason = "What was wrong has been acknowledged."
)

// forget resets the counts when an operator acknowledges earlier findings.
func (g *gpu) forget() {
	g.uncorrectedFrom, g.uncorrectedBefore = nil, 0
	if s := g.last.ECCUncorrected; s != nil {
		g.uncorrectedFrom = ptr(*s)
	}
}

// pick gives the GPU that a name is of.
func (m *Machine) pick(name string) (*gpu, error) {
	var all []GPU
	for _, g := range m.gpus {
		all = append(all, g.GPU)
	}
	i, err := pick(all, name)
	if err != nil {
		return nil, fmt.Errorf("GPU %q: %w", name, err)
	}
	return m.gpus[i], nil
}

// Merge brings together what the file holds and what is known here, and gives what the file shall hold, and whether that
// is news to it; write says that it is written now. What this process has in the file and is not there any more was
// acknowledged by another process. boot names the present run of the machine: what was found in another one has ended
// with that.
func (m *Machine) Merge(now time.Time, boot string, all []Kept, write bool) (changes []Change, to []Kept, news bool) {
	m.kept = map[string]Kept{}
	for _, k := range all {
		if k.Boot != "" && boot != "" && k.Boot != boot && len(k.Findings) > 0 {
			k.Findings, news = nil, true
		}
		m.kept[k.UUID] = k
	}
	for _, g := range m.gpus {
		if !g.keepable() {
			continue
		}
		k, had := m.kept[g.UUID], len(g.found) > 0
		k.GPU = g.GPU
		acknowledged, more := g.merge(&k, write)
		if news = news || more; more {
			k.Boot = boot
		}
		told := m.settle(now, g, Change{})
		for i := range told {
			if acknowledged && had && told[i].To != schema.GPUUnhealthy {
				told[i].Code, told[i].Reason, told[i].Action = acknowledgedCode, acknowledgedReason, ""
			}
		}
		m.kept[g.UUID], changes = k, append(changes, told...)
	}
	return changes, slices.Collect(maps.Values(m.kept)), news
}

// merge takes what the file holds of a GPU, and adds to it what it lacks. It reports whether another process has
// acknowledged something, and whether the file lacked something.
func (g *gpu) merge(k *Kept, write bool) (acknowledged, news bool) {
	if g.acknowledged {
		news = len(k.Findings) > 0
		k.Findings, g.acknowledged = nil, !write && news
	}
	known := len(g.found)
	g.found = slices.DeleteFunc(g.found, func(c *condition) bool {
		return c.kept && !slices.ContainsFunc(k.Findings, func(f Finding) bool { return f.Code == c.Code })
	})
	if acknowledged = len(g.found) < known; acknowledged && len(g.found) == 0 {
		g.forget()
	}
	for _, f := range k.Findings {
		g.recall(&f)
	}
	for _, c := range g.found {
		if c.sticky() && !c.injected && !c.kept {
			c.SinceMS = c.since.UnixMilli()
			k.Findings = append(slices.Clone(k.Findings), c.Finding)
			c.kept, news = write, true
		}
	}
	return acknowledged, news
}

// unkept records that the file has nothing of what is known here, so that all of it is written again.
func (m *Machine) unkept() {
	for _, g := range m.gpus {
		for _, c := range g.found {
			c.kept = false
		}
	}
}

// recall makes a finding hold that is remembered.
func (g *gpu) recall(f *Finding) {
	since := time.UnixMilli(f.SinceMS)
	c := g.condition(f.Code)
	if c == nil || !c.sticky() || c.injected {
		g.drop(f.Code)
		c = &condition{Finding: *f, since: since}
		c.State = schema.GPUUnhealthy
		g.found = append(g.found, c)
		if f.Memory && since.After(g.faulted) {
			g.faulted = since
		}
	}
	if c.kept = true; since.Before(c.since) {
		c.since = since
	}
}
