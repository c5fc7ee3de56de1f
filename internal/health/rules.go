package health

import (
	"fmt"
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

// rule looks at one signal. It returns false where the sample does not tell, which changes nothing; else what is wrong,
// or nil.
type rule struct {
	codes []string // that it can give
	look  func(p *Policy, g *gpu, s *Sample, now time.Time) (told bool, found *Finding)
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
		{[]string{"gpu-lost", "gpu-reset-required"}, lookLost},
		{[]string{"recovery-reset", "recovery-reboot", "recovery-drain", "recovery-fabric"}, lookRecovery},
		{[]string{"ecc-uncorrectable", "ecc-uncorrectable-before"}, lookUncorrected},
		{[]string{"ecc-correctable-rate"}, lookCorrected},
		{[]string{"sram-threshold"}, lookSRAM},
		{[]string{"remap-failed"}, lookRemapFailed},
		{[]string{"remap-pending"}, lookRemapPending},
		{[]string{"retired-pages", "retired-pages-many"}, lookRetired},
		{[]string{"retired-pending"}, lookRetiredPending},
		{[]string{"hw-slowdown"}, lookSlowdown},
		{[]string{"thermal-margin"}, lookMargin},
		{[]string{"pcie-replays"}, lookReplays},
		{[]string{"pcie-width"}, lookWidth},
		{[]string{"nvlink-down"}, lookLinks},
		{[]string{"nvlink-errors"}, lookLinkErrors},
		{[]string{"fabric-failed", "fabric-setup"}, lookFabric},
		{[]string{"fabric-health"}, lookFabricHealth},
		{[]string{"memory-others"}, lookOthers},
	}
}

func lookLost(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	call := s.Call
	if call == "" {
		call = "the driver"
	}
	switch s.Lost {
	case LostGone:
		return true, broken("gpu-lost", actPower, "the driver has lost the GPU (%s)", call)
	case LostReset:
		return true, broken("gpu-reset-required", actReset, "the driver wants the GPU reset (%s)", call)
	}
	return true, nil
}

func lookRecovery(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.RecoveryAction == nil {
		return false, nil
	}
	switch *s.RecoveryAction {
	case RecoveryNone:
		return true, nil
	case RecoveryReset:
		return true, broken("recovery-reset", actReset, "the driver asks for a reset of the GPU")
	case RecoveryBusReset:
		return true,
			broken("recovery-reset", "Take the GPU out of use, end what uses or watches it, and reset its PCIe slot, or reboot "+
				"the machine.", "the driver asks for a reset of the GPU's PCIe bus")
	case RecoveryReboot, RecoverySystemReboot:
		return true, broken("recovery-reboot", "Take the machine out of use and reboot it.",
			"the driver asks for a reboot of the machine")
	case RecoveryDrain:
		return true, degraded("recovery-drain", "Let what uses NVLink on the GPU end.",
			"the driver asks that traffic between GPUs ends")
	case RecoveryDrainAndReset:
		return true, degraded("recovery-drain", actResetLater,
			"the GPU works with less capacity, and the driver asks for a reset after the work under way")
	case RecoveryFabricDomain:
		return true, degraded("recovery-fabric", "Recover the IMEX domain that the GPU belongs to.",
			"the driver asks for the recovery of the GPU's NVLink domain")
	}
	return true, degraded("recovery-drain", "See nvidia-smi -q, GPU Recovery Action.",
		"the driver asks for recovery action %d, which has no rule here", *s.RecoveryAction)
}

func lookUncorrected(_ *Policy, g *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.ECCUncorrected == nil {
		return false, nil
	}
	n := *s.ECCUncorrected
	if g.uncorrectedFrom == nil {
		g.uncorrectedFrom, g.uncorrectedBefore = &n, n
	}
	switch {
	case n > *g.uncorrectedFrom:
		return true,
			broughtMemory(broken("ecc-uncorrectable", actReset, "%s that ECC could not correct, since this process began",
				count(n-*g.uncorrectedFrom, "memory error")))
	case n > 0 && g.uncorrectedBefore > 0:
		return true, degraded("ecc-uncorrectable-before", actResetLater,
			"%s that ECC could not correct, before this process began", count(n, "memory error"))
	}
	return true, nil
}

func lookCorrected(p *Policy, g *gpu, s *Sample, now time.Time) (bool, *Finding) {
	if s.ECCCorrected == nil {
		return false, nil
	}
	if n := g.corrected.rise(now, *s.ECCCorrected, p.CorrectedSpan); n > p.CorrectedMax {
		return true, degraded("ecc-correctable-rate", actSupport,
			"%d memory errors were corrected in the last %s (over %d is many)", n, short(p.CorrectedSpan), p.CorrectedMax)
	}
	return true, nil
}

func lookSRAM(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.SRAMThreshold == nil {
		return false, nil
	}
	if *s.SRAMThreshold {
		return true,
			broughtMemory(broken("sram-threshold", actReplace,
				"uncorrectable errors in the GPU's caches have passed the driver's threshold"))
	}
	return true, nil
}

func lookRemapFailed(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.RemapFailed == nil {
		return false, nil
	}
	if *s.RemapFailed {
		return true, broken("remap-failed", actReplace, "a faulty memory row could not be remapped")
	}
	return true, nil
}

func lookRemapPending(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.RemapPending == nil {
		return false, nil
	}
	if *s.RemapPending {
		return true, degraded("remap-pending", actResetLater, "a faulty memory row waits to be remapped, which takes a reset")
	}
	return true, nil
}

func lookRetired(p *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.RetiredPages == nil {
		return false, nil
	}
	switch n := *s.RetiredPages; {
	case n >= p.RetiredPagesMax:
		return true, broken("retired-pages-many", actReplace, "%d memory pages are retired (%d is too many)", n,
			p.RetiredPagesMax)
	case n >= p.RetiredPagesSoft:
		return true, degraded("retired-pages", actSupport, "%d memory pages are retired (%d is too many)", n,
			p.RetiredPagesMax)
	}
	return true, nil
}

func lookRetiredPending(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.RetiredPending == nil {
		return false, nil
	}
	if *s.RetiredPending {
		return true,
			degraded("retired-pending", actResetLater, "a faulty memory page waits to be retired, which takes a reset")
	}
	return true, nil
}
