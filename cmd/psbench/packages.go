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

	"gradbus/bench/harness"
	"gradbus/internal/regular"
	"gradbus/internal/report"
	"gradbus/internal/temporary"
	"gradbus/internal/timerslack"
)

// startWithin bounds the time until the server is ready.
const startWithin = 30 * time.Second

// comparison has the settings of `psbench packages`.
type comparison struct {
	Runs     int    `flag:"runs" default:"3" range:"1 1000" help:"N: runs of each side"`
	Epochs   int    `flag:"epochs" default:"4" help:"N: epochs of each run"`
	Local    bool   `flag:"local" help:"run shards and trainers in one process, without a server"`
	Trainers int    `flag:"trainers" default:"2" help:"N: trainers, each a process unless --local"`
	Shards   int    `flag:"shards" default:"2" help:"N: shards"`
	Lanes    int    `flag:"lanes" help:"N: lanes; 0 is the trainer's default"`
	Input    string `flag:"input" help:"PATH: package index; empty is this machine's"`
	Python   string `flag:"python" help:"PROGRAM: python3 that has torch; empty searches for one, none skips PyTorch"`
	JSON     bool   `flag:"json" help:"print one line of JSON and nothing else"`

	bin, scripts, work string // folders
	progress           io.Writer
}

func packagesCommand() *cobra.Command {
	var p comparison
	harness.SetDefaults(&p)
	return benchmark(&cobra.Command{
		Use:   "packages",
		Short: "Measure the workload packages next to one PyTorch process, in alternating runs",
		Example: `  ./bin/psbench packages
  ./bin/psbench packages --runs 5 --trainers 1 --shards 1
  ./bin/psbench packages --local                   shards and trainers in one process
  ./bin/psbench packages --input Packages.xz --json`,
	}, &p, &p.JSON, p.run)
}

func (p *comparison) run(ctx context.Context, _, errs io.Writer) (found result, err error) {
	if err := harness.CheckSettings(p); err != nil {
		return nil, err
	}
	p.progress = errs
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p.bin = filepath.Dir(self)
	p.scripts = filepath.Join(p.bin, "..", "scripts")
	if p.work, err = temporary.Folder("folder of the benchmark"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(p.work)

	python := p.findPython(ctx)
	data := filepath.Join(p.work, "examples.tsv")
	if python != "" {
		if _, err := p.output(ctx, p.program("trainer"), p.inputFlags("packages", "--dump", data)...); err != nil {
			return nil, err
		}
	}
	url := ""
	if !p.Local {
		var end func()
		if url, end, err = p.server(ctx); err != nil {
			return nil, err
		}
		defer end()
	}

	form := ""
	if p.Local {
		form = ", one process"
	}
	ours := report.Rates{Name: fmt.Sprintf("gradbus (trainers %d, shards %d%s)", p.Trainers, p.Shards, form)}
	torch := &report.Rates{Name: "PyTorch (one process)"}
	var last report.Result
	for i := range p.Runs {
		fmt.Fprintf(p.progress, "run %d of %d\n", i+1, p.Runs)
		if last, err = p.train(ctx, url); err != nil {
			return nil, err
		}
		ours.Rates = append(ours.Rates, last.SamplesPerSecond)
		if python == "" {
			continue
		}
		rate, err := p.torch(ctx, python, data)
		if err != nil {
			return nil, err
		}
		torch.Rates = append(torch.Rates, rate)
	}
	if python == "" {
		torch = nil
	}
	return report.Compare(ours, torch, last), nil
}

func (p *comparison) program(name string) string { return filepath.Join(p.bin, name) }

func (p *comparison) inputFlags(args ...string) []string {
	if p.Input != "" {
		args = append(args, "--input", p.Input)
	}
	return args
}

// findPython is a python that can import torch, or "".
func (p *comparison) findPython(ctx context.Context) string {
	candidates := []string{p.Python}
	switch p.Python {
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
		"--shards", strconv.Itoa(p.Shards))
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
	if p.Local {
		form = []string{"packages", "--local", "--shards", strconv.Itoa(p.Shards)}
	}
	out, err := p.output(ctx, p.program("trainer"), p.inputFlags(append(form, "--job", "psbench", "--json",
		"--trainers", strconv.Itoa(p.Trainers), "--lanes", strconv.Itoa(p.Lanes), "--epochs", strconv.Itoa(p.Epochs))...)...)
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
		strconv.Itoa(p.Epochs))
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
