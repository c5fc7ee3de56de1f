package gpu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds of what a probe may say.
const (
	lineBytesMax   = 256 << 10 // a hello of GPUsMax GPUs fits many times
	errorBytesMax  = 4 << 10   // of its standard error, the first: a panic names its reason before its goroutines
	linesQueued    = 256       // read and not taken yet; the probe waits where there are more
	badLinesMax    = 8         // that are no lines of a probe; then it is none
	probeGraceTime = 500 * time.Millisecond
)

// child is a probe under way. Two goroutines read its outputs and one waits for its end; they end when it does, or,
// where it hangs in the kernel and cannot be killed, the readers with kill and the waiter with the process.
type child struct {
	cmd    *exec.Cmd
	lines  chan *Line // closed when there will be no more
	out    *os.File
	errs   *os.File
	stdin  *os.File      // closing it tells the probe to end
	exited chan struct{} // closed when the process has
	readBy sync.WaitGroup
	stop   chan struct{}
	once   sync.Once
	none   bool // it said that there is nothing to ask

	mu     sync.Mutex
	stderr []byte
	bad    string
	status error
}

// startChild starts a probe.
func startChild(argv []string) (*child, error) {
	if len(argv) == 0 {
		return nil, errors.New("no probe is configured")
	}
	var files []*os.File
	fail := func(err error) (*child, error) {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		files = append(files, r, w)
	}
	c := &child{cmd: exec.Command(argv[0], argv[1:]...), lines: make(chan *Line, linesQueued),
		exited: make(chan struct{}), stop: make(chan struct{})}
	c.cmd.Stdin, c.stdin = files[0], files[1]
	c.out, c.cmd.Stdout = files[2], files[3]
	c.errs, c.cmd.Stderr = files[4], files[5]
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for the parent, which then ends the probe
	if err := c.cmd.Start(); err != nil {
		return fail(err)
	}
	for _, f := range []*os.File{files[0], files[3], files[5]} {
		f.Close()
	}
	c.readBy.Add(2)
	go c.read()
	go c.readErrors()
	go func() {
		err := c.cmd.Wait()
		c.mu.Lock()
		c.status = err
		c.mu.Unlock()
		close(c.exited)
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// read passes lines on until there are no more, one is too long or too many are bad.
func (c *child) read() {
	defer c.readBy.Done()
	defer close(c.lines)
	scanner := bufio.NewScanner(c.out)
	scanner.Buffer(make([]byte, 0, 4096), lineBytesMax)
	bad := 0
	for scanner.Scan() {
		line := &Line{}
		if err := json.Unmarshal(scanner.Bytes(), line); err != nil || !line.Valid() {
			if bad++; bad > badLinesMax {
				c.refuse(fmt.Sprintf("it writes lines that are not a probe's, such as %.60q", scanner.Text()))
				return
			}
			continue
		}
		select {
		case c.lines <- line:
		case <-c.stop:
			return
		}
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		c.refuse(fmt.Sprintf("it writes a line of more than %d bytes", lineBytesMax))
	}
}

// refuse ends a probe that does not behave.
func (c *child) refuse(why string) {
	c.mu.Lock()
	c.bad = why
	c.mu.Unlock()
	_ = c.cmd.Process.Kill()
}

func (c *child) readErrors() {
	defer c.readBy.Done()
	buffer := make([]byte, 1024)
	for {
		n, err := c.errs.Read(buffer)
		c.mu.Lock()
		c.stderr = append(c.stderr, buffer[:min(n, errorBytesMax-len(c.stderr))]...)
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// kill ends the probe as far as that is possible, and all that reads from it.
func (c *child) kill() {
	c.once.Do(func() {
		close(c.stop)
		_ = c.cmd.Process.Kill()
		c.stdin.Close()
		c.out.Close()
		c.errs.Close()
	})
}

// gone says that a killed probe has ended.
func (c *child) gone() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// waitUntil waits for a killed probe.
func (c *child) waitUntil(deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C:
	}
	c.readBy.Wait()
}

// wait waits for a moment for a probe whose lines have ended, kills it where it has not ended itself, and says why it
// did.
func (c *child) wait() string {
	timer := time.NewTimer(probeGraceTime)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C:
	}
	gone := c.gone()
	if gone { // what it wrote at its end is still to be read; a child of its own may hold the pipe open
		_ = c.errs.SetReadDeadline(time.Now().Add(probeGraceTime))
		c.readBy.Wait()
	}
	c.kill()
	c.readBy.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.bad != "":
		return "the probe was ended: " + c.bad
	case !gone:
		return "the probe has closed its output without ending, and was killed"
	}
	return endOf(c.status, string(c.stderr))
}

// endOf says in one sentence how a probe ended.
func endOf(status error, stderr string) string {
	said := ""
	for line := range strings.Lines(stderr) {
		if line = strings.TrimSpace(line); line != "" && (said == "" || strings.Contains(line, "undefined symbol")) {
			said = line
		}
	}
	if len(said) > 200 {
		said = said[:200]
	}
	because := ""
	if said != "" {
		because = " (" + said + ")"
	}
	var exit *exec.ExitError
	switch {
	case status == nil:
		return "the probe ended by itself" + because
	case !errors.As(status, &exit):
		return fmt.Sprintf("the probe ended: %v%s", status, because)
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return fmt.Sprintf("the probe was ended by signal %d (%s)%s", ws.Signal(), ws.Signal(), because)
	}
	return fmt.Sprintf("the probe ended with status %d%s", exit.ExitCode(), because)
}
