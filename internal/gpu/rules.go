package gpu

import (
	"cmp"
	_ "embed"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// Finding is one thing that is wrong with a GPU.
type Finding struct {
	Code   string
	State  schema.GPUState // Degraded or Unhealthy
	Reason string          // one sentence without a full stop
	Action string
	Sticky bool // stays until acknowledged or reset
	Memory bool // results since the last good sample may be wrong
}

// rule looks at one signal.
type rule struct {
	codes []string // that it can give
	look  func(l *looking) (told bool, found *Finding)
}

// looking is one look at a GPU's sample.
type looking struct {
	*Policy
	*gpu
	s   *Sample
	now time.Time
}

// on is a rule about a signal: where the sample does not tell it nothing changes; else found says what is wrong, or nil.
func on[T any](signal func(*Sample) *T, found func(l *looking, v T) *Finding) func(*looking) (bool, *Finding) {
	return func(l *looking) (bool, *Finding) {
		v := signal(l.s)
		if v == nil {
			return false, nil
		}
		return true, found(l, *v)
	}
}

// flagged is a rule about a signal that is wrong where it is set.
func flagged(signal func(*Sample) *bool, f *Finding) func(*looking) (bool, *Finding) {
	return on(signal, func(_ *looking, set bool) *Finding {
		if set {
			return f
		}
		return nil
	})
}

func degraded(code, action, format string, args ...any) *Finding {
	return &Finding{Code: code, State: schema.GPUDegraded, Reason: fmt.Sprintf(format, args...), Action: action}
}

func broken(code, action, format string, args ...any) *Finding {
	return &Finding{Code: code, State: schema.GPUUnhealthy, Reason: fmt.Sprintf(format, args...), Action: action,
		Sticky: true}
}

func broughtMemory(f *Finding) *Finding {
	f.Memory = true
	return f
}

// rules are all signals that are sampled.
func rules() []rule {
	return []rule{
		{[]string{"gpu-lost", "gpu-reset-required"}, func(l *looking) (bool, *Finding) { return true, lookLost(l.s) }},
		{[]string{"recovery-reset", "recovery-reboot", "recovery-drain", "recovery-fabric"},
			on(func(s *Sample) *uint64 { return s.RecoveryAction }, lookRecovery)},
		{[]string{"ecc-uncorrectable", "ecc-uncorrectable-before"},
			on(func(s *Sample) *uint64 { return s.ECCUncorrected }, lookUncorrected)},
		{[]string{"ecc-correctable-rate"}, on(func(s *Sample) *uint64 { return s.ECCCorrected }, lookCorrected)},
		{[]string{"sram-threshold"}, flagged(func(s *Sample) *bool { return s.SRAMThreshold }, broughtMemory(broken(
			"sram-threshold", actReplace, "uncorrectable errors in the GPU's caches have passed the driver's threshold")))},
		{[]string{"remap-failed"}, flagged(func(s *Sample) *bool { return s.RemapFailed }, broken("remap-failed", actReplace,
			"a faulty memory row could not be remapped"))},
		{[]string{"remap-pending"}, flagged(func(s *Sample) *bool { return s.RemapPending }, degraded("remap-pending",
			actResetLater, "a faulty memory row waits to be remapped, which takes a reset"))},
		{[]string{"retired-pages", "retired-pages-many"}, on(func(s *Sample) *uint64 { return s.RetiredPages }, lookRetired)},
		{[]string{"retired-pending"}, flagged(func(s *Sample) *bool { return s.RetiredPending }, degraded("retired-pending",
			actResetLater, "a faulty memory page waits to be retired, which takes a reset"))},
		{[]string{"hw-slowdown"}, on(func(s *Sample) *uint64 { return s.Slower }, lookSlowdown)},
		{[]string{"thermal-margin"}, on(func(s *Sample) *int { return s.ThermalMargin }, lookMargin)},
		{[]string{"pcie-replays"}, on(func(s *Sample) *uint64 { return s.PCIeReplays }, lookReplays)},
		{[]string{"pcie-width"}, lookWidth},
		{[]string{"nvlink-down"}, on(func(s *Sample) *uint64 { return s.LinksUp }, lookLinks)},
		{[]string{"nvlink-errors"}, on(func(s *Sample) *uint64 { return s.LinkErrors }, lookLinkErrors)},
		{[]string{"fabric-failed", "fabric-setup"}, on(func(s *Sample) *uint64 { return s.FabricState }, lookFabric)},
		{[]string{"fabric-health"}, on(func(s *Sample) *uint64 { return s.FabricHealth }, lookFabricHealth)},
		{[]string{"memory-others"}, lookOthers},
	}
}

func lookLost(s *Sample) *Finding {
	switch s.Lost {
	case LostGone:
		return broken("gpu-lost", actPower, "the driver has lost the GPU")
	case LostReset:
		return broken("gpu-reset-required", actReset, "the driver wants the GPU reset")
	}
	return nil
}

func lookRecovery(_ *looking, action uint64) *Finding {
	switch action {
	case RecoveryNone:
		return nil
	case RecoveryReset:
		return broken("recovery-reset", actReset, "the driver asks for a reset of the GPU")
	case RecoveryBusReset:
		return broken("recovery-reset", "Take the GPU out of use, end what uses or watches it, and reset its PCIe slot, or "+
			"reboot the machine.", "the driver asks for a reset of the GPU's PCIe bus")
	case RecoveryReboot, RecoverySystemReboot:
		return broken("recovery-reboot", "Take the machine out of use and reboot it.",
			"the driver asks for a reboot of the machine")
	case RecoveryDrain:
		return degraded("recovery-drain", "Let what uses NVLink on the GPU end.",
			"the driver asks that traffic between GPUs ends")
	case RecoveryDrainAndReset:
		return degraded("recovery-drain", actResetLater,
			"the GPU works with less capacity, and the driver asks for a reset after the work under way")
	case RecoveryFabricDomain:
		return degraded("recovery-fabric", "Recover the IMEX domain that the GPU belongs to.",
			"the driver asks for the recovery of the GPU's NVLink domain")
	}
	return degraded("recovery-drain", "See nvidia-smi -q, GPU Recovery Action.",
		"the driver asks for recovery action %d, which has no rule here", action)
}

func lookUncorrected(l *looking, n uint64) *Finding {
	if l.uncorrectedFrom == nil {
		l.uncorrectedFrom, l.uncorrectedBefore = &n, n
	}
	switch {
	case n > *l.uncorrectedFrom:
		return broughtMemory(broken("ecc-uncorrectable", actReset, "%s that ECC could not correct, since this process began",
			count(n-*l.uncorrectedFrom, "memory error")))
	case n > 0 && l.uncorrectedBefore > 0:
		return degraded("ecc-uncorrectable-before", actResetLater,
			"%s that ECC could not correct, before this process began", count(n, "memory error"))
	}
	return nil
}

func lookCorrected(l *looking, v uint64) *Finding {
	if n := l.corrected.rise(l.now, v, l.CorrectedSpan); n > l.CorrectedMax {
		return degraded("ecc-correctable-rate", actSupport,
			"%d memory errors were corrected in the last %s (over %d is many)", n, short(l.CorrectedSpan), l.CorrectedMax)
	}
	return nil
}

func lookRetired(l *looking, n uint64) *Finding {
	switch {
	case n >= l.RetiredPagesMax:
		return broken("retired-pages-many", actReplace, "%d memory pages are retired (%d is too many)", n, l.RetiredPagesMax)
	case n >= l.RetiredPagesSoft:
		return degraded("retired-pages", actSupport, "%d memory pages are retired (%d is too many)", n, l.RetiredPagesMax)
	}
	return nil
}

const hardwareSlower = SlowerHardware | SlowerHWThermal | SlowerPowerBrake

func lookSlowdown(l *looking, bits uint64) *Finding {
	slow := l.slow.add(l.now, bits&hardwareSlower != 0, l.SlowdownSpan)
	if slow < l.SlowdownMax {
		return nil
	}
	action := "Check the machine's cooling and power supply."
	if bits&SlowerPowerBrake != 0 {
		action = "Check the machine's power supply: it asks the GPU to draw less."
	}
	return degraded("hw-slowdown", action, "the hardware has slowed the GPU down for %s of the last %s", short(slow),
		short(l.SlowdownSpan))
}

func lookMargin(l *looking, m int) *Finding {
	if m < l.ThermalMarginMin {
		return degraded("thermal-margin", "Check the machine's cooling.",
			"the GPU is %d degrees from being slowed down by heat (under %d is close)", m, l.ThermalMarginMin)
	}
	return nil
}

const actSlot = "Check how the GPU sits in its slot, and the riser."

func lookReplays(l *looking, v uint64) *Finding {
	if n := l.replays.rise(l.now, v, l.RateSpan); n > l.PCIeReplaysMax {
		return degraded("pcie-replays", actSlot, "%d transfers over PCIe were repeated in the last %s (over %d is many)", n,
			short(l.RateSpan), l.PCIeReplaysMax)
	}
	return nil
}

func lookWidth(l *looking) (bool, *Finding) {
	width, most := l.s.PCIeWidth, l.s.PCIeWidthMax
	if width == nil || most == nil {
		return false, nil
	}
	if *width < *most {
		return true, degraded("pcie-width", actSlot, "the GPU's PCIe link has %d of %d lanes", *width, *most)
	}
	return true, nil
}

// lookLinks counts a link as down that was up before: links that are not wired are never up.
func lookLinks(l *looking, up uint64) *Finding {
	l.linksSeen |= up
	if down := l.linksSeen &^ up; down != 0 {
		return degraded("nvlink-down", actResetLater, "%s of %d went down",
			count(uint64(bits.OnesCount64(down)), "NVLink"), bits.OnesCount64(l.linksSeen))
	}
	return nil
}

func lookLinkErrors(l *looking, v uint64) *Finding {
	if n := l.linkErrors.rise(l.now, v, l.RateSpan); n > l.LinkErrorsMax {
		return degraded("nvlink-errors", actSupport, "%s of NVLinks in the last %s",
			count(n, "replay or recovery", "replays or recoveries"), short(l.RateSpan))
	}
	return nil
}

const actFabric = "Check the fabric manager (systemctl status nvidia-fabricmanager)."

func lookFabric(l *looking, state uint64) *Finding {
	switch state {
	case FabricNotStarted, FabricInProgress:
		if l.fabricSince.IsZero() {
			l.fabricSince = l.now
		}
		if took := l.now.Sub(l.fabricSince); took > l.FabricSetup {
			return degraded("fabric-setup", actFabric, "the NVLink fabric has not been set up for %s", short(took))
		}
	case FabricCompleted:
		l.fabricSince = time.Time{}
		if l.s.FabricStatus != nil && *l.s.FabricStatus != 0 {
			f := broken("fabric-failed", actFabric, "the NVLink fabric could not be set up (status %d): kernels cannot start",
				*l.s.FabricStatus)
			f.Sticky = false // software can fix it
			return f
		}
	}
	return nil
}

// lookFabricHealth reads the driver's mask: four parts of two bits, in which 1 is yes, and one of four bits that says what is
// configured wrongly, in which 0 is not supported and 1 is nothing.
func lookFabricHealth(_ *looking, mask uint64) *Finding {
	var wrong []string
	for i, text := range []string{"reduced bandwidth", "route recovery under way", "unhealthy route",
		"recovery after an access timeout"} {
		if mask>>(2*i)&3 == 1 {
			wrong = append(wrong, text)
		}
	}
	if c := mask >> 8 & 15; c > 1 {
		wrong = append(wrong, fmt.Sprintf("incorrect configuration %d", c))
	}
	if wrong == nil {
		return nil
	}
	return degraded("fabric-health", "Check the fabric manager and the NVSwitches.", "the NVLink fabric says: %s",
		strings.Join(wrong, ", "))
}

func lookOthers(l *looking) (bool, *Finding) {
	s := l.s
	if s.MemoryOthers == nil || s.MemoryTotal == nil || *s.MemoryTotal == 0 {
		return false, nil
	}
	share := float64(*s.MemoryOthers) / float64(*s.MemoryTotal)
	if share <= l.OthersShareMax {
		return true, nil
	}
	who := "other processes hold"
	if s.Others != nil && *s.Others == 1 {
		who = "another process holds"
	}
	return true, degraded("memory-others", "End other processes on the GPU (nvidia-smi lists them), or use another.",
		"%s %.0f %% of the GPU's memory", who, share*100)
}

// slowerNames are the reasons of lower clocks in words, but for those that are no fault: idle, and settings.
func slowerNames(bits *uint64) []string {
	if bits == nil {
		return nil
	}
	var names []string
	for _, b := range []struct {
		bit  uint64
		name string
	}{{SlowerPowerCap, "sw_power_cap"}, {SlowerHardware, "hw_slowdown"}, {SlowerSWThermal, "sw_thermal"},
		{SlowerHWThermal, "hw_thermal"}, {SlowerPowerBrake, "hw_power_brake"}} {
		if *bits&b.bit != 0 {
			names = append(names, b.name)
		}
	}
	return names
}

// count writes "1 page" and "3 pages".
func count(n uint64, what ...string) string {
	switch {
	case n == 1:
		return "1 " + what[0]
	case len(what) > 1:
		return fmt.Sprintf("%d %s", n, what[1])
	}
	return fmt.Sprintf("%d %ss", n, what[0])
}

// short writes a duration without its zeros: "10m" for "10m0s".
func short(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// XID takes an error of the driver.
func (m *Machine) XID(now time.Time, x *XID, injected bool) []Change {
	at := slices.IndexFunc(m.gpus, func(g *gpu) bool { return g.UUID == x.UUID })
	if at < 0 {
		return nil
	}
	g := m.gpus[at]
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
		if g.repeated(now, x.Number, injected, &m.policy) {
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
		injected: injected})
	return m.settle(now, g, Change{Code: f.Code, Reason: sentence(f.Reason), Action: f.Action, ContextLost: restart,
		Alert: e.class == Unlisted})
}

// repeated notes an incident of a XID of class Restart, and says whether there was one within Policy.Repeat. What was
// running then must have ended since, or it is a burst: time tells, but for what was before this process. An injected
// incident makes no real one a repeat.
func (g *gpu) repeated(now time.Time, number uint64, injected bool, p *Policy) bool {
	last, again := g.incidents[number]
	again = again && (injected || !last.injected)
	if !again || last.injected || !injected {
		g.incident(number, incident{at: now, injected: injected}) // of a burst the last one counts
	}
	burst := p.Burst
	if last.before {
		burst = p.BurstBefore
	}
	return again && now.Sub(last.at) > burst && now.Sub(last.at) <= p.Repeat
}

func (g *gpu) incident(number uint64, i incident) {
	if g.incidents == nil {
		g.incidents = map[uint64]incident{}
	}
	g.incidents[number] = i
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

// Class says what a XID means for the GPU and for what runs on it.
type Class int

// Classes, from worst to best.
const (
	// Quarantine: the GPU is Unhealthy until it is acknowledged or reset.
	Quarantine Class = iota
	// Restart: contexts on the GPU are lost and must be made anew; the GPU is Degraded, and Unhealthy on a repeat.
	Restart
	// Degrade: the GPU works on, Degraded for a while.
	Degrade
	// Unlisted: as Degrade, with an alert, since the catalog says no action, or does not have it.
	Unlisted
	// Notice: a word on what samples say themselves. Where they do not, as Degrade.
	Notice
	// Ignore: counted and logged. The GPU stays as it is.
	Ignore
)

// xidEntry is what follows from a XID.
type xidEntry struct {
	class  Class
	memory bool   // what was computed meanwhile may be wrong
	name   string // what happened, to follow "XID 79: "
	action string
}

// Actions that several entries share.
const (
	actReset = "Take the GPU out of use, end what uses or watches it, and reset it (nvidia-smi --gpu-reset), or " +
		"reboot the machine."
	actPower      = "Power the machine off and on; if the error returns, have the GPU replaced."
	actSupport    = "Keep it in use; report it to the vendor if it returns."
	actContext    = "Restart what ran on the GPU; if it returns within a day the GPU is taken out of use."
	actResetSoon  = "Reset the GPU at the next opportunity."
	actResetLater = "Reset the GPU when nothing runs on it."
	actReplace    = "Take the GPU out of use and have it replaced."
	actLink       = "See nvidia-smi nvlink for the link and what is at its other end; reset the GPU when nothing runs on it."
)

// asked is what follows from an action that the catalog asks for at once.
func asked(action string) (Class, string) {
	switch action {
	case "RESET_GPU", "WORKFLOW_XID_48":
		return Quarantine, actReset
	case "RESTART_BM":
		return Quarantine, actPower
	case "CHECK_MECHANICALS":
		return Quarantine, "Power the machine off and check the GPU's power cables."
	case "RESTART_APP", "WORKFLOW_XID_45":
		return Restart, actContext
	case "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR":
		return Degrade, actLink
	case "RESTART_VM":
		return Degrade, "Restart the virtual machine."
	case "UPDATE_SWFW":
		return Degrade, "Update the driver and the GPU's firmware."
	case "CHECK_UVM":
		return Degrade, actSupport
	case "IGNORE":
		return Ignore, "Nothing is to be done."
	case "XID_154":
		return Notice, "See the GPU's recovery action (nvidia-smi -q, GPU Recovery Action), and do that."
	}
	return Unlisted, "Look it up in NVIDIA's catalog of XIDs; report it to the vendor if it returns."
}

// catalog is NVIDIA's catalog of XIDs: number, mnemonic and the action that it asks for at once, one a line. Its first
// lines say where it is from, and as of when.
//
//go:embed xids.tsv
var catalog string

// entryOf is what follows from a XID: by the catalog, in our words where there are any.
func entryOf(number uint64) xidEntry {
	_, rest, _ := strings.Cut(catalog, fmt.Sprintf("\n%d\t", number))
	line, _, _ := strings.Cut(rest, "\n")
	name, action, _ := strings.Cut(line, "\t")
	e := xidEntry{name: cmp.Or(name, "an error that is not in NVIDIA's catalog")}
	e.class, e.action = asked(strings.TrimPrefix(action, "-"))
	switch number {
	case 48, 64, 94, 95, 140, 171, 172:
		e.memory = true
	}
	if w, ok := xidWords()[number]; ok {
		e.name, e.action = w.name, cmp.Or(w.action, e.action)
	}
	return e
}

type words struct{ name, action string }

// xidWords are the XIDs that are met most, in our words, and an action where we know a better one than the catalog's.
func xidWords() map[uint64]words {
	return map[uint64]words{
		13:  {name: "exception in a kernel"},
		31:  {name: "a kernel read or wrote memory that it may not"},
		43:  {name: "a program was ended after an error of its own"},
		45:  {name: "a channel was removed by the driver after another error"},
		46:  {name: "the GPU has stopped processing"},
		48:  {name: "uncorrectable memory error (double bit ECC)"},
		54:  {name: "auxiliary power is not connected to the GPU"},
		62:  {name: "an internal controller of the GPU has halted"},
		63:  {"a faulty memory row was remapped, which takes effect with a reset", actResetSoon},
		64:  {"a faulty memory row could not be remapped", actReplace},
		74:  {name: "an NVLink has failed"},
		79:  {name: "the GPU has fallen off the bus"},
		92:  {name: "high rate of corrected memory errors"},
		94:  {name: "memory error contained in one process"},
		95:  {name: "uncontained memory error: every process on the GPU may have computed with wrong values"},
		109: {name: "a context switch took too long"},
		110: {"security fault in the GPU", actPower},
		119: {name: "the GPU's system processor does not answer"},
		120: {name: "error in the GPU's system processor"},
		136: {name: "an NVLink could not be trained"},
		140: {name: "uncorrected memory error that could not be contained"},
		143: {name: "the GPU could not be initialised"},
		154: {name: "the driver has changed the recovery that it recommends"},
		155: {name: "an NVLink went down"},
		156: {name: "a faulty part of the GPU was retired, which takes effect with a reset"},
		157: {name: "a faulty part of the GPU could not be retired"},
		158: {name: "fatal timeout in the GPU"},
	}
}

// xidCode is the code of a XID's finding.
func xidCode(number uint64) string { return fmt.Sprintf("xid-%d", number) }
