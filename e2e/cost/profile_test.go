package cost

import (
	"context"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gradbus/e2e/commands"
	"gradbus/fabric"
	"gradbus/internal/testkit"
)

var (
	profiled = flag.Duration("profiled", 30*time.Second, "for how long processes are profiled")
	keep     = flag.String("profiles", "", "folder to keep the profiles in")
)

// way is the part that a report's journey is told as.
const way = "the way of reports, by NATS"

// settle is how long a job runs before the profile of its ps begins: that of a beginning is another one.
const settle = 4 * time.Second

// BenchmarkProfile says what part of the processor time of a job that is watched is spent on observing it, by parts.
func BenchmarkProfile(b *testing.B) {
	checkTimes(b)
	folder, profiles := b.TempDir(), *keep
	if profiles == "" {
		profiles = b.TempDir()
	}
	if err := commands.Build(folder, "gradbus/cmd/ps", "gradbus/cmd/psbench"); err != nil {
		b.Fatal(err)
	}
	report := wayOf(b)
	for b.Loop() {
		server, clients := profileJob(b, folder, profiles)
		server.usual(float64(*times))
		clients.usual(float64(*times))
		server.parts[way] = float64(*trainers) * report // which is in the total already
		fmt.Printf("observing allocates %.1f %% of what the ps does, %.1f %% of what the trainers do\n", 100*server.share,
			100*clients.share)
		b.ReportMetric(table(os.Stdout, server, clients), "%/run")
	}
}

// profileJob runs a job with everybody watching, and gives what its ps and its trainers spend.
func profileJob(b *testing.B, folder, to string) (server, clients cost) {
	s := startServer(b, folder, true, "--pprof", "127.0.0.1:0")
	at := s.profiles(b)
	w := s.watch(b.Context(), *times)
	c := exec.Command(filepath.Join(folder, "psbench"), "update", "--in-process", "--server", s.url, "--trainers",
		strconv.Itoa(*trainers),
		"--batches", strconv.Itoa(1<<24), "--warmup", "0", "--telemetry-every", often(),
		"--heartbeat-every", often(), "--json", "--profile", to)
	var said testkit.Text
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	b.Cleanup(func() { _ = c.Process.Kill() }) // where it has not ended
	time.Sleep(settle)
	seconds := int(profiled.Seconds())
	allocated := make(chan error, 1)
	go func() {
		allocated <- download(b.Context(), fmt.Sprintf("%sallocs?seconds=%d", at, seconds),
			filepath.Join(to, "ps.allocs.pprof"))
	}()
	err := download(b.Context(), fmt.Sprintf("%sprofile?seconds=%d", at, seconds), filepath.Join(to, "ps.pprof"))
	if e := <-allocated; err == nil {
		err = e
	}
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	select {
	case <-ended: // with an error, since it was ended
	case <-time.After(guard):
		b.Fatalf("psbench does not end:\n%s", said.String())
	}
	if err := w.end(); err != nil {
		b.Fatal(err)
	}
	return spent(b, to, "ps"), spent(b, to, "all")
}

// spent reads the profiles of a process.
func spent(b *testing.B, folder, name string) cost {
	b.Helper()
	processor, err := readProfile(filepath.Join(folder, name+".pprof"), "us", "")
	if err != nil {
		b.Fatal(err)
	}
	allocated, err := readProfile(filepath.Join(folder, name+".allocs.pprof"), "B", "alloc_space")
	if err != nil {
		b.Fatal(err)
	}
	c, err := costOf(&processor, &allocated)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return c
}

// profiles is where a ps says that its profiles are.
func (s *server) profiles(b *testing.B) string {
	b.Helper()
	for line := range strings.Lines(s.said.String()) {
		if _, after, found := strings.Cut(line, `"msg":"profiles","url":"`); found {
			at, _, _ := strings.Cut(after, `"`)
			return at
		}
	}
	b.Fatalf("the ps does not say where its profiles are:\n%s", s.said.String())
	return ""
}

func download(ctx context.Context, url, path string) error {
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer body.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(file, body)
	return err
}

// wayOf is what the way of one report costs, in microseconds of processors, with all who are woken on it and nothing
// else: through the sender's connection, the server and the listener's connection to the goroutine that would show it.
// A report leaves with a heartbeat, so it is by how much more they take together. No other goroutine is at work, and
// waking one that sleeps takes more than giving work to one that is awake, so a busy job pays less.
func wayOf(b *testing.B) float64 {
	b.Helper()
	const reportBytes, heartbeatBytes, measured = 1500, 128, 4 * time.Second
	nats, err := fabric.StartServer(fabric.ServerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer nats.Close()
	listener, err := fabric.DialControl(b.Context(), fabric.Config{Server: nats, Name: "listener"})
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	ctx, stop := context.WithCancel(b.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var shown atomic.Int64
	decode, show := make(chan []byte, 1024), make(chan []byte, 1024) // as between the goroutines of a ps
	all.Go(func() {
		for data := range until(ctx, decode) {
			show <- data
		}
	})
	all.Go(func() {
		for range until(ctx, show) {
			shown.Add(1)
		}
	})
	pattern := fabric.Pattern(fabric.Any, fabric.Any, fabric.KindHeartbeat, "all", false)
	if err := listener.Subscribe(pattern, func(m fabric.Message) {
		if len(m.Data) > heartbeatBytes {
			decode <- m.Data
		}
	}); err != nil {
		b.Fatal(err)
	}
	var loud atomic.Bool
	for i := range *trainers {
		c, err := fabric.DialControl(b.Context(), fabric.Config{URL: nats.URL(), Name: fmt.Sprintf("sender%d", i)})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		from, report := fmt.Sprintf("t%d", i), make([]byte, reportBytes)
		all.Go(func() {
			every := time.NewTicker(time.Second / time.Duration(*times))
			defer every.Stop()
			for range until(ctx, every.C) {
				bytes := heartbeatBytes
				if loud.Load() {
					bytes = len(report)
				}
				at := fabric.At("way", from, fabric.KindHeartbeat, "all")
				_ = c.Send(at, report[:bytes]) // what does not arrive is not counted
			}
		})
	}
	without := during(measured)
	loud.Store(true)
	with := during(measured)
	n := shown.Load()
	if n == 0 {
		b.Fatal("no report has arrived")
	}
	each := max(0, (with-without).Seconds()*1e6/float64(n))
	b.Logf("the way of a report takes %.0f us of a processor, of a machine that is not busy (%d of them)", each, n)
	return each
}

// until gives what comes until ctx ends.
func until[T any](ctx context.Context, from <-chan T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for {
			select {
			case x := <-from:
				if !yield(x) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// during is the processor time of this process in a time to come.
func during(d time.Duration) time.Duration {
	taken := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			return 0
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := taken()
	time.Sleep(d)
	return taken() - before
}
