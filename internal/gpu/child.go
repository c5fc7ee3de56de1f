package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// ProbeOptions are those of Serve.
type ProbeOptions struct {
	Library string        // name or path of the driver's library
	Every   time.Duration // between samples
	Out     io.Writer     // gets the lines
	In      io.Reader     // read until it ends, and then the process ends: its parent has the other end
}

const (
	errorBytesMax  = 200 // of a probe's standard error, the first
	linesQueued    = 256 // read and not taken yet; the probe waits if there are more
	probeGraceTime = 500 * time.Millisecond
)

// child is a probe under way. Its goroutine reads what it writes and waits for its end; it outlives kill where the
// process hangs in the kernel and cannot be killed.
type child struct {
	cmd   *exec.Cmd
	lines chan *Line    // closed when the process has ended by itself, or was ended since it did not behave
	why   string        // says how, from then on
	ended chan struct{} // closed when the process has ended
	kill  func()        // ends it as far as that is possible, and the reading
	none  bool          // it said that there is nothing to ask
}

// head keeps the first bytes that are written: a panic names its reason before its goroutines.
type head []byte

func (h *head) Write(text []byte) (int, error) {
	*h = append(*h, text[:min(len(text), errorBytesMax-len(*h))]...)
	return len(text), nil
}

// startChild starts a probe.
func startChild(argv []string) (*child, error) {
	if len(argv) == 0 {
		return nil, errors.New("no probe is configured")
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &child{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), lines: make(chan *Line, linesQueued),
		ended: make(chan struct{})}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for the parent, which then ends the probe
	c.cmd.WaitDelay = probeGraceTime                        // a child of its own may hold its standard error open
	var errs head                                           // not ours, which a probe that hangs would hold open
	c.cmd.Stderr = &errs
	in, err := c.cmd.StdinPipe() // closing it tells the probe to end, which Wait does, and the end of this process
	var out io.ReadCloser
	if err == nil {
		out, err = c.cmd.StdoutPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	c.kill = func() { cancel(); in.Close(); out.Close() }
	go func() {
		refused := c.read(ctx, out)
		if refused != "" {
			cancel()
		}
		closed := time.AfterFunc(probeGraceTime, cancel)
		status := c.cmd.Wait()
		switch inTime := closed.Stop(); {
		case refused != "":
			c.why = "the probe was ended: " + refused
		case !inTime:
			c.why = "the probe has closed its output without ending, and was killed"
		default:
			c.why = "the probe ended"
			if said, _, _ := strings.Cut(strings.TrimSpace(string(errs)), "\n"); status != nil {
				c.why = strings.TrimSuffix(fmt.Sprintf("the probe ended: %v: %s", status, said), ": ")
			}
		}
		c.kill()
		close(c.ended)
		close(c.lines)
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// read passes lines on until there are no more. It says why the probe is to be ended that writes something else.
func (c *child) read(ctx context.Context, out io.Reader) (refused string) {
	for in := json.NewDecoder(out); ; {
		line := &Line{}
		var wrong *json.SyntaxError
		if err := in.Decode(line); errors.As(err, &wrong) {
			return fmt.Sprintf("it writes lines that are not a probe's: %v", err)
		} else if err != nil {
			return ""
		}
		select {
		case c.lines <- line:
		case <-ctx.Done():
			return ""
		}
	}
}

// hasEnded waits for the end of the process, at most for a while.
func (c *child) hasEnded(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c.ended:
		return true
	default:
	}
	select {
	case <-c.ended:
		return true
	case <-timer.C:
		return false
	}
}
