// Package cost measures what it costs to watch a job: the processor time of the same batches of the same job with nobody watching and
// with everybody, in turn.
//
//	go test -tags native ./e2e/cost -run '^$' -bench Observing -benchtime 10x
//
// Each turn is one pair. What watching costs is far below what two runs differ by on most machines, so the watchers do so many times
// what they usually do (-times): so many pulses a second, streams of the page and scrapes. The share that a single one costs is
// the difference divided by that. What browsers and Prometheus spend themselves is not counted, as they are usually elsewhere.
package cost
