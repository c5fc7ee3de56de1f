// Package gpu watches the GPUs of this machine for whoever computes on them or shows them: samples of what the driver
// says and the errors that it reports go in, and a state with a reason, the time since when, and what to do come out.
//
// Machine (machine.go, rules.go) decides. It is pure: it knows no driver, no process and no clock, and is fed lines of a
// probe (sample.go) with the time at which each came. Monitor (monitor.go) runs the probe (child.go) and answers from
// memory; state.go has the file of what outlives a process, and inject.go makes faults up. command.go has what the
// commands that compute on GPUs or show them have in common: flags and subcommands.
//
// # The child process
//
// Calls of NVIDIA's driver may hang for ever. So nothing in a ps or trainer ever calls it. A child process does, the
// probe (nvml.go, run as ps gpu-probe), which writes what it hears as lines of JSON. A probe that says nothing
// for eight seconds makes all GPUs Unknown; after three times that it is killed and another one started, with growing
// pauses. One that hangs in the kernel cannot be killed: it is left behind, at most three of them. A probe ends by
// itself when its standard input does, so that none is left over where its parent was killed. It has the rights of its
// parent.
//
// Faults are made up on GPUs that are there or, on a machine without a driver, on ones that are made up too and say so
// in their names. What follows from a fault is the same as if it were real, and marked as injected everywhere.
//
// # States
//
//	absent      expected (Policy.Expected) and not there
//	unknown     the driver does not answer, or was not asked yet
//	healthy     nothing is wrong
//	degraded    it works, slower or with a warning; goes after three polls without a sign (Policy.CleanPolls)
//	unhealthy   it may compute wrongly or not at all; stays until it is acknowledged or reset
//
// Every sign is a finding with a code, which is a label of metrics. The state is that of the worst finding, of several
// the one that has held longest; the others are named in the reason. A GPU that was unhealthy stays so while nobody
// answers. A reset is seen by counters that only rise having fallen: energy, and ECC errors since the driver took the
// GPU. From one probe to the next they count only where persistence mode is on: without it the driver lets a GPU go
// that nobody uses. A reset ends all findings, and so does acknowledging (ps gpu-ack, or SIGUSR1 to a ps or trainer);
// what is still wrong comes back with the next sample.
//
// # What outlives a process
//
// A restart would make a broken GPU count as well, and a XID that ends the process could never come twice. So a file
// (File) remembers, for all processes of a user on a machine: findings that stay, incidents of class restart, until when
// somebody has acknowledged or the GPU was reset, and the counters that tell the next reset. Nothing that was injected
// or is made up is among it, and an injected incident makes no real one a repeat. Each process learns what is remembered
// before its first word on a GPU, and whenever another one has changed it. It drops what was found up to the time of an
// acknowledgement or a reset, and takes the rest over. That the machine was started anew is a reset.
//
// The file is one line of JSON, of mode 0600: a version, and a Kept for every GPU of which something is remembered. It is
// made when there is something to remember. Whoever changes it holds a lock (flock) on a file beside it, reads it, and
// puts a new one in its place; whoever reads it needs no lock. It is read strictly: a damaged one is set aside, as
// FILE.damaged, when there is something to write, and one of a newer version is never written to. A GPU of which nothing
// holds is dropped after thirty days.
//
// # Signals
//
// What the driver does not tell, because the GPU lacks it or the driver's library the function, is nil: it is no
// sample, and neither confirms a finding nor counts as a poll without it.
//
//	code                      state      when                                                    source of the threshold
//	gpu-lost                  unhealthy  any call says that the GPU is lost, or it is not listed any more
//	gpu-reset-required        unhealthy  any call says that the GPU must be reset
//	recovery-reset, -reboot   unhealthy  field 230 of the driver, GPU recovery action 1/6, 2/7   the driver's own advice
//	recovery-drain, -fabric   degraded   the same, 3 and 4, 5
//	ecc-uncorrectable         unhealthy  uncorrectable memory errors rose since this process began
//	ecc-uncorrectable-before  degraded   there were some when it began
//	ecc-correctable-rate      degraded   over 100 corrected memory errors in ten minutes         own choice
//	sram-threshold            unhealthy  the driver's threshold for its caches is passed         the driver's own
//	remap-failed              unhealthy  a memory row could not be remapped                      NVIDIA's memory error guide
//	remap-pending             degraded   a memory row will be remapped at the next reset         the same
//	retired-pages-many        unhealthy  63 memory pages are retired, or more                    DCGM's hardware limits
//	retired-pages             degraded   15 or more                                              DCGM's soft limit
//	retired-pending           degraded   a page will be retired at the next reset                NVIDIA's memory error guide
//	hw-slowdown               degraded   slowed by the hardware for 6 of the last 10 minutes     own choice
//	thermal-margin            degraded   under 5 degrees to the next slowdown                    own choice
//	pcie-replays              degraded   over 8 repeated transfers a minute                      DCGM's hardware limits
//	pcie-width                degraded   fewer lanes than GPU and slot have
//	nvlink-down               degraded   a link that was up is not
//	nvlink-errors             degraded   any replay or recovery within a minute                  DCGM's hardware limits
//	fabric-setup              degraded   the NVLink fabric is not set up after five minutes      own choice
//	fabric-failed             unhealthy  its setup failed: no kernel starts; goes by itself when it is fixed
//	fabric-health             degraded   the driver's mask names a fault of the fabric
//	memory-others             degraded   processes that are not ours hold over a tenth of memory own choice
//	xid-N                     see below
//	verify-mismatch           unhealthy  results differed from those of the CPU, which has the same arithmetic
//	no-answer                 unknown    the driver does not answer
//	gpu-missing, no-driver    absent     fewer GPUs than expected
//
// Power, temperature, clocks and utilisation are told and not judged: what is normal depends on the work.
//
// # XIDs
//
// The driver reports errors by number, as events. What follows is what NVIDIA's catalog of XIDs asks for at once
// (xids.tsv, with all numbers that it documents, and the date as of which it is).
//
//	class        the catalog asks for                             what follows
//	quarantine   a reset of the GPU or the machine, power cables  unhealthy
//	restart      a restart of the application                     what runs on the GPU must be started again; degraded
//	                                                              for ten minutes, unhealthy on a repeat within 24 hours
//	degrade      a look at NVLink, an update, a virtual machine   degraded for ten minutes
//	unlisted     nothing, or the vendor's support                 the same, with an alert
//	notice       XID 154                                          nothing by itself: the recovery action has changed, to
//	                                                              worse or to none, and decides; degraded for ten
//	                                                              minutes where the driver does not tell it
//	ignore       nothing                                          it is counted and logged
//
// Of class restart, equal XIDs within a minute are one incident: the driver reports some once for every channel. Where
// the last one was before this process, five seconds are: what ran then has ended, and a program that crashes every
// half minute is to be noticed. Incidents stay through a reset, and end with an acknowledgement. 48, 64, 94, 95, 140, 171 and
// 172 say that memory was wrong, and so do uncorrectable ECC errors, the threshold for caches and a failed verification:
// what was computed since the last sample before is suspect (Machine.Suspect).
//
// # What it leaves out
//
// MIG: instances are not looked at, only the GPU they are of. NVSwitches and their SXIDs. Links of NVLink 5 by their
// own counters. XIDs of which the driver sends no event: the kernel's log, which often root alone may read, is not
// read. Errors while no process watches. A reset of a GPU without persistence mode, while no process watches:
// the GPU stays unhealthy until it is acknowledged.
package gpu

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// Policy holds every threshold. DefaultPolicy gives the values that the package comment explains.
type Policy struct {
	// Expected is how many GPUs the machine should have; those that are not there are Absent. 0 expects none.
	Expected int
	// CleanPolls is how many polls in a row must be without a sign before a Degraded goes.
	CleanPolls int
	// EventHold is how long an event that degrades counts as a sign.
	EventHold time.Duration
	// Repeat is the time within which a second XID of class Restart quarantines.
	Repeat time.Duration
	// Burst is the time within which equal XIDs are one incident: the driver reports some once for every channel.
	Burst time.Duration
	// BurstBefore is the same, where the last one was before this process: what ran then has ended.
	BurstBefore time.Duration

	CorrectedMax     uint64        // correctable ECC errors in CorrectedSpan
	CorrectedSpan    time.Duration //
	RetiredPagesSoft uint64        // degraded from here on
	RetiredPagesMax  uint64        // unhealthy from here on
	SlowdownSpan     time.Duration // hardware slowdown for SlowdownMax of the last SlowdownSpan
	SlowdownMax      time.Duration //
	ThermalMarginMin int           // degrees Celsius to the next slowdown
	PCIeReplaysMax   uint64        // in RateSpan
	LinkErrorsMax    uint64        // NVLink replays and recoveries in RateSpan
	RateSpan         time.Duration //
	FabricSetup      time.Duration // that the NVLink fabric may take to be set up
	OthersShareMax   float64       // of a GPU's memory that processes other than ours may hold
}

