package simulate

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/schema"
)

var (
	seeds    = flag.Uint64("seeds", 20, "how many seeds are simulated")
	first    = flag.Uint64("first", 0, "the first of them")
	single   = flag.Int64("seed", -1, "this one alone, whose trace is shown")
	threaded = flag.Uint64("threaded", 20, "how many seeds are simulated on all of this machine's processors")
)

const faults = 20

// TestSeed is what TestSimulate runs, for one seed.
func TestSeed(t *testing.T) {
	if *single < 0 {
		t.Skip("simulates one seed, whose number is -seed")
	}
	simulated(t, uint64(*single))
}

// Seeds are well on many threads, too, where the scheduler and the race detector see more.
func TestOnThreads(t *testing.T) {
	if *single >= 0 {
		t.Skip("another test simulates this seed")
	}
	if testing.Short() {
		*threaded = min(*threaded, 8)
	}
	for seed := *first; seed < *first+*threaded; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { simulated(t, seed) })
	}
}

func simulated(t *testing.T, seed uint64) {
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	synctest.Test(t, func(t *testing.T) { simulate(t, seed, backend) })
}

// splitSeeds is the first seed of pairs of servers whose network is split. Their jobs have replicas.
const splitSeeds = 1 << 32

// jobOf is the job of a seed.
func jobOf(seed uint64, r *rand.Rand) *schema.Job {
	if seed >= splitSeeds {
		return manifest(r)
	}
	job, policies := manifest(r), [...]string{schema.PolicyRecover, schema.PolicyWait}
	replicate := func(which func(int) bool) {
		for i := range job.Tables {
			job.Tables[i].Replicated = which(i)
		}
	}
	if seed%3 == 2 {
		job.Apply = schema.ApplyMean
	}
	if seed%12 == 8 { // trainers add up the parameters; shards have the tables, or add them up
		job.Reduce, job.Policy = schema.ReduceTrainers, policies[seed/12%2]
		for i := range job.Tables {
			job.Tables[i].Reduce = schema.ReduceShards
		}
		replicate(func(i int) bool { return seed%36 == 8 || seed%36 == 20 && i == 0 })
	}
	if seed%36 == 26 { // or have the tables as well, and shards add up everything
		job.Policy = policies[seed/36%2]
		replicate(func(int) bool { return true })
	}
	if seed%12 == 4 {
		job.Consistency, job.Ahead, job.Policy = schema.ConsistencyBounded, 1+int(seed/12%3), policies[seed/12%2]
	}
	return job
}

func simulate(t *testing.T, seed uint64, backend cuda.Backend) {
	r := rand.New(rand.NewPCG(seed, 0))
	job := jobOf(seed, r)
	s := &system{t: t, r: r, job: job, bus: fabric.NewBus(), backend: backend,
		done: make(chan struct{}), digests: map[string]string{}, begun: map[schema.RunID]begun{},
		inputs: map[input][2]uint32{}, began: time.Now(),
		batches: 50, calm: 1 + 4*time.Duration(seed%2)}
	if s.rests = seed%48 == 1 || seed%24 == 2 || seed%24 == 4 || seed%24 == 8; s.rests {
		s.batches, s.calm = 100, 5
	}
	if s.splits = seed >= splitSeeds; s.splits { // long enough for what a split takes to be noticed
		s.batches, s.calm = 150, 5
	}
	want, err := s.quiet()
	if err != nil {
		t.Fatalf("the job to which nothing happens: %v", err)
	}
	s.log = slog.New(listener{Handler: slog.NewTextHandler(s, &slog.HandlerOptions{ReplaceAttr: withoutTime}), system: s})
	s.bus.Harm = s.harm(seed, r.IntN(3))
	servers := 1 + r.IntN(2)
	switch {
	case seed >= splitSeeds:
		servers = 2
	case job.Rewinds(): // no replica is kept of such a job
		servers = 1
	}
	if seed%4 == 3 && seed < splitSeeds {
		if err := s.startNATS(); err != nil {
			t.Fatal(err)
		}
		defer s.nats.Close()
		servers = 2 + s.r.IntN(2)
		s.peers = s.r.IntN(3) > 0
	}
	s.startServers(servers)
	for range job.Trainers {
		s.startTrainer()
	}
	if seed%5 == 4 {
		clocks := rand.New(rand.NewPCG(seed, 5))
		s.all.Go(func() { s.setClocks(clocks) })
	}
	s.happen()
	s.end()
	for name, digest := range s.digests {
		if digest != want {
			t.Errorf("%s: weights %s, want %s", name, digest, want)
		}
	}
	if t.Failed() {
		t.Logf("seed %d, trainers %d, lanes %d:\n%s", seed, job.Trainers, job.Lanes, strings.Join(s.trace, "\n"))
	}
}

