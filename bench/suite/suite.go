// Package suite runs the four reference systems and the other benchmarks one after the other in small settings, and
// reports the outcome of each.
//
// It knows the systems by their commands and output, as a user does: each is this program again, which prints one line
// of JSON. It must not know their packages.
package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"gradbus/internal/spawn"
)

// System is one of them: what it shows, how it is run, and which of its figures stand in the table.
type System struct {
	Name    string
	Shows   string
	Args    []string
	Figures []figure
	Alone   bool // Suite.More is not for it
}

// figure is a number in the JSON that a system prints: the path of its field, with dots, or # for how many results
// there are.
type figure struct{ Field, Unit string }

// Systems are the four and the other benchmarks, in settings that take a moment each and need no data.
func Systems() []System {
	return []System{
		{"update", "a server with the model and its optimizer",
			[]string{"update", "--trainers", "3", "--batches", "50", "--in", "100", "--out", "30", "--trainer-batch", "20",
				"--lr", "0.001", "--momentum", "0.9"},
			[]figure{{"rounds_per_second", "rounds/s"}, {"loss_last", "loss"}}, false},
		{"average", "replicas, buckets averaged by a server",
			[]string{"average", "--trainers", "2", "--servers", "1", "--server-kind", "average", "--hook", "rpc", "--epochs",
				"1", "--sparse"},
			[]figure{{"batch_all_ms", "ms a batch"}, {"backward_ms", "ms backward"}}, false},
		{"hybrid", "embeddings on servers, dense part all-reduced",
			[]string{"hybrid", "--trainers", "2", "--servers", "2", "--epochs", "3", "--warmup", "1", "--mode", "sync"},
			[]figure{{"p50_seconds_per_epoch", "s an epoch"}, {"samples_per_second", "samples/s"}}, false},
		{"hosted", "the whole model on a server",
			[]string{"hosted", "--trainers", "2", "--batches", "10", "--mode", "remote", "--input",
				"synthetic"},
			[]figure{{"images_per_second", "images/s"}, {"loss", "loss"}}, false},
		{"packages", "the workload packages, beside PyTorch where a python3 has it",
			[]string{"packages", "--runs", "1", "--epochs", "1", "--input", "synthetic"},
			[]figure{{"last.samples_per_second", "samples/s"}, {"last.loss", "loss"}}, true},
		{"fabric", "the exchange of gradients alone",
			[]string{"fabric", "--turns", "1", "--seconds", "0.3", "--bytes", "1048576"},
			[]figure{{"round_gb_per_second", "GB/s"}, {"request_p50_us", "us a request"}}, true},
		{"kernels", "every kernel by itself",
			[]string{"kernels", "--quick"},
			[]figure{{"#", "results"}}, true},
	}
}

// Outcome is the outcome of one system.
type Outcome struct {
	Name    string          `json:"name"`
	Shows   string          `json:"shows"`
	Command string          `json:"command"`
	Seconds float64         `json:"seconds"` // of the whole command
	OK      bool            `json:"ok"`
	Error   string          `json:"error,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"` // the line that it printed

	figures []figure
}

// Suite is one run of systems. Path is the program, More are arguments that each gets besides its own and --json,
// Progress takes a line before each.
type Suite struct {
	Path     string
	More     []string
	Systems  []System
	Progress io.Writer
}

// grace is the time for a system to end its own processes when it is interrupted.
const grace = 15 * time.Second

// Run runs the systems one after the other, each whether those before it worked or not, and ends early only with ctx.
// Failed says what the outcomes are worth.
func (s Suite) Run(ctx context.Context) ([]Outcome, error) {
	var all []Outcome
	for i, system := range s.Systems {
		o := Outcome{Name: system.Name, Shows: system.Shows, Command: "psbench " + strings.Join(system.Args, " "),
			figures: system.Figures}
		fmt.Fprintf(s.Progress, "%d of %d: %s\n", i+1, len(s.Systems), o.Command)
		begin := time.Now()
		line, err := s.one(ctx, system)
		o.Seconds = time.Since(begin).Seconds()
		switch {
		case ctx.Err() != nil:
			return all, context.Cause(ctx)
		case err == nil:
			o.OK, o.Result = true, line
			err = o.check()
		}
		if err != nil {
			o.OK, o.Error = false, err.Error()
		}
		all = append(all, o)
	}
	return all, nil
}

// one is the line that a system prints.
func (s Suite) one(ctx context.Context, system System) (line []byte, err error) {
	lines := 0
	args := system.Args[:len(system.Args):len(system.Args)]
	if !system.Alone {
		args = append(args, s.More...)
	}
	args = append(args, "--json")
	p := spawn.Process{Name: system.Name, Path: s.Path, Args: args, OnLine: func(text []byte) {
		line, lines = append([]byte{}, text...), lines+1
	}}
	if err := (spawn.Group{Grace: grace}).Run(ctx, []spawn.Process{p}); err != nil {
		var failed *spawn.Error
		if errors.As(err, &failed) {
			failed.Said = strings.TrimPrefix(failed.Said, "psbench: ")
		}
		return nil, err
	}
	if lines != 1 {
		return nil, fmt.Errorf("%s: printed %d lines, want one of JSON", system.Name, lines)
	}
	return line, nil
}

// check finds every figure in what was printed: a field that is missing, or not above zero, is a system that did not
// work.
func (o *Outcome) check() error {
	for _, f := range o.figures {
		if x, err := o.value(f); err != nil {
			return err
		} else if !(x > 0) {
			return fmt.Errorf("%s: %s is %v, want it above 0", o.Name, f.Field, x)
		}
	}
	return nil
}

func (o *Outcome) value(f figure) (x float64, err error) {
	var at any
	if err := json.Unmarshal(o.Result, &at); err != nil {
		return 0, fmt.Errorf("%s: not JSON: %w", o.Name, err)
	}
	if list, ok := at.([]any); ok && f.Field == "#" {
		return float64(len(list)), nil
	}
	for name := range strings.SplitSeq(f.Field, ".") {
		fields, _ := at.(map[string]any)
		at = fields[name]
	}
	x, ok := at.(float64)
	if !ok {
		return 0, fmt.Errorf("%s: no number %s in what it printed", o.Name, f.Field)
	}
	return x, nil
}

// Failed is nil where all worked, and else names those that did not.
func Failed(all []Outcome) error {
	var wrong []string
	for _, o := range all {
		if !o.OK {
			wrong = append(wrong, o.Error)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d systems failed: %s", len(wrong), len(all), strings.Join(wrong, "; "))
}

// Print writes the outcomes as one table.
func Print(to io.Writer, all []Outcome) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "system\twhat it shows\tfigures\t\tseconds\tworked")
	for _, o := range all {
		cells, worked := []string{"", ""}, "yes"
		if !o.OK {
			worked = "no"
		}
		for i, f := range o.figures {
			if x, err := o.value(f); err == nil && i < len(cells) {
				cells[i] = fmt.Sprintf("%.4g %s", x, f.Unit)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%s\n", o.Name, o.Shows, strings.Join(cells, "\t"), o.Seconds, worked)
	}
	return w.Flush()
}
