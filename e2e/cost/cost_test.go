package cost

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/e2e/commands"
)

var (
	times    = flag.Int("times", 4, "how many times what is usual watchers do, at most 4: a ps hears no more pulses of a trainer in a second")
	trainers = flag.Int("trainers", 64, "trainers of the job")
	batches  = flag.Int("batches", 1500, "batches of each trainer in a run")
)

const (
	pages = 2                      // streams of the page that are usually open
	guard = 10 * time.Minute       // of every wait: reaching it means that what is waited for will never come
	tick  = 10 * time.Millisecond  // in which the kernel counts processor time
	never = "1h"                   // between the pulses of trainers that say nothing
	wait  = 500 * time.Millisecond // until what a run has left behind is settled
)

// server is a ps that stays for all turns.
type server struct {
	*exec.Cmd
	url, page string // page is empty where it has none
	said      *commands.Output
}

// startServer starts a ps, with a page or without, and with more flags.
func startServer(b *testing.B, folder string, seen bool, flags ...string) *server {
	b.Helper()
	at, page := filepath.Join(b.TempDir(), "url"), filepath.Join(b.TempDir(), "page")
	args := []string{"--listen", "127.0.0.1:0", "--port-file", at, "--http"}
	if seen {
		args = append(args, "127.0.0.1:0", "--http-port-file", page)
	} else {
		args = append(args, "off")
	}
	s := &server{Cmd: exec.Command(filepath.Join(folder, "ps"), append(args, flags...)...), said: new(commands.Output)}
	s.Stdout, s.Stderr = s.said, s.said
	done := commands.Run(b, s.Cmd, commands.Terminate, s.said.String)
	s.url = read(b, at, done)
	if seen {
		s.page = read(b, page, done)
	}
	return s
}

// read waits for a file that a ps writes when it is ready.
func read(b *testing.B, path string, done <-chan struct{}) string {
	b.Helper()
	for deadline := time.Now().Add(guard); ; time.Sleep(20 * time.Millisecond) {
		if data, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(data))
		}
		select {
		case <-done:
			b.Fatal("the ps has ended")
		default:
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s: not within %v", path, guard)
		}
	}
}

// processor is the time that a process which still runs has had of processors.
func (s *server) processor(b *testing.B) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(after) // from the third on, which is the state
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		b.Fatalf("%q: %v", data, err)
	}
	return time.Duration(user+system) * tick
}

// job runs the batches, and gives the processor time of the server and of the trainers.
func job(b *testing.B, folder string, s *server, every string) (spent time.Duration) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), guard)
	defer cancel()
	before := s.processor(b)
	c := exec.CommandContext(ctx, filepath.Join(folder, "psbench"), "update", "--in-process", "--join", s.url, "--trainers", strconv.Itoa(*trainers),
		"--batches", strconv.Itoa(*batches), "--warmup", "0", "--pulse-every", every, "--json")
	out, err := c.CombinedOutput()
	if err != nil {
		b.Fatalf("psbench: %v\n%s", err, out)
	}
	time.Sleep(wait)
	return s.processor(b) - before + c.ProcessState.UserTime() + c.ProcessState.SystemTime()
}

// watchers look at a page until they are told to stop.
type watchers struct {
	stop    context.CancelFunc
	all     sync.WaitGroup
	mu      sync.Mutex
	updates int
	scrapes int
	err     error
}

