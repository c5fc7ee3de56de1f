package hybrid

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"gradbus/bench/harness"
	"gradbus/schema"
)

// Result is what was measured, over all runs.
type Result struct {
	P50              float64 `json:"p50_seconds_per_epoch"` // over the epochs of all trainers
	P75              float64 `json:"p75_seconds_per_epoch"`
	P90              float64 `json:"p90_seconds_per_epoch"`
	P95              float64 `json:"p95_seconds_per_epoch"`
	SamplesPerSecond float64 `json:"samples_per_second"` // all samples of all trainers, by the time that the slowest took
	Trainers         int     `json:"trainers"`
	Servers          int     `json:"servers"`
	Mode             string  `json:"mode"`
	Placement        string  `json:"placement"`
	Loss             float64 `json:"loss"` // mean over the last epoch
	WeightsSHA256    string  `json:"weights_sha256"`
	Dense            string  `json:"dense"` // what multiplied matrices
	Runs             int     `json:"runs"`

	config Config
	rows   []row
	all    row
	time   float64 // of the slowest trainer, over all runs
	stats  schema.TrainerReport
}

// row is the epochs of one trainer.
type row struct {
	name    string
	epochs  []float64
	samples int
}

func newResult(c Config) *Result {
	return &Result{Trainers: c.Trainers, Servers: c.Servers, Mode: c.Mode, Placement: c.Placement, config: c,
		all: row{name: "All"}}
}

// add takes one run.
func (r *Result) add(found []measured) error {
	if len(found) == 0 {
		return errNothing
	}
	r.Runs++
	slowest, losses := 0.0, 0.0
	for i := range found {
		m := &found[i]
		at := slices.IndexFunc(r.rows, func(x row) bool { return x.name == string(m.Member) })
		if at < 0 {
			at = len(r.rows)
			r.rows = append(r.rows, row{name: string(m.Member)})
		}
		total, samples := 0.0, 0
		for k, seconds := range m.Epochs {
			total, samples = total+seconds, samples+m.Samples[k]
		}
		r.rows[at].epochs, r.rows[at].samples = append(r.rows[at].epochs, m.Epochs...), r.rows[at].samples+samples
		r.all.epochs, r.all.samples = append(r.all.epochs, m.Epochs...), r.all.samples+samples
		slowest, losses = max(slowest, total), losses+m.Loss
		if m.Digest != found[0].Digest {
			return fmt.Errorf("%s has other weights than %s: %s and %s", m.Member, found[0].Member, m.Digest, found[0].Digest)
		}
	}
	r.time += slowest
	r.Loss, r.WeightsSHA256, r.Dense = losses/float64(len(found)), found[0].Digest, found[0].Dense
	r.SamplesPerSecond = float64(r.all.samples) / r.time
	for i, at := range []*float64{&r.P50, &r.P75, &r.P90, &r.P95} {
		*at = harness.Percentile(r.all.epochs, shown[i])
	}
	r.stats = found[0].Stats
	return nil
}

var shown = []float64{50, 75, 90, 95}

// Print writes the table: seconds an epoch at each percentile, and the rate that is.
func (r *Result) Print(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := ""
	for _, p := range shown {
		head += fmt.Sprintf("p%.0f s\tsamples/s\t", p)
	}
	fmt.Fprintf(w, "\t%s\n", head)
	for _, x := range append(slices.Clone(r.rows), r.all) {
		fmt.Fprintf(w, "%s\t%s\n", x.name, x.cells(len(r.rows)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s := &r.stats
	_, err := fmt.Fprintf(to, "\n%.0f samples/s over all; loss %.4f; weights %.12s; dense part by %s\n"+
		"a batch of the first trainer: keys %.2f ms, rows %.2f, compute %.2f, send %.2f, results %.2f; %d messages out, %d "+
		"in, %.0f KB out\n",
		r.SamplesPerSecond, r.Loss, r.WeightsSHA256, r.Dense,
		ms(s, s.KeysSeconds), ms(s, s.LookupSeconds), ms(s, s.ComputeSeconds),
		ms(s, s.SendSeconds), ms(s, s.ResultSeconds),
		s.Traffic.MessagesSent/max(1, s.Batches), s.Traffic.MessagesReceived/max(1, s.Batches),
		float64(s.Traffic.BytesSent)/1000/float64(max(1, s.Batches)))
	return err
}

func ms(s *schema.TrainerReport, seconds schema.Real) float64 {
	return 1000 * float64(seconds) / float64(max(1, s.Batches))
}

// cells are one line's. The row of all has the epochs of every trainer: its rate is that of all of them together.
func (x *row) cells(trainers int) string {
	text := ""
	perEpoch := float64(x.samples) / float64(len(x.epochs))
	if x.name == "All" {
		perEpoch *= float64(trainers)
	}
	for _, p := range shown {
		v := harness.Percentile(x.epochs, p)
		text += fmt.Sprintf("%.4f\t%.0f\t", v, perEpoch/v)
	}
	return text
}
