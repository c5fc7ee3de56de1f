package cost

import (
	"bufio"
	"bytes"
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
	"gradbus/internal/testkit"
)

var (
	times = flag.Int("times", 4,
		"how many times what is usual watchers do, at most 4: a ps hears no more reports of a trainer in a second")
	trainers = flag.Int("trainers", 64, "trainers of the job")
	batches  = flag.Int("batches", 2000, "batches of each trainer in a run that are measured")
	warmup   = flag.Int("warmup", 600, "batches of each trainer before these: a job that begins shows more")
	only     = flag.String("only", "", "watch by this alone: reports, pages or scrapes")
	together = flag.Bool("together", true,
		"run the two of a pair at the same time, so that whatever else the machine does meets both")
)

const (
	pages = 2                     // streams of the page that are usually open
	guard = 10 * time.Minute      // of every wait: reaching it means that what is waited for will never come
	tick  = 10 * time.Millisecond // in which the kernel counts processor time
	never = "1h"                  // between the reports of trainers that say nothing
	look  = 10 * time.Millisecond // between two readings of what was spent
)

// server is a ps.
type server struct {
	*exec.Cmd
	url, page string // page is empty where it has none
	said      *testkit.Text
	done      <-chan struct{}
}

// stop ends it, and waits until it has.
func (s *server) stop() { commands.Terminate(s.Process, s.done) }

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
	s := &server{Cmd: exec.Command(filepath.Join(folder, "ps"), append(args, flags...)...), said: new(testkit.Text)}
	s.Stdout, s.Stderr = s.said, s.said
	done := commands.Run(b, s.Cmd, commands.Terminate, s.said.String)
	s.done = done
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

// processor is the time that a process which still runs has had of processors; false where it does not run any more.
func processor(pid int) (time.Duration, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, after, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(after) // from the third on, which is the state
	if len(fields) < 13 || fields[0] == "Z" {
		return 0, false
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, err1 == nil && err2 == nil
}

// reading is how much of processors some processes had had at a time.
type reading struct {
	at    time.Time
	spent time.Duration
}

// at is what had been spent at a time between readings, where it grew evenly; false where they do not reach so far.
func at(when time.Time, all []reading) (time.Duration, bool) {
	i, _ := slices.BinarySearchFunc(all, when, func(r reading, when time.Time) int { return r.at.Compare(when) })
	if i == 0 || i == len(all) {
		return 0, false
	}
	a, b := all[i-1], all[i]
	return a.spent + time.Duration(float64(b.spent-a.spent)*float64(when.Sub(a.at))/float64(b.at.Sub(a.at))), true
}

// spending is what the measured batches of a job took.
type spending struct {
	processors, wall time.Duration
}

// perSecond is how many processors were at work.
func (s spending) perSecond() float64 { return s.processors.Seconds() / s.wall.Seconds() }

// job runs the batches at a ps of its own, and gives what ps and trainers spent on those that are measured.
func job(b *testing.B, folder string, s *server, every string) (found spending, err error) {
	ctx, cancel := context.WithTimeout(b.Context(), guard)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(folder, "psbench"), "update", "--in-process", "--server", s.url,
		"--trainers", strconv.Itoa(*trainers),
		"--batches", strconv.Itoa(*batches), "--warmup", strconv.Itoa(*warmup), "--telemetry-every", every,
		"--heartbeat-every", often(), "--json")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		return found, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	var all []reading
	for done := false; !done; time.Sleep(look) {
		server, ok1 := processor(s.Process.Pid)
		trainers, ok2 := processor(c.Process.Pid)
		if ok1 && ok2 {
			all = append(all, reading{time.Now(), server + trainers})
		}
		select {
		case err = <-ended:
			done = true
		default:
		}
	}
	var result struct {
		BeganMS int64 `json:"began_ms"`
		EndedMS int64 `json:"ended_ms"`
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &result)
	}
	if err != nil {
		return found, fmt.Errorf("psbench: %w\n%s", err, &errs)
	}
	from, to := time.UnixMilli(result.BeganMS), time.UnixMilli(result.EndedMS)
	before, ok1 := at(from, all)
	after, ok2 := at(to, all)
	if !ok1 || !ok2 || !to.After(from) {
		return found, fmt.Errorf("no readings around %v to %v, of %d", from, to, len(all))
	}
	return spending{after - before, to.Sub(from)}, nil
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

// often is the time between two reports of a trainer, and between two heartbeats of one, watched or not, as reports
// leave with these.
func often() string { return (time.Second / time.Duration(*times)).String() }

// watching reports whether the job is watched in this way.
func watching(how string) bool { return *only == "" || *only == how }