func (s *server) watch(ctx context.Context, times int) *watchers {
	ctx, stop := context.WithCancel(ctx)
	w := &watchers{stop: stop}
	for range pages * times {
		w.all.Go(func() { w.fail(ctx, w.stream(ctx, s.page+"api/v1/stream")) })
	}
	w.all.Go(func() {
		every := time.NewTicker(time.Second / time.Duration(times))
		defer every.Stop()
		for {
			select {
			case <-every.C:
				w.fail(ctx, w.scrape(ctx, s.page+"metrics"))
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

func (w *watchers) fail(ctx context.Context, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		w.err = errors.Join(w.err, err)
	}
}

// get asks for a URL, whose body is the caller's to close.
func get(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return response.Body, nil
}

// stream reads updates of the page until its end.
func (w *watchers) stream(ctx context.Context, url string) error {
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewReaderSize(body, 1<<16)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.HasPrefix(line, "data:") {
			w.mu.Lock()
			w.updates++
			w.mu.Unlock()
		}
	}
}

func (w *watchers) scrape(ctx context.Context, url string) error {
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err = io.Copy(io.Discard, body); err == nil {
		w.mu.Lock()
		w.scrapes++
		w.mu.Unlock()
	}
	return err
}

// end stops them. It is a failure of the measurement where they have seen nothing.
func (w *watchers) end(b *testing.B) {
	b.Helper()
	w.stop()
	w.all.Wait()
	if w.err != nil || w.updates == 0 || w.scrapes == 0 {
		b.Fatalf("watchers have seen %d updates and %d scrapes: %v", w.updates, w.scrapes, w.err)
	}
}

func checkTimes(b *testing.B) {
	b.Helper()
	if *times < 1 || *times > 4 {
		b.Fatalf("times %d: want 1 to 4", *times)
	}
}

// BenchmarkObserving runs a job with nobody watching and with everybody, in turn, first the one and then the other first.
func BenchmarkObserving(b *testing.B) {
	checkTimes(b)
	folder := b.TempDir()
	if err := commands.Build(folder, "gradbus/cmd/ps", "gradbus/cmd/psbench"); err != nil {
		b.Fatal(err)
	}
	alone, seen := startServer(b, folder, false), startServer(b, folder, true)
	every := (time.Second / time.Duration(*times)).String()
	watched := func() time.Duration {
		w := seen.watch(b.Context(), *times)
		defer w.end(b)
		return job(b, folder, seen, every)
	}
	unwatched := func() time.Duration { return job(b, folder, alone, never) }
	job(b, folder, alone, never) // both servers have their memory
	job(b, folder, seen, every)
	var shares []float64
	for turn := 0; b.Loop(); turn++ {
		var with, without time.Duration
		if turn%2 == 0 {
			without, with = unwatched(), watched()
		} else {
			with, without = watched(), unwatched()
		}
		shares = append(shares, 100*(float64(with)/float64(without)-1)/float64(*times))
		b.Logf("without %.2f s, with %d times the usual watching %.2f s: %+.2f %% each", without.Seconds(), *times, with.Seconds(), shares[turn])
	}
	report(b, shares)
}

// report gives the median of the shares, in percent, and between which of them it lies in 19 of 20 cases.
func report(b *testing.B, shares []float64) {
	slices.Sort(shares)
	n := len(shares)
	middle := (shares[(n-1)/2] + shares[n/2]) / 2
	low := rank(n)
	b.ReportMetric(middle, "%/median")
	b.ReportMetric(shares[low], "%/low")
	b.ReportMetric(shares[n-1-low], "%/high")
	line, _ := json.Marshal(shares)
	b.Logf("%% by size: %s", line)
}

// rank is the largest k for which the median of a distribution lies between the k-th smallest and the k-th largest of n draws, counted from 0,
// in 19 of 20 cases: twice the binomial sum up to k is at most 1/20. With fewer than six draws there is none, and 0 is given.
func rank(n int) int {
	sum, term := 0.0, 1.0
	for range n {
		term /= 2
	}
	for k := range n {
		sum += term
		if 2*sum > 0.05 {
			return max(0, k-1)
		}
		term *= float64(n-k) / float64(k+1)
	}
	return 0
}

// The rank is that of the tables of the sign test.
func TestRank(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{1: 0, 6: 0, 8: 0, 9: 1, 11: 1, 12: 2, 15: 3, 20: 5, 30: 9} {
		if got := rank(n); got != want {
			t.Errorf("of %d draws: %d, want %d", n, got, want)
		}
	}
}
