package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// childFlag makes this binary a process of a test instead: what it is told as JSON.
var childFlag = flag.String("child", "", "for the tests' own use")

// errand is what a child process is to do.
type errand struct {
	Shards  int         // be a server with so many, until standard input ends
	Job     *schema.Job // be a trainer of it
	URL     string      // of the trainer's server
	Member  schema.Member
	Batches uint64
}

// tale is what a child says on standard output, one line each.
type tale struct {
	URL   string                `json:",omitempty"` // of a server that is ready
	Stats *schema.TrainerReport `json:",omitempty"` // of a trainer that is through, every sum compared
}

func runChild(text string) int {
	var e errand
	err := json.Unmarshal([]byte(text), &e)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch {
	case err != nil:
	case e.Shards > 0:
		err = beServer(ctx, serverConfig(e.Shards))
	default:
		err = beTrainer(ctx, &e)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func say(t tale) error { return json.NewEncoder(os.Stdout).Encode(t) }

// serverConfig is that of ./bin/ps, at any free port.
func serverConfig(shards int) ps.Config {
	c := ps.Default()
	c.Port, c.Shards = 0, shards
	return c
}

// beServer is what ./bin/ps does, collector and all.
func beServer(ctx context.Context, c ps.Config) error {
	config.PaceCollector()
	server, err := ps.Start(ctx, c, ps.Options{LimitHeap: config.HeapLimiter()})
	if err != nil {
		return err
	}
	defer server.Close()
	if err := say(tale{URL: server.URL()}); err != nil {
		return err
	}
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test closes it, or is no more
	return nil
}

func beTrainer(ctx context.Context, e *errand) error {
	backend, err := cuda.Open(cuda.Options{Name: "auto"})
	if err != nil {
		return err
	}
	s, err := trainer.Join(ctx, trainer.Config{Server: e.URL, Member: e.Member, Backend: backend}, e.Job)
	if err != nil {
		return err
	}
	books := newLedger(e.Job)
	if err = s.Run(ctx, books, e.Batches, nil); err == nil {
		err = books.checkEnd(ctx, s)
	}
	stats := s.Stats()
	if err != nil {
		_ = s.Abort(err) // err is what matters
		return err
	}
	if err = say(tale{Stats: &stats}); err == nil {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // stays a member until the test is through with it
		err = s.Close()
	}
	return err
}

// child is a process that does an errand.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	tales *json.Decoder
	end   func() error // closes its input and waits for it
}

// send starts a child. Whatever happens, it is gone when the test ends.
func send(t *testing.T, e errand) *child {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(os.Args[0], "-child", string(text))}
	c.cmd.Stderr = t.Output()
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.tales = json.NewDecoder(out)
	c.end = sync.OnceValue(func() error {
		in.Close()
		return c.cmd.Wait()
	})
	t.Cleanup(func() {
		if t.Failed() {
			_ = c.cmd.Process.Kill()
		}
		_ = c.end()
	})
	return c
}

// tale waits for what a child has to say.
func (c *child) tale() (t tale) {
	c.t.Helper()
	if err := c.tales.Decode(&t); err != nil {
		c.t.Fatalf("child: %v", err)
	}
	return t
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// peakBytes is the most memory that a child has had resident.
func (c *child) peakBytes() int64 {
	c.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		c.cannotTell("needs /proc to see a process's memory")
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				c.t.Fatal(err)
			}
			return kb << 10
		}
	}
	c.cannotTell("this kernel does not say how much memory a process had")
	return 0
}

// cannotTell ends a test that this machine has no means for; where the whole volume is asked for, that is a failure.
func (c *child) cannotTell(why string) {
	c.t.Helper()
	if *fullFlag {
		c.t.Fatal(why + "; without -full this is left out")
	}
	c.t.Skip(why + "; with -full this is a failure")
}
