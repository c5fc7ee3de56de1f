package health

import (
	"fmt"
	"math/bits"
	"strings"
	"time"
)

const hardwareSlower = SlowerHardware | SlowerHWThermal | SlowerPowerBrake

func lookSlowdown(p *Policy, g *gpu, s *Sample, now time.Time) (bool, *Finding) {
	if s.Slower == nil {
		return false, nil
	}
	if slow := g.slow.add(now, *s.Slower&hardwareSlower != 0, p.SlowdownSpan); slow >= p.SlowdownMax {
		action := "Check the machine's cooling and power supply."
		if *s.Slower&SlowerPowerBrake != 0 {
			action = "Check the machine's power supply: it asks the GPU to draw less."
		}
		return true, degraded("hw-slowdown", action, "the hardware has slowed the GPU down for %s of the last %s",
			short(slow), short(p.SlowdownSpan))
	}
	return true, nil
}

func lookMargin(p *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.ThermalMargin == nil {
		return false, nil
	}
	if m := *s.ThermalMargin; m < p.ThermalMarginMin {
		return true, degraded("thermal-margin", "Check the machine's cooling.",
			"the GPU is %d degrees from being slowed down by heat (under %d is close)", m, p.ThermalMarginMin)
	}
	return true, nil
}

func lookReplays(p *Policy, g *gpu, s *Sample, now time.Time) (bool, *Finding) {
	if s.PCIeReplays == nil {
		return false, nil
	}
	if n := g.replays.rise(now, *s.PCIeReplays, p.RateSpan); n > p.PCIeReplaysMax {
		return true, degraded("pcie-replays", "Check how the GPU sits in its slot, and the riser.",
			"%d transfers over PCIe were repeated in the last %s (over %d is many)", n, short(p.RateSpan), p.PCIeReplaysMax)
	}
	return true, nil
}

func lookWidth(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.PCIeWidth == nil || s.PCIeWidthMax == nil {
		return false, nil
	}
	if *s.PCIeWidth < *s.PCIeWidthMax {
		return true, degraded("pcie-width", "Check how the GPU sits in its slot, and the riser.",
			"the GPU's PCIe link has %d of %d lanes", *s.PCIeWidth, *s.PCIeWidthMax)
	}
	return true, nil
}

// lookLinks counts a link as down that was up before: links that are not wired are never up.
func lookLinks(_ *Policy, g *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.LinksUp == nil {
		return false, nil
	}
	g.linksSeen |= *s.LinksUp
	if down := g.linksSeen &^ *s.LinksUp; down != 0 {
		return true, degraded("nvlink-down", actResetLater, "%s of %d went down",
			count(uint64(bits.OnesCount64(down)), "NVLink"), bits.OnesCount64(g.linksSeen))
	}
	return true, nil
}

func lookLinkErrors(p *Policy, g *gpu, s *Sample, now time.Time) (bool, *Finding) {
	if s.LinkErrors == nil {
		return false, nil
	}
	if n := g.linkErrors.rise(now, *s.LinkErrors, p.RateSpan); n > p.LinkErrorsMax {
		return true, degraded("nvlink-errors", actSupport, "%s of NVLinks in the last %s",
			count(n, "replay or recovery", "replays or recoveries"), short(p.RateSpan))
	}
	return true, nil
}

func lookFabric(p *Policy, g *gpu, s *Sample, now time.Time) (bool, *Finding) {
	if s.FabricState == nil {
		return false, nil
	}
	switch *s.FabricState {
	case FabricNotStarted, FabricInProgress:
		if g.fabricSince.IsZero() {
			g.fabricSince = now
		}
		if now.Sub(g.fabricSince) > p.FabricSetup {
			return true, degraded("fabric-setup", "Check the fabric manager (systemctl status nvidia-fabricmanager).",
				"the NVLink fabric has not been set up for %s", short(now.Sub(g.fabricSince)))
		}
		return true, nil
	case FabricCompleted:
		g.fabricSince = time.Time{}
		if s.FabricStatus != nil && *s.FabricStatus != 0 {
			f := broken("fabric-failed", "Check the fabric manager (systemctl status nvidia-fabricmanager).",
				"the NVLink fabric could not be set up (status %d): kernels cannot start", *s.FabricStatus)
			f.Sticky = false // software can mend it
			return true, f
		}
	}
	return true, nil
}

// lookFabricHealth reads the driver's mask: four parts of two bits, in which 1 is yes, and one of four bits that says
// what is configured wrongly, in which 0 is not supported and 1 is nothing.
func lookFabricHealth(_ *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.FabricHealth == nil {
		return false, nil
	}
	var wrong []string
	for _, part := range []struct {
		shift int
		text  string
	}{{0, "reduced bandwidth"}, {2, "route recovery under way"}, {4, "unhealthy route"},
		{6, "recovery after an access timeout"}} {
		if *s.FabricHealth>>part.shift&3 == 1 {
			wrong = append(wrong, part.text)
		}
	}
	if c := *s.FabricHealth >> 8 & 15; c > 1 {
		wrong = append(wrong, fmt.Sprintf("incorrect configuration %d", c))
	}
	if wrong == nil {
		return true, nil
	}
	return true, degraded("fabric-health", "Check the fabric manager and the NVSwitches.", "the NVLink fabric says: %s",
		strings.Join(wrong, ", "))
}

func lookOthers(p *Policy, _ *gpu, s *Sample, _ time.Time) (bool, *Finding) {
	if s.MemoryOthers == nil || s.MemoryTotal == nil || *s.MemoryTotal == 0 {
		return false, nil
	}
	share := float64(*s.MemoryOthers) / float64(*s.MemoryTotal)
	if share <= p.OthersShareMax {
		return true, nil
	}
	who := "other processes hold"
	if s.Others != nil && *s.Others == 1 {
		who = "another process holds"
	}
	return true, degraded("memory-others", "End what else runs on the GPU (nvidia-smi lists it), or use another.",
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
