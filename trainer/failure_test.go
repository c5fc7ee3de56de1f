package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/schema"
)

// checkError checks that an error is of a kind and says all the words.
func checkError(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want %v", err, kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

// joinAll joins all trainers of a job. The sessions leave with the test.
func joinAll(t *testing.T, config Config, job *schema.Job) []*Session {
	t.Helper()
	sessions, errs := make([]*Session, job.Trainers), make([]error, job.Trainers)
	var all sync.WaitGroup
	for i := range sessions {
		c := config
		c.Member = schema.TrainerMember(i)
		all.Go(func() { sessions[i], errs[i] = Join(testContext(t), c, job) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("trainer %d: %v", i, err)
		}
		t.Cleanup(func() { _ = sessions[i].Abort(errors.New("the test is over")) })
	}
	return sessions
}

func TestJoinRefusesTakenMember(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("taken", 2, 2, schema.ApplyUpdate)
	c := testConfig(t, server)
	c.Member = "t1"
	waiting := make(chan int, 8)
	first := c
	first.OnWaiting = func(missing int) { waiting <- missing }
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error)
	go func() {
		_, err := Join(ctx, first, job)
		done <- err
	}()
	if missing := <-waiting; missing != 1 {
		t.Errorf("the first of two trainers waits for %d, want 1", missing)
	}
	_, err := Join(testContext(t), c, job)
	checkError(t, err, &Refused{}, "member_taken", "t1", "taken by")
	cancel()
	checkError(t, <-done, context.Canceled)
}

func TestJoinNamesTheFieldThatDiffers(t *testing.T) {
	server := startServer(t, 1)
	registered := toyJob("differs", 2, 2, schema.ApplyUpdate)
	ctx, cancel := context.WithCancel(testContext(t))
	waits, done := make(chan int, 8), make(chan error)
	c := testConfig(t, server)
	c.OnWaiting = func(missing int) { waits <- missing }
	var log testkit.Text
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	go func() {
		_, err := Join(ctx, c, registered)
		done <- err
	}()
	<-waits
	other := toyJob("differs", 2, 2, schema.ApplyUpdate)
	other.Optimizer.LR = 0.25
	_, err := Join(testContext(t), testConfig(t, server), other)
	checkError(t, err, &Refused{Reason: "job_differs"}, "optimizer.lr", "0.1", "0.25")
	if r, ok := errors.AsType[*Refused](err); !ok || r.Field != "optimizer.lr" || errors.Is(err, &Refused{Reason: "job_full"}) {
		t.Errorf("%v is %+v, want job_differs alone, and the field", err, r)
	}
	poll(t, "the one that waits is told who was refused, and why", func() bool {
		said := log.String()
		return strings.Contains(said, `msg="another trainer was refused"`) && strings.Contains(said, "optimizer.lr 0.1")
	})
	cancel()
	checkError(t, <-done, context.Canceled)
}

func TestJoinRefusesWhatCannotWork(t *testing.T) {
	server := startServer(t, 1)
	c := testConfig(t, server)
	job := toyJob("many", 5, 4, schema.ApplyUpdate)
	_, err := Join(testContext(t), c, job)
	var wrong schema.JobErrors
	if !errors.As(err, &wrong) || wrong[0].Field != "trainers" {
		t.Errorf("5 trainers of 4 lanes: error %v, want the field trainers", err)
	}
	_, err = Join(testContext(t), Config{Server: "nowhere", RetryAfter: -1}, toyJob("config", 1, 1, schema.ApplyUpdate))
	checkError(t, err, ErrConfig, `server "nowhere"`, "retry after -1ns")
	server.Close()
	_, err = Join(testContext(t), c, toyJob("none", 1, 1, schema.ApplyUpdate))
	checkError(t, err, fabric.ErrNoServer, strings.TrimPrefix(c.Server, "nats://"))
	dead := Config{Server: fmt.Sprint("nats://127.0.0.1:", fabrictest.DeadPort(t)), Backend: testBackend(t)}
	_, err = Join(testContext(t), dead, toyJob("none", 1, 1, schema.ApplyUpdate))
	checkError(t, err, fabric.ErrNoServer, "./bin/ps", strings.TrimPrefix(dead.Server, "nats://"))
}

func TestJobFullAndNameFreeAgain(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("full", 1, 1, schema.ApplyUpdate)
	s := joinAll(t, testConfig(t, server), job)[0]
	_, err := Join(testContext(t), testConfig(t, server), job)
	checkError(t, err, &Refused{}, "job_full")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkError(t, s.Run(testContext(t), newToy(t, job), 1, nil), ErrLeft)
	again := joinAll(t, testConfig(t, server), job)[0]
	if err := again.Run(testContext(t), newToy(t, job), 2, nil); err != nil {
		t.Error(err)
	}
}

// runAll runs sessions at once and gives their errors.
func runAll(ctx context.Context, sessions []*Session, w Workload, batches uint64) []error {
	errs := make([]error, len(sessions))
	var all sync.WaitGroup
	for i, s := range sessions {
		all.Go(func() {
			if errs[i] = s.Run(ctx, w, batches, nil); errs[i] != nil {
				_ = s.Abort(errs[i])
			}
		})
	}
	all.Wait()
	return errs
}

func TestNaNGradientEndsTheJobWithAReason(t *testing.T) {
	server := startServer(t, 2)
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		job := toyJob("nan", 2, 4, apply)
		w := newToy(t, job)
		w.spoil = func(step *LaneStep, bias []float32) {
			if step.Batch == 2 && step.Lane >= 2 {
				bias[1] = float32(math.NaN())
			}
		}
		errs := runAll(testContext(t), joinAll(t, testConfig(t, server), job), w, 6)
		checkError(t, errs[1], &Refused{}, "batch 2", "lanes [2,", "non_finite", `parameter "bias"`, "NaN",
			"learning rate")
		checkError(t, errs[0], ErrJobFailed, "t1", "non_finite")
	}
}

