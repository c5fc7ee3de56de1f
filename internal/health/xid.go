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

// entryOf is what follows from a XID: by the catalog, in our words where there are any.
func entryOf(number uint64) xidEntry {
	e := xidEntry{name: "an error that is not in NVIDIA's catalog"}
	action := ""
	if number < uint64(len(catalog)) && catalog[number].name != "" {
		e.name, action = catalog[number].name, catalog[number].action
	}
	e.class, e.action = asked(action)
	switch number {
	case 48, 64, 94, 95, 140, 171, 172:
		e.memory = true
	}
	if w, ok := xidWords()[number]; ok {
		e.name = w.name
		if w.action != "" {
			e.action = w.action
		}
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
		63:  {name: "a faulty memory row was remapped, which takes effect with a reset"},
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
