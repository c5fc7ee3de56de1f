package health

import "fmt"

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
	// Unlisted: as Degrade, with an alert, since there is no rule for what it means.
	Unlisted
	// Notice: a word on what samples say themselves. Where they do not, as Degrade.
	Notice
)

// xidEntry is one line of the table.
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
	actResetLater = "Reset the GPU when nothing runs on it."
	actReplace    = "Take the GPU out of use and have it replaced."
)

// xids are the numbers with a known meaning. Names follow NVIDIA's catalogue of XIDs.
func xids() map[uint64]xidEntry {
	return map[uint64]xidEntry{
		46: {Quarantine, false, "the GPU has stopped processing", actReset},
		48: {Quarantine, true, "uncorrectable memory error (double bit ECC)", actReset},
		54: {Quarantine, false, "auxiliary power is not connected to the GPU",
			"Power the machine off and check the GPU's power cables."},
		62: {Quarantine, false, "an internal controller of the GPU has halted", actReset},
		64: {Quarantine, true, "a faulty memory row could not be remapped", actReplace},
		79: {Quarantine, false, "the GPU has fallen off the bus", actPower},
		95: {Quarantine, true, "uncontained memory error: every process on the GPU may have computed with wrong values",
			actReset},
		110: {Quarantine, false, "security fault in the GPU", actPower},
		119: {Quarantine, false, "the GPU's system processor does not answer", actReset},
		120: {Quarantine, false, "error in the GPU's system processor", actReset},
		136: {Quarantine, false, "an NVLink could not be trained", actReset},
		140: {Quarantine, true, "uncorrected memory error that could not be contained", actReset},
		143: {Quarantine, false, "the GPU could not be initialised", actReset},
		155: {Quarantine, false, "an NVLink went down", actReset},
		156: {Quarantine, false, "a faulty part of the GPU was retired, which takes effect with a reset", actReset},
		158: {Quarantine, false, "fatal timeout in the GPU", actReset},

		13: {Restart, false, "exception in a kernel", actContext},
		31: {Restart, false, "a kernel read or wrote memory that it may not", actContext},
		43: {Restart, false, "a channel has stopped after an error of the program", actContext},
		45: {Restart, false, "a channel was removed by the driver after another error", actContext},
		94: {Restart, true, "memory error contained in one process", actContext},

		63:  {Degrade, false, "a faulty memory row was remapped, which takes effect with a reset", actResetLater},
		92:  {Degrade, false, "high rate of corrected memory errors", actSupport},
		93:  {Degrade, false, "the wear limit of the GPU's configuration memory is reached", actSupport},
		109: {Degrade, false, "a context switch took too long", actResetLater},
		121: {Degrade, false, "corrected errors on the link to the processor", actResetLater},
		154: {Notice, false, "the driver has changed the recovery that it recommends",
			"See the GPU's recovery action (nvidia-smi -q, GPU Recovery Action), and do that."},
		157: {Degrade, false, "a faulty part of the GPU could not be retired", actSupport},
	}
}

// entryOf is the table's entry, or one for what is not in it.
func entryOf(number uint64) xidEntry {
	if e, ok := xids()[number]; ok {
		return e
	}
	return xidEntry{Unlisted, false, "an error without a rule here",
		"Look it up in NVIDIA's catalogue of XIDs, and watch the GPU."}
}

// xidCode is the code of a XID's finding.
func xidCode(number uint64) string { return fmt.Sprintf("xid-%d", number) }
