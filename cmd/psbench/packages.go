package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gradbus/internal/regular"
	"gradbus/internal/report"
	"gradbus/internal/temporary"
	"gradbus/internal/timerslack"
)

// startWithin is how long the server may take until it is ready.
const startWithin = 30 * time.Second

// comparison is what `psbench packages` was told.
type comparison struct {
	runs, epochs, trainers, shards, lanes int
	input, python                         string
	local, json                           bool

	bin, scripts, work string // folders
	progress           io.Writer
}

func packagesCommand() *cobra.Command {
	p := comparison{}
	c := &cobra.Command{
		Use:   "packages",
		Short: "Measure the workload packages next to one PyTorch process, in alternating runs",
		Example: `  ./bin/psbench packages
  ./bin/psbench packages --runs 5 --trainers 1 --shards 1
  ./bin/psbench packages --local                   shards and trainers in one process
  ./bin/psbench packages --input Packages.xz --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p.progress = c.ErrOrStderr()
			return p.run(c.Context(), c.OutOrStdout())
		},
	}
	set := c.Flags()
	set.SortFlags = false
	set.IntVar(&p.runs, "runs", 3, "`N`: runs of each side")
	set.IntVar(&p.epochs, "epochs", 4, "`N`: epochs of each run")
	set.BoolVar(&p.local, "local", false, "run shards and trainers in one process, without a server")
	set.IntVar(&p.trainers, "trainers", 2, "`N`: trainers, each a process unless --local")
	set.IntVar(&p.shards, "shards", 2, "`N`: shards")
	set.IntVar(&p.lanes, "lanes", 0, "`N`: lanes; 0 is the trainer's default")
	set.StringVar(&p.input, "input", "", "`PATH`: package index; empty is this machine's")
	set.StringVar(&p.python, "python", "",
		"`PROGRAM`: python3 that has torch; empty searches for one, none skips PyTorch")
	set.BoolVar(&p.json, "json", false, "print one line of JSON and nothing else")
	return c
}

func (p *comparison) run(ctx context.Context, out io.Writer) (err error) {
	if p.runs < 1 {
		return fmt.Errorf("runs %d: want at least 1", p.runs)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	p.bin = filepath.Dir(self)
	p.scripts = filepath.Join(p.bin, "..", "scripts")
	if p.work, err = temporary.Folder("folder of the benchmark"); err != nil {
		return err
	}
	defer os.RemoveAll(p.work)

	python := p.findPython(ctx)
	data := filepath.Join(p.work, "examples.tsv")
	if python != "" {
		if _, err := p.output(ctx, p.program("trainer"), p.inputFlags("packages", "--dump", data)...); err != nil {
			return err
		}
	}
	url := ""
	if !p.local {
		var end func()
		if url, end, err = p.server(ctx); err != nil {
			return err
		}
		defer end()
	}

	form := ""
	if p.local {
		form = ", one process"
	}
	ours := report.Rates{Name: fmt.Sprintf("gradbus (trainers %d, shards %d%s)", p.trainers, p.shards, form)}
	torch := &report.Rates{Name: "PyTorch (one process)"}
	var last report.Result
	for i := range p.runs {
		fmt.Fprintf(p.progress, "run %d of %d\n", i+1, p.runs)
		if last, err = p.train(ctx, url); err != nil {
			return err
		}
		ours.Rates = append(ours.Rates, last.SamplesPerSecond)
		if python == "" {
			continue
		}
		rate, err := p.torch(ctx, python, data)
		if err != nil {
			return err
		}
		torch.Rates = append(torch.Rates, rate)
	}
	if python == "" {
		torch = nil
	}
	found := report.Compare(ours, torch, last)
	if p.json {
		return json.NewEncoder(out).Encode(found)
	}
	return found.Print(out)
}

func (p *comparison) program(name string) string { return filepath.Join(p.bin, name) }

func (p *comparison) inputFlags(args ...string) []string {
	if p.input != "" {
		args = append(args, "--input", p.input)
	}
	return args
}

// findPython is a python that can import torch, or "".
func (p *comparison) findPython(ctx context.Context) string {
	candidates := []string{p.python}
	switch p.python {
	case "none":
		return ""
	case "":
		candidates = []string{"python3", "/usr/bin/python3"}
	}
	for _, python := range candidates {
		out, err := exec.CommandContext(ctx, python, filepath.Join(p.scripts, "torch_blas.py")).Output()
		if err != nil {
			continue
		}
		if strings.HasSuffix(strings.TrimSpace(string(out)), " reference") {
			fmt.Fprintf(p.progress, "warning: the torch of %s has the reference BLAS, so this comparison is not fair to it: "+
				"scripts/deps.sh torch installs OpenBLAS\n", python)
		}
		return python
	}
	fmt.Fprintf(p.progress, "no torch in %s: PyTorch is left out of the comparison\n", strings.Join(candidates, ", "))
	return ""
}

// output runs a program and returns its standard output; a failure is told with the last line of its standard error.
func (p *comparison) output(ctx context.Context, program string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	command := exec.CommandContext(ctx, program, args...)
	command.Stderr = &stderr
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	var out []byte
	err := timerslack.Standard(func() (err error) { // what is compared with is started as its users start it
		out, err = command.Output()
		return err
	})
	if err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(program), err, lines[len(lines)-1])
	}
	return out, nil
}

// server starts a ps on a free port. The caller calls end.
func (p *comparison) server(ctx context.Context) (url string, end func(), err error) {
	file := filepath.Join(p.work, "url")
	var stderr bytes.Buffer
	command := exec.Command(p.program("ps"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--port-file", file,
		"--shards", strconv.Itoa(p.shards))
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		return "", nil, fmt.Errorf("start the server: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // how it ended does not matter once it was ready
	}()
	end = func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-ended
	}
	wait, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for tick := time.Tick(20 * time.Millisecond); ; {
		if data, err := regular.Read(file, 1<<10); err == nil {
			return strings.TrimSpace(string(data)), end, nil
		}
		select {
		case <-tick:
		case <-ended:
			return "", nil, fmt.Errorf("start the server: %s", strings.TrimSpace(stderr.String()))
		case <-wait.Done():
			end()
			return "", nil, errors.New("start the server: not ready within " + startWithin.String())
		}
	}
}

func (p *comparison) train(ctx context.Context, url string) (report.Result, error) {
	form := []string{"packages", "--server", url, "--spawn"}
	if p.local {
		form = []string{"packages", "--local", "--shards", strconv.Itoa(p.shards)}
	}
	out, err := p.output(ctx, p.program("trainer"), p.inputFlags(append(form, "--job", "psbench", "--json",
		"--trainers", strconv.Itoa(p.trainers), "--lanes", strconv.Itoa(p.lanes), "--epochs", strconv.Itoa(p.epochs))...)...)
	if err != nil {
		return report.Result{}, err
	}
	var r report.Result
	if err := json.Unmarshal(out, &r); err != nil {
		return report.Result{}, fmt.Errorf("read the trainers' result: %w", err)
	}
	return r, nil
}

func (p *comparison) torch(ctx context.Context, python, data string) (float64, error) {
	out, err := p.output(ctx, python, filepath.Join(p.scripts, "packages_torch.py"), "--data", data, "--epochs",
		strconv.Itoa(p.epochs))
	if err != nil {
		return 0, err
	}
	var r struct {
		SamplesPerSecond float64 `json:"samples_per_second"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, fmt.Errorf("read PyTorch's result: %w", err)
	}
	return r.SamplesPerSecond, nil
}