// DefaultPolicy is the policy of the package comment.
func DefaultPolicy() Policy {
	return Policy{
		CleanPolls:  3,
		EventHold:   10 * time.Minute,
		Repeat:      24 * time.Hour,
		Burst:       time.Minute,
		BurstBefore: 5 * time.Second,

		CorrectedMax: 100, CorrectedSpan: 10 * time.Minute,
		RetiredPagesSoft: 15, RetiredPagesMax: 63,
		SlowdownSpan: 10 * time.Minute, SlowdownMax: 6 * time.Minute,
		ThermalMarginMin: 5,
		PCIeReplaysMax:   8, LinkErrorsMax: 0, RateSpan: time.Minute,
		FabricSetup:    5 * time.Minute,
		OthersShareMax: 0.1,
	}
}

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
		told, found := r.look(&looking{&m.policy, g, s, now})
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

// window remembers a counter over a span of time, so that its rise can be told. It holds at most windowPoints points:
// one that comes within a windowPoints-th of the span after another takes its place.
type window struct {
	points []point
}

type point struct {
	at    time.Time
	value uint64
}

const windowPoints = 60

// rise adds a value and says by how much the counter has risen over the last span. A counter that fell, since the GPU
// was reset, begins anew.
func (w *window) rise(now time.Time, value uint64, span time.Duration) uint64 {
	if n := len(w.points); n > 0 && value < w.points[n-1].value {
		w.points = w.points[:0]
	}
	old := 0
	for old < len(w.points) && now.Sub(w.points[old].at) > span {
		old++
	}
	w.points = append(w.points[:0], w.points[old:]...)
	if n := len(w.points); n < 2 || now.Sub(w.points[n-2].at) >= span/windowPoints {
		w.points = append(w.points, point{now, value})
	} else {
		w.points[n-1] = point{now, value}
	}
	return value - w.points[0].value
}

// slots remember for how much of a span something was so, in slots of a windowPoints-th of it: of each the share of
// samples that said so.
type slots struct {
	all [windowPoints]slot
}

type slot struct {
	number  int64 // of slots from 1970
	so, all int64 // samples
}

// add adds a sample and says for how much of the last span it was so.
func (s *slots) add(now time.Time, so bool, span time.Duration) time.Duration {
	width := int64(span) / windowPoints
	number := now.UnixNano() / width
	at := &s.all[number%windowPoints]
	if at.number != number {
		*at = slot{number: number}
	}
	at.all++
	if so {
		at.so++
	}
	var sum int64
	for _, at := range s.all {
		if at.so > 0 && number-at.number < windowPoints {
			sum += width * at.so / at.all
		}
	}
	return time.Duration(sum)
}
