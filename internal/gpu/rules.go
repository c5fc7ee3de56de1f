package gpu

import (
	"cmp"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"gradbus/schema"
)

// Finding is one thing that is wrong with a GPU.
type Finding struct {
	Code    string          `json:"code"`
	State   schema.GPUState `json:"-"`      // Degraded, or Unhealthy until it is acknowledged
	Reason  string          `json:"reason"` // one sentence without a full stop
	Action  string          `json:"action"`
	SinceMS int64           `json:"since_ms"`         // milliseconds since 1970; set when it is remembered
	Memory  bool            `json:"memory,omitempty"` // results since the last good sample may be wrong
}

func degraded(code, action, format string, args ...any) *Finding {
	return &Finding{Code: code, State: schema.GPUDegraded, Reason: fmt.Sprintf(format, args...), Action: action}
}

func broken(code, action, format string, args ...any) *Finding {
	return &Finding{Code: code, State: schema.GPUUnhealthy, Reason: fmt.Sprintf(format, args...), Action: action}
}

func broughtMemory(f *Finding) *Finding {
	f.Memory = true
	return f
}

// looking is one look at a GPU's sample. Where the sample does not tell a signal nothing changes: it is no sign, and no
// poll without one.
type looking struct {
	*gpu
	s   *Sample
	now time.Time
}

// check is a rule of one code.
func (l *looking) check(wrong bool, f *Finding) {
	code := f.Code
	if !wrong {
		f = nil
	}
	l.sign(l.now, f, code)
}

// flag is a rule about a signal that is wrong where it is set.
func (l *looking) flag(set *bool, f *Finding) {
	if set != nil {
		l.check(*set, f)
	}
}

// memory looks at the GPU as a whole, at its memory, and at what the driver wants done.
func (l *looking) memory() {
	s := l.s
	l.check(s.Lost == LostGone, broken("gpu-lost", actPower, "the driver has lost the GPU"))
	l.check(s.Lost == LostReset, broken("gpu-reset-required", actReset, "the driver wants the GPU reset"))
	if s.RecoveryAction != nil {
		l.sign(l.now, recovery(*s.RecoveryAction), "recovery-reset", "recovery-reboot", "recovery-drain", "recovery-fabric")
	}
	if v := s.ECCUncorrected; v != nil {
		if l.uncorrectedFrom == nil {
			l.uncorrectedFrom, l.uncorrectedBefore = ptr(*v), *v
		}
		var f *Finding
		if *v > *l.uncorrectedFrom {
			f = broughtMemory(broken("ecc-uncorrectable", actReset, "%s that ECC could not correct, since this process began",
				count(*v-*l.uncorrectedFrom, "memory error")))
		} else if *v > 0 && l.uncorrectedBefore > 0 {
			f = degraded("ecc-uncorrectable-before", actResetLater,
				"%s that ECC could not correct, before this process began", count(*v, "memory error"))
		}
		l.sign(l.now, f, "ecc-uncorrectable", "ecc-uncorrectable-before")
	}
	l.flag(s.SRAMThreshold, broughtMemory(broken("sram-threshold", actReplace,
		"uncorrectable errors in the GPU's caches have passed the driver's threshold")))
	l.flag(s.RemapFailed, broken("remap-failed", actReplace, "a faulty memory row could not be remapped"))
	l.flag(s.RemapPending, degraded("remap-pending", actResetLater,
		"a faulty memory row waits to be remapped, which takes a reset"))
	if v := s.RetiredPages; v != nil {
		const text = "%d memory pages are retired (%d is too many)"
		var f *Finding
		if *v >= retiredPagesMany {
			f = broken("retired-pages-many", actReplace, text, *v, retiredPagesMany)
		} else if *v >= retiredPagesSoft {
			f = degraded("retired-pages", actSupport, text, *v, retiredPagesMany)
		}
		l.sign(l.now, f, "retired-pages-many", "retired-pages")
	}
	l.flag(s.RetiredPending, degraded("retired-pending", actResetLater,
		"a faulty memory page waits to be retired, which takes a reset"))
}

// load looks at heat and clocks.
func (l *looking) load() {
	s := l.s
	if v := s.Slower; v != nil {
		action := "Check the machine's cooling and power supply."
		if *v&SlowerPowerBrake != 0 {
			action = "Check the machine's power supply: it asks the GPU to draw less."
		}
		l.check(*v&(SlowerHardware|SlowerHWThermal|SlowerPowerBrake) != 0, degraded("hw-slowdown", action,
			"the hardware slows the GPU down"))
	}
	if v := s.ThermalMargin; v != nil {
		l.check(*v < thermalMarginMin, degraded("thermal-margin", "Check the machine's cooling.",
			"the GPU is %.0f degrees from being slowed down by heat (under %d is close)", *v, thermalMarginMin))
	}
}

const actSlot = "Check how the GPU sits in its slot, and the riser."

// links looks at PCIe.
func (l *looking) links() {
	s := l.s
	if s.PCIeWidth != nil && s.PCIeWidthMax != nil {
		l.check(*s.PCIeWidth < *s.PCIeWidthMax, degraded("pcie-width", actSlot, "the GPU's PCIe link has %d of %d lanes",
			*s.PCIeWidth, *s.PCIeWidthMax))
	}
}