// end has the job come to its end, by new trainers where some are missing, and ends everybody.
func (s *system) end() {
	for range 100 {
		if s.finished(10 * time.Second) {
			break
		}
		if len(s.alive()) < s.job.Trainers {
			s.startTrainer()
		}
	}
	if !s.finished(0) {
		s.t.Error("the job has not come to its end")
	}
	for _, m := range s.alive() {
		s.kill(m)
	}
	s.all.Wait()
	for _, v := range s.servers {
		v.Close()
	}
}

// listener hears which versions are durable, and which job begins, on the way to the trace.
type listener struct {
	slog.Handler
	system  *system
	ps      string
	process string // of a trainer
	version schema.Version
}

// Handle implements slog.Handler.
func (l listener) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "version is durable":
		full := false
		r.Attrs(func(a slog.Attr) bool {
			full = full || a.Key == "increments" && a.Value.Int64() == 0
			return true
		})
		l.system.durable(l.ps, l.version, full)
	case "job restarts":
		l.system.returns(l.ps, true, 0)
	case "rejoining job":
		l.system.rejoins(l.process)
	case "job goes on here":
		l.system.takesOver(l.ps)
	case "job registered":
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "run_id" {
				run, _ := strconv.ParseUint(a.Value.String(), 10, 64)
				l.system.returns(l.ps, false, schema.RunID(run))
			}
			return true
		})
		l.system.has(l.ps, true)
	case "the ps of a job is lost, its trainers are awaited here":
		l.system.has(l.ps, true)
	case "job freed", "job has ended where it was", "server closed":
		l.system.has(l.ps, false)
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l listener) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		switch a.Key {
		case "ps":
			l.ps = a.Value.String()
		case "process":
			l.process = a.Value.String()
		case "version":
			l.version = schema.Version(a.Value.Uint64())
		}
	}
	l.Handler = l.Handler.WithAttrs(attrs)
	return l
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}

// harm draws what becomes of messages: nothing, or of some in a hundred or in ten something.
func (s *system) harm(seed uint64, much int) func(string, *fabric.Subject) (int, time.Duration) {
	if much == 0 {
		return nil
	}
	r := rand.New(rand.NewPCG(seed, 7))
	lock := make(chan struct{}, 1)
	return func(string, *fabric.Subject) (copies int, later time.Duration) {
		lock <- struct{}{}
		defer func() { <-lock }()
		if s.resting.Load() {
			return 1, 0
		}
		switch r.IntN(400 / (1 + 9*(much-1))) {
		case 0:
			return 0, 0
		case 1:
			return 2, 0
		case 2:
			return 1, time.Duration(r.IntN(300)) * time.Millisecond
		case 3:
			return 2, time.Duration(r.IntN(3000)) * time.Millisecond
		}
		return 1, 0
	}
}

// finished waits for the end of the job.
func (s *system) finished(within time.Duration) bool {
	select {
	case <-s.done:
		return true
	default:
	}
	select {
	case <-s.done:
		return true
	case <-time.After(within):
		return false
	}
}

// durableWithin is how long a version takes to become durable, at most, where nothing happens: batches take half a
// second.
const durableWithin = 20 * time.Second

// rest has nothing happen for a while, in which a version has to become durable. Where a bit of a disk is another a job
// may be refused, for a minute at most.
func (s *system) rest() {
	for s.cutOff() > 0 {
		time.Sleep(time.Second)
	}
	for len(s.alive()) < s.job.Trainers {
		s.startTrainer()
	}
	s.resting.Store(true)
	defer s.resting.Store(false)
	before := s.durables()
	s.note("nothing happens")
	if !s.finished(durableWithin) && s.durables() == before && !s.rotten() {
		s.t.Errorf("no version has become durable in %v in which nothing happened", durableWithin)
	}
}