func (s *server) watch(ctx context.Context, times int) *watchers {
	ctx, stop := context.WithCancel(ctx)
	w := &watchers{stop: stop}
	for range pages * times {
		if !watching("pages") {
			break
		}
		w.all.Go(func() { w.fail(ctx, w.stream(ctx, s.page+"api/v1/stream")) })
	}
	if !watching("scrapes") {
		return w
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
func (w *watchers) end() error {
	w.stop()
	w.all.Wait()
	if w.err != nil || watching("pages") && w.updates == 0 || watching("scrapes") && w.scrapes == 0 {
		return fmt.Errorf("watchers have seen %d updates and %d scrapes: %v", w.updates, w.scrapes, w.err)
	}
	return nil
}

func checkTimes(b *testing.B) {
	b.Helper()
	if *times < 1 || *times > 4 {
		b.Fatalf("times %d: want 1 to 4", *times)
	}
}

// BenchmarkObserving runs a job with nobody watching and with everybody, at the same time or in turn, and each with a
// ps of its own, which shows no older jobs. Of pairs in turn every second begins with the other.
func BenchmarkObserving(b *testing.B) {
	checkTimes(b)
	folder := b.TempDir()
	if err := commands.Build(folder, "gradbus/cmd/ps", "gradbus/cmd/psbench"); err != nil {
		b.Fatal(err)
	}
	var shares, costs []float64
	for turn := 0; b.Loop(); turn++ {
		with, without := pair(b, folder, turn)
		// Both did the same batches. What the one spent beyond the other it spent while it ran, and a run that is alone has
		// all processors.
		cost := (with.processors - without.processors).Seconds() / with.wall.Seconds() / float64(*times)
		all := without.perSecond()
		if *together {
			all += with.perSecond()
		}
		costs, shares = append(costs, 1000*cost), append(shares, 100*cost/all)
		fmt.Printf("without %.2f s in %.1f s, with %d times the usual watching %.2f s in %.1f s: %+.1f ms a second, "+
			"%+.2f %% each\n",
			without.processors.Seconds(), without.wall.Seconds(), *times, with.processors.Seconds(), with.wall.Seconds(),
			costs[turn], shares[turn])
	}
	report(b, shares, "%")
	report(b, costs, "ms/s")
}

// pair runs the job of which nobody hears anything, and the one that is watched.
func pair(b *testing.B, folder string, turn int) (with, without spending) {
	var failed [2]error
	begin := func(seen bool) (run func(), stop func()) {
		s := startServer(b, folder, seen)
		if !seen {
			return func() { without, failed[0] = job(b, folder, s, never) }, s.stop
		}
		return func() {
			every := never
			if watching("reports") {
				every = often()
			}
			w := s.watch(b.Context(), *times)
			with, failed[1] = job(b, folder, s, every)
			failed[1] = errors.Join(failed[1], w.end())
		}, s.stop
	}
	var all sync.WaitGroup
	for i := range 2 {
		run, stop := begin((turn+i)%2 == 0)
		all.Go(func() {
			defer stop()
			run()
		})
		if !*together {
			all.Wait()
		}
	}
	all.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		b.Fatal(err)
	}
	return with, without
}

// report gives the median of values, and between which of them it lies in 19 of 20 cases.
func report(b *testing.B, values []float64, unit string) {
	slices.Sort(values)
	n := len(values)
	low := rank(n)
	b.ReportMetric((values[(n-1)/2]+values[n/2])/2, unit+"/median")
	b.ReportMetric(values[low], unit+"/low")
	b.ReportMetric(values[n-1-low], unit+"/high")
}

// rank is the largest k for which the median of a distribution lies between the k-th smallest and the k-th largest of n
// draws, counted from 0, in 19 of 20 cases: twice the binomial sum up to k is at most 1/20. With fewer than six draws
// there is none, and 0 is given.
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

// Between two readings time is taken to be spent evenly, and beyond them nothing is known.
func TestAt(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1000, 0)
	all := []reading{{begin, time.Second}, {begin.Add(100 * time.Millisecond), 2 * time.Second},
		{begin.Add(200 * time.Millisecond), 2 * time.Second}}
	for after, want := range map[time.Duration]time.Duration{25 * time.Millisecond: 1250 * time.Millisecond,
		100 * time.Millisecond: 2 * time.Second, 150 * time.Millisecond: 2 * time.Second} {
		if got, ok := at(begin.Add(after), all); !ok || got != want {
			t.Errorf("after %v: %v, %v, want %v", after, got, ok, want)
		}
	}
	for _, after := range []time.Duration{-time.Millisecond, 201 * time.Millisecond} {
		if got, ok := at(begin.Add(after), all); ok {
			t.Errorf("after %v: %v, which nobody knows", after, got)
		}
	}
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
