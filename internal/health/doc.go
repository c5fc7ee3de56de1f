// Package health decides how a GPU is: samples of what its driver says and the errors that it reports go in, and a
// state with a reason, the time since when, and what to do come out.
//
// It is pure: it knows no driver, no process and no clock. A Machine is fed lines of a probe (sample.go) with the time
// at which each came.
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
// Kept gives, and Learn takes, what is to be remembered and shared (kept.go): findings that stay, incidents of class
// restart, until when somebody has acknowledged or the GPU was reset, and the counters that tell the next reset.
// Nothing that was injected or is made up is among it, and an injected incident makes no real one a repeat.
//
// Each process learns what is remembered before its first word on a GPU, and whenever another one has changed it. It
// drops what was found up to the time of an acknowledgement or a reset, and takes the rest over. That the machine was
// started anew is a reset.
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
//	fabric-failed             unhealthy  its setup failed: no kernel starts; goes by itself when it is mended
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
// The driver reports errors by number, as an event and as a line of the kernel's log; one that comes by both within
// five seconds counts once. What follows is what NVIDIA's catalog of XIDs asks for at once (xids_generated.go, of all
// numbers that it documents); testdata/xid_catalog.tsv says as of when.
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
// own counters. Errors while no process watches. A reset of a GPU without persistence mode, while no process watches:
// the GPU stays unhealthy until it is acknowledged.
package health
