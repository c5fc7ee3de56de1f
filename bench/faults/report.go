package faults

import (
	"fmt"
	"io"
	"text/tabwriter"

	"gradbus/bench/harness"
)

// Result is the cost of many kills.
type Result struct {
	Seed     uint64 `json:"seed"`
	Trainers int    `json:"trainers"`
	Replicas int    `json:"replicas"`
	Servers  int    `json:"servers"`
	Jobs     int    `json:"jobs"`
	Kills    int    `json:"kills"`
	// Differ is the number of digests that differ from that of the undisturbed job, and Lost the number of jobs that
	// did not complete.
	Differ int    `json:"digests_differ"`
	Lost   int    `json:"jobs_lost"`
	Digest string `json:"weights_sha256"`
	// QuietMS is the longest time without a completed batch in the job in which nothing happened.
	QuietMS float64 `json:"quiet_pause_ms"`
	Kinds   []Kind  `json:"kinds"`
}

// Kind is the outcome of the faults of one kind. Pauses are times without a completed batch.
type Kind struct {
	Name     string  `json:"name"`
	Kills    int     `json:"kills"`
	NoticeMS float64 `json:"notice_p50_ms"` // until the log of ps said so; 0: it does not say
	P50MS    float64 `json:"pause_p50_ms"`
	P99MS    float64 `json:"pause_p99_ms"`
	MaxMS    float64 `json:"pause_max_ms"`
	Again    int     `json:"batches_again"` // computed again, of all kills of jobs with this kind

	notices, pauses []float64
}

func (k *Kind) finish() {
	k.NoticeMS = harness.Percentile(k.notices, 50)
	k.P50MS, k.P99MS = harness.Percentile(k.pauses, 50), harness.Percentile(k.pauses, 99)
	k.MaxMS = harness.Percentile(k.pauses, 100)
}

// Print writes a table.
func (r *Result) Print(to io.Writer) error {
	by := ""
	switch {
	case r.Servers > 1 && r.Replicas > 0:
		by = fmt.Sprintf(" on %d ps with a replica of each shard", r.Servers)
	case r.Servers > 1:
		by = fmt.Sprintf(" on %d ps", r.Servers)
	case r.Replicas > 0:
		by = " on a pair of ps"
	}
	fmt.Fprintf(to, "%d kills in %d jobs of %d trainers%s, seed %d: %d digests differ, %d jobs lost\n", r.Kills, r.Jobs,
		r.Trainers, by, r.Seed, r.Differ, r.Lost)
	fmt.Fprintf(to, "longest pause of a job in which nothing happened: %.1f ms\n\n", r.QuietMS)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "fault\tkills\tnoticed p50\tpause p50\tp99\tmax\tbatches again")
	for _, k := range r.Kinds {
		noticed := "-"
		if len(k.notices) > 0 || k.NoticeMS > 0 {
			noticed = fmt.Sprintf("%.1f ms", k.NoticeMS)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%.1f ms\t%.1f ms\t%.1f ms\t%d\n", k.Name, k.Kills, noticed, k.P50MS, k.P99MS, k.MaxMS,
			k.Again)
	}
	return w.Flush()
}
