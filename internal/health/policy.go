package health

import "time"

// Policy holds every threshold. Default gives the values that the package comment explains.
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
	// Pair is the time within which an event and a line of the kernel's log are the same XID.
	Pair time.Duration

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

// Default is the policy of the package comment.
func Default() Policy {
	return Policy{
		CleanPolls: 3,
		EventHold:  10 * time.Minute,
		Repeat:     24 * time.Hour,
		Burst:      time.Minute,
		Pair:       5 * time.Second,

		CorrectedMax: 100, CorrectedSpan: 10 * time.Minute,
		RetiredPagesSoft: 15, RetiredPagesMax: 63,
		SlowdownSpan: 10 * time.Minute, SlowdownMax: 6 * time.Minute,
		ThermalMarginMin: 5,
		PCIeReplaysMax:   8, LinkErrorsMax: 0, RateSpan: time.Minute,
		FabricSetup:    5 * time.Minute,
		OthersShareMax: 0.1,
	}
}