// recovery returns the finding for the recovery that the driver requests, by its number.
func recovery(action uint64) *Finding {
	switch action {
	case 0:
		return nil
	case 1:
		return broken("recovery-reset", actReset, "the driver asks for a reset of the GPU")
	case 6:
		return broken("recovery-reset", "Take the GPU out of use, end what uses or watches it, and reset its PCIe slot, or "+
			"reboot the machine.", "the driver asks for a reset of the GPU's PCIe bus")
	case 2, 7:
		return broken("recovery-reboot", "Take the machine out of use and reboot it.",
			"the driver asks for a reboot of the machine")
	case 3:
		return degraded("recovery-drain", "Let what uses NVLink on the GPU end.",
			"the driver asks that traffic between GPUs ends")
	case 4:
		return degraded("recovery-drain", actResetLater,
			"the GPU works with less capacity, and the driver asks for a reset after the work under way")
	case 5:
		return degraded("recovery-fabric", "Recover the IMEX domain that the GPU belongs to.",
			"the driver asks for the recovery of the GPU's NVLink domain")
	}
	return degraded("recovery-drain", "See nvidia-smi -q, GPU Recovery Action.",
		"the driver asks for recovery action %d, which has no rule here", action)
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

// Class says what a XID means for the GPU and for what runs on it.
type Class int

// Classes, from worst to best.
const (
	// Quarantine: the GPU is Unhealthy until it is acknowledged.
	Quarantine Class = iota
	// Restart: contexts on the GPU are lost, so programs on it must be restarted; the GPU is Degraded for a while.
	Restart
	// Degrade: the GPU works on, Degraded for a while.
	Degrade
	// Notice: a word on what samples say themselves. Where they do not, as Degrade.
	Notice
	// Ignore: counted and logged. The GPU stays as it is.
	Ignore
)

// xidEntry is the class and the action of an XID.
type xidEntry struct {
	class  Class
	memory bool   // what was computed before may be wrong
	name   string // what happened, to follow "XID 79: "
	action string
}

// Actions that several entries share.
const (
	actReset = "Take the GPU out of use, end what uses or watches it, and reset it (nvidia-smi --gpu-reset), or " +
		"reboot the machine."
	actPower      = "Power the machine off and on; if the error returns, have the GPU replaced."
	actSupport    = "Keep it in use; report it to the vendor if it returns."
	actContext    = "Restart what ran on the GPU; if it returns, look at that program first, then at the GPU."
	actResetLater = "Reset the GPU when nothing runs on it."
	actReplace    = "Take the GPU out of use and have it replaced."
	actLink       = "See nvidia-smi nvlink for the link and what is at its other end; reset the GPU when nothing runs on it."
)

// asked returns the class and the action for an immediate action of the catalog.
func asked(action string) (Class, string) {
	class, known := map[string]struct {
		class Class
		text  string
	}{
		"RESET_GPU":            {Quarantine, actReset},
		"WORKFLOW_XID_48":      {Quarantine, actReset},
		"RESTART_BM":           {Quarantine, actPower},
		"CHECK_MECHANICALS":    {Quarantine, "Power the machine off and check the GPU's power cables."},
		"RESTART_APP":          {Restart, actContext},
		"WORKFLOW_XID_45":      {Restart, actContext},
		"WORKFLOW_NVLINK_ERR":  {Degrade, actLink},
		"WORKFLOW_NVLINK5_ERR": {Degrade, actLink},
		"RESTART_VM":           {Degrade, "Restart the virtual machine."},
		"UPDATE_SWFW":          {Degrade, "Update the driver and the GPU's firmware."},
		"CHECK_UVM":            {Degrade, actSupport},
		"IGNORE":               {Ignore, "Nothing is to be done."},
		"XID_154":              {Notice, "See the GPU's recovery action (nvidia-smi -q, GPU Recovery Action), and do that."},
	}[action]
	if !known {
		return Degrade, "Look it up in NVIDIA's catalog of XIDs; report it to the vendor if it returns."
	}
	return class.class, class.text
}

// catalog is NVIDIA's catalog of XIDs: number, mnemonic and the action that it asks for at once, one a line. Its first
// lines say where it is from, and as of when. ownWords are what we say ourselves of some.
//
//go:embed xids.tsv
var catalog string

//go:embed xid_words.tsv
var ownWords string

// row gives the cells of a number's row in a table, and empty ones where it has none.
func row(table string, number uint64) []string {
	_, rest, _ := strings.Cut(table, fmt.Sprintf("\n%d\t", number))
	line, _, _ := strings.Cut(rest, "\n")
	return append(strings.Split(line, "\t"), "", "")[:3]
}

// entryOf returns the entry of an XID: from the catalog, with texts of this package if there are any.
func entryOf(number uint64) xidEntry {
	listed, own := row(catalog, number), row(ownWords, number)
	class, action := asked(strings.TrimPrefix(listed[1], "-"))
	return xidEntry{class: class, memory: own[2] != "", action: cmp.Or(own[1], action),
		name: cmp.Or(own[0], listed[0], "an error that is not in NVIDIA's catalog")}
}