// cut has a machine be cut off for a time, and then be there again, where back says so.
func (s *system) cut(host *fabric.Bus, while time.Duration, back func() bool) {
	s.mu.Lock()
	s.cuts++
	s.mu.Unlock()
	host.Cut(true)
	s.all.Go(func() {
		time.Sleep(while)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cuts--; back() {
			host.Cut(false)
		}
	})
}

// cutOff is how many machines are cut off.
func (s *system) cutOff() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cuts
}

// rotten reports that a bit of a disk may be another.
func (s *system) rotten() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.servers, func(v *server) bool { return v.rotten > 0 })
}

// durables is how many versions have become durable.
func (s *system) durables() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written
}

// happen has faults happen, and whoever ends be replaced, sooner or later.
func (s *system) happen() {
	for i := range faults {
		if s.finished(s.calm * time.Duration(s.r.IntN(1200)) * time.Millisecond) {
			return
		}
		if s.rests && i == 2 {
			s.rest()
		}
		alive := s.alive()
		if len(alive) == 0 {
			s.startTrainer()
			continue
		}
		if s.splits && s.r.IntN(2) == 0 {
			s.splitNetwork()
			continue
		}
		m := alive[s.r.IntN(len(alive))]
		switch s.r.IntN(12) {
		case 0, 1:
			s.kill(m)
			if s.r.IntN(3) > 0 {
				time.Sleep(time.Duration(s.r.IntN(2000)) * time.Millisecond)
				s.startTrainer()
			}
		case 2:
			s.killServer(time.Duration(s.r.IntN(3000)) * time.Millisecond)
		case 3: // both at once
			s.kill(m)
			s.killServer(time.Duration(s.r.IntN(3000)) * time.Millisecond)
			s.startTrainer()
		case 4, 5:
			cut := time.Duration(s.r.IntN(8000)) * time.Millisecond
			s.note("%s cut off for %v", m.name, cut)
			s.cut(m.host, cut, func() bool { return !m.dead })
		case 6:
			hold := time.Duration(s.r.IntN(8000)) * time.Millisecond
			if s.job.Rewinds() {
				hold /= 4 // of one that is alive and slow the job ends
			}
			s.note("%s stands still for %v", m.name, hold)
			s.mu.Lock()
			m.hold = hold
			s.mu.Unlock()
		case 7:
			s.startTrainer()
		case 8:
			if s.nats != nil && s.r.IntN(2) == 0 {
				s.restartNATS(time.Duration(s.r.IntN(6000)) * time.Millisecond)
				continue
			}
			s.cutServer(time.Duration(s.r.IntN(12000)) * time.Millisecond)
		case 11:
			for _, m := range alive {
				s.kill(m)
			}
			for range 1 + s.r.IntN(s.job.Trainers) {
				time.Sleep(time.Duration(s.r.IntN(1000)) * time.Millisecond)
				s.startTrainer()
			}
		case 9, 10:
			s.harmDisk(time.Duration(s.r.IntN(4000)) * time.Millisecond)
		}
	}
}

// setClocks has clocks of machines be set, forward and back: by seconds, hours or days.
func (s *system) setClocks(r *rand.Rand) {
	for range faults {
		if s.finished(s.calm * time.Duration(r.IntN(1200)) * time.Millisecond) {
			return
		}
		by := (1 + r.Int64N(50)) * []int64{1, 3600, 86400}[r.IntN(3)] * int64(1-2*r.IntN(2))
		alive, i := s.alive(), r.IntN(5)
		s.mu.Lock()
		name, off := "", (*int64)(nil)
		if i < len(alive) {
			name, off = alive[i].name, &alive[i].off
		} else {
			v := s.servers[i%len(s.servers)]
			name, off = "ps "+v.id, &v.off
		}
		*off += by
		s.noteLocked("the clock of %s is set by %v", name, time.Duration(by)*time.Second)
		s.mu.Unlock()
	}
}