func TestWorkloadThatBreaksItsContract(t *testing.T) {
	server := startServer(t, 1)
	for _, c := range []struct {
		name, want string
		spoil      func(step *LaneStep)
	}{
		{"parameter", `"wieght"`, func(s *LaneStep) { s.Grad("wieght") }},
		{"table", "table 7", func(s *LaneStep) { s.Rows(7) }},
		{"ids", "ascending", func(s *LaneStep) { s.RowGrad(1, []int64{1, 0}, make([]float32, 2*toyTagDim)) }},
		{"range", "ids below", func(s *LaneStep) { s.RowGrad(1, []int64{toyTags}, make([]float32, toyTagDim)) }},
		{"values", "1 values for 1 rows of 3", func(s *LaneStep) { s.RowGrad(1, []int64{0}, make([]float32, 1)) }},
		{"late", "after Done", func(s *LaneStep) { s.Done("ballast"); s.Grad("ballast") }},
	} {
		job := toyJob("contract-"+c.name, 1, 2, schema.ApplyUpdate)
		w := newToy(t, job)
		w.spoil = func(step *LaneStep, _ []float32) {
			if step.Batch == 1 {
				c.spoil(step)
			}
		}
		s := joinAll(t, testConfig(t, server), job)[0]
		err := s.Run(testContext(t), w, 3, nil)
		checkError(t, err, ErrWorkload, "batch 1", c.want)
		if again := s.Run(testContext(t), w, 3, nil); !errors.Is(again, ErrWorkload) {
			t.Errorf("a session that has failed runs again: %v", again)
		}
	}
}

func TestKeysOutOfTheTable(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("keys", 1, 1, schema.ApplyUpdate)
	s := joinAll(t, testConfig(t, server), job)[0]
	err := s.Run(testContext(t), keysOnly{func(keys [][]uint64) (int, [][]uint64) {
		keys[1] = append(keys[1], toyTags)
		return 1, keys
	}}, 1, nil)
	checkError(t, err, ErrWorkload, `table "tags": id 31 is outside [0, 31)`)
}

type keysOnly struct {
	keys func([][]uint64) (int, [][]uint64)
}

func (k keysOnly) Keys(_ schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) {
	return k.keys(keys)
}
func (k keysOnly) Lane(*LaneStep) (float64, error) { return 0, nil }

func TestCancelEndsCleanly(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("cancel", 2, 4, schema.ApplyUpdate)
	sessions := joinAll(t, testConfig(t, server), job)
	w := newToy(t, job)
	ctx, cancel := context.WithCancelCause(testContext(t))
	interrupted := errors.New("interrupted by the operator")
	w.enter = func(b schema.Batch, l lane.Lane) {
		if b >= 5 && l >= 2 {
			cancel(interrupted)
		}
	}
	errs := make([]error, 2)
	var all sync.WaitGroup
	all.Go(func() { errs[0] = sessions[0].Run(testContext(t), newToy(t, job), 1000, nil) })
	all.Go(func() {
		errs[1] = sessions[1].Run(ctx, w, 1000, nil)
		if err := sessions[1].Abort(errs[1]); err != nil {
			t.Errorf("leave: %v", err)
		}
	})
	all.Wait()
	checkError(t, errs[1], interrupted, "batch ")
	checkError(t, errs[0], ErrJobFailed, "t1", "interrupted by the operator")
}

// What a session ended with is the error of the call that finds it out, also where the context of the call, which
// follows that of the session, has not ended yet.
func TestErrorOfASessionThatEndedIsItsOwn(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("ended", 1, 1, schema.ApplyUpdate)
	s := joinAll(t, testConfig(t, server), job)[0]
	s.begin(0, nil)
	ended := fmt.Errorf("%w: trainer t1 ended at batch 5", ErrJobFailed)
	s.fail(ended)
	if err := s.membership.failed(context.Background(), 6, s.Err()); err != ended {
		t.Errorf("error %v, want %v", err, ended)
	}
	_ = s.Abort(ended)
}

// A program that was going to train on ends between two runs of batches: the others hear why, and do not have to miss
// it.
func TestAbortOfHeldBatchesEndsTheOthers(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("between", 2, 4, schema.ApplyUpdate)
	sessions := joinAll(t, testConfig(t, server), job)
	for i, err := range runAll(testContext(t), sessions, newToy(t, job), 3) {
		if err != nil {
			t.Errorf("trainer %d: %v", i, err)
		}
	}
	sessions[1].form = formNext
	if err := sessions[1].Abort(errors.New("no space left for the log")); err != nil {
		t.Errorf("leave: %v", err)
	}
	err := sessions[0].Run(testContext(t), newToy(t, job), 10, nil)
	checkError(t, err, ErrJobFailed, "trainer t1", "ended at batch 3: no space left for the log")
}

// Where a trainer was asked to end, the others hear that the job was stopped, and not that it failed.
func TestStoppedTrainerStopsTheJob(t *testing.T) {
	for reason, want := range map[error]error{ErrInterrupted: errJobStopped, context.Canceled: errJobStopped,
		errors.New("no space left"): ErrJobFailed} {
		server := startServer(t, 1)
		job := toyJob("asked", 2, 4, schema.ApplyUpdate)
		job.Policy = schema.PolicyFail
		sessions := joinAll(t, testConfig(t, server), job)
		if err := sessions[1].Abort(reason); err != nil {
			t.Errorf("leave: %v", err)
		}
		err := sessions[0].Run(testContext(t), newToy(t, job), 10, nil)
		checkError(t, err, want, "trainer t1", reason.Error())
		if stopped := errors.Is(err, errJobStopped); stopped != (want == errJobStopped) || !errors.Is(err, ErrJobFailed) {
			t.Errorf("%v: the other trainer ends with %v", reason, err)
		}
	}
}

// proxy stands between trainers and a server, so that the way can be cut.
type proxy struct {
	listener net.Listener
	all      sync.WaitGroup

	mu    sync.Mutex
	to    string
	down  bool
	conns []net.Conn
}

func startProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: strings.TrimPrefix(server, "nats://")}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut(true)
		p.all.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		out, err := net.Dial("tcp", p.to)
		if err != nil || p.down {
			in.Close()
			if err == nil {
				out.Close()
			}
		} else {
			p.conns = append(p.conns, in, out)
			p.all.Go(func() { _, _ = io.Copy(in, out); in.Close() })
			p.all.Go(func() { _, _ = io.Copy(out, in); out.Close() })
		}
		p.mu.Unlock()
	}
}

// redirect ends all connections; new ones lead to another server.
func (p *proxy) redirect(to string) {
	p.mu.Lock()
	p.to = to
	p.mu.Unlock()
	p.cut(false)
}

// cut ends all connections; where down, there are no new ones.
func (p *proxy) cut(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func TestServerOutOfReachIsNamed(t *testing.T) {
	server := startTCP(t, 1)
	p := startProxy(t, server.URL())
	c := testConfig(t, server)
	c.Server, c.ReconnectTimeout = p.url(), 300*time.Millisecond
	job := toyJob("reach", 1, 2, schema.ApplyUpdate)
	w := newToy(t, job)
	w.enter = func(b schema.Batch, _ lane.Lane) {
		if b >= 4 {
			p.cut(true)
		}
	}
	s := joinAll(t, c, job)[0]
	checkError(t, s.Run(testContext(t), w, 1000, nil), ErrServerLost, p.url(), "out of reach", `job reach`)
	if err := s.Abort(errors.New("lost")); err != nil {
		t.Errorf("leave without a server: %v", err)
	}
}

// Connections that break again and again in the middle of everything change no bit.
func TestBrokenConnectionsChangeNothing(t *testing.T) {
	const lanes, batches = 4, 30
	server := startTCP(t, 2)
	want := trainAll(t, testConfig(t, server), toyJob("whole", 1, lanes, schema.ApplyUpdate), batches)[0]
	if want.err != nil {
		t.Fatal(want.err)
	}
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		p := startProxy(t, server.URL())
		c := testConfig(t, server)
		c.Server = p.url()
		job := toyJob("broken-"+apply, 2, lanes, apply)
		out := make([]outcome, 2)
		var all sync.WaitGroup
		for i := range out {
			own := c
			own.Member = schema.TrainerMember(i)
			w := newToy(t, job)
			w.enter = func(b schema.Batch, l lane.Lane) {
				if b%5 == 2 && int(l) == int(b)%lanes {
					p.cut(false)
				}
			}
			all.Go(func() { out[i] = train(testContext(t), own, job, w, batches) })
		}
		all.Wait()
		reconnects := uint64(0)
		for i, o := range out {
			if o.err != nil || o.digest != want.digest {
				t.Errorf("%s: trainer %d: %v, weights %x, want %x", apply, i, o.err, o.digest[:6], want.digest[:6])
			}
			reconnects += o.stats.Traffic.Reconnects
		}
		if reconnects < 4 {
			t.Errorf("%s: %d reconnections: the connections were not cut", apply, reconnects)
		}
	}
}
