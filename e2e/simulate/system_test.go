package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// system is a server, trainers and the network between them.
type system struct {
	t       *testing.T
	r       *rand.Rand // of the goroutine that draws faults
	job     *schema.Job
	bus     *fabric.Bus
	backend cuda.Backend
	batches uint64
	calm    time.Duration  // by what faults are further apart, and batches longer: versions become durable in between
	rests   bool           // nothing happens for a while
	splits  bool           // the network is split in two, with a server of a pair in each half
	resting atomic.Bool    // nothing happens now
	servers []*server      // one, or two of which each holds replicas for the other; with nats, all have shards of one job
	nats    *fabric.Server // carries control between servers; nil: each has its own
	peers   bool           // these hold replicas for each other
	log     *slog.Logger

	all  sync.WaitGroup
	done chan struct{} // closed when a trainer has come to the end

	mu       sync.Mutex
	began    time.Time
	trace    []string
	trainers []*member
	digests  map[string]string // by member
	runs     []*progress       // in the order in which they got anywhere
	cuts     int               // machines that are cut off
	split    *split            // that the network has now
	written  int               // versions that have become durable
	begun    map[schema.RunID]begun

	// of the job to which nothing happens: the weights of every version, and what each lane is computed on
	weights []uint32
	inputs  map[input][2]uint32
	over    bool
}

// progress is how far a run of the job is.
type progress struct {
	run    schema.RunID
	newest schema.Batch // that somebody has completed
	most   schema.Batch // that may be, since another run goes on
	over   bool         // another does
	ended  bool         // its server has ended
}

// begun is where and when a run began.
type begun struct {
	server string
	at     time.Time
	takes  bool // it continues one of the other server of a pair
	anew   bool // it begins with nothing at a server of a pair, perhaps at each of them by the same name
}

// apart reports whether a run is no successor of another one: it begins with nothing, or both began at once at the
// servers of a pair, of which neither had the job any more and neither has heard of the other's.
func (s *system) apart(run, other schema.RunID) bool {
	a, b := s.begun[run], s.begun[other]
	return a.anew || !a.takes && !b.takes && a.server != b.server && a.at.Sub(b.at).Abs() < time.Second
}

// complete notes that a batch of a run is complete. What was under way when another run began may be, and nothing that
// comes after.
func (s *system) complete(m *member, run schema.RunID, began schema.Version, b schema.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.runs, func(p *progress) bool { return p.run == run })
	if i < 0 {
		s.begins(began)
		for _, p := range s.runs {
			if !p.over && !s.apart(run, p.run) {
				p.over, p.most = true, p.newest+1
			}
		}
		i = len(s.runs)
		s.runs = append(s.runs, &progress{run: run})
	}
	p := s.runs[i]
	if p.over && !slices.ContainsFunc(s.runs[i+1:], func(p *progress) bool { return !p.ended }) {
		p.over = false // it continues after those that went on from it have ended with their servers
	}
	if p.newest = max(p.newest, b); p.over && b > p.most {
		s.noteLocked("%s completes batch %d of run %d, while another goes on", m.name, b, run)
		s.t.Errorf("%s completes batch %d of a run that was at batch %d when another began", m.name, b, p.most-1)
	}
}

// input is a lane of a batch.
type input struct {
	batch schema.Batch
	lane  lane.Lane
}

// remember notes what a lane is computed on when nothing happens.
func (s *system) remember(b schema.Batch, l lane.Lane, weights, rows uint32) {
	s.inputs[input{b, l}] = [2]uint32{weights, rows}
}

// check compares what a lane is computed on with that.
func (s *system) check(m *member) func(schema.Batch, lane.Lane, uint32, uint32) {
	return func(b schema.Batch, l lane.Lane, weights, rows uint32) {
		if want := s.inputs[input{b, l}]; want != [2]uint32{weights, rows} && s.job.Ahead == 0 {
			s.note("%s computes lane %d of batch %d on other weights: %v, on other rows: %v", m.name, l, b,
				want[0] != weights, want[1] != rows)
			s.t.Errorf("%s: lane %d of batch %d is computed on other values than it should", m.name, l, b)
		}
	}
}

// member is a trainer process on a machine of its own.
type member struct {
	name string
	host *fabric.Bus
	end  context.CancelCauseFunc
	dead bool
	hold time.Duration // for which it stands still at its next batch
	off  int64         // of its clock, in seconds
	gone chan struct{} // closed when nothing of it runs any more
	// rejoined is set when its session joins again, until it reports the next batch. Guarded by system.mu.
	rejoined bool
}

var errDead = errors.New("the process has ended")

// note adds to the trace.
func (s *system) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteLocked(format, args...)
}

func (s *system) noteLocked(format string, args ...any) {
	line := fmt.Sprintf("%10v  ", time.Since(s.began)) + fmt.Sprintf(format, args...)
	if *single >= 0 || *singleRow != "" { // at once: of a seed that panics or has no end there is nothing else
		fmt.Println(line)
	} else {
		s.trace = append(s.trace, line)
	}
}

// Write implements io.Writer, for logs, which are part of the trace.
func (s *system) Write(line []byte) (int, error) {
	s.note("%s", strings.TrimSpace(string(line)))
	return len(line), nil
}

var _ io.Writer = (*system)(nil)

// rejoins notes that the session of a trainer process joins again.
func (s *system) rejoins(process string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.trainers {
		m.rejoined = m.rejoined || m.name == process
	}
}

// startTrainer starts a process that trains to the end of the job.
func (s *system) startTrainer() {
	s.mu.Lock()
	if s.over { // a new job would begin
		s.mu.Unlock()
		return
	}
	m := &member{name: fmt.Sprintf("m%d", len(s.trainers)), host: s.bus.Host(), gone: make(chan struct{})}
	s.trainers = append(s.trainers, m)
	if s.split != nil { // newcomers are in the half of the server that may continue the job
		s.split.put(m.host, 1)
	}
	seed := s.job.Seed + uint64(len(s.trainers))
	s.mu.Unlock()
	ctx, end := context.WithCancelCause(context.Background())
	m.end = end
	at := 0 // all name one server, and another one only where that does not answer
	config := trainer.Config{Server: s.servers[at].url, Bus: m.host, Backend: s.backend,
		Log:            s.log.With("process", m.name),
		HeartbeatEvery: 200 * time.Millisecond, RetryAfter: 300 * time.Millisecond, ReconnectTimeout: 20 * time.Second,
		LeaveWithin: time.Second, AnswerWithin: 5 * time.Second, TelemetryEvery: -1}
	s.note("%s starts", m.name)
	s.all.Go(func() {
		defer close(m.gone)
		setClock(&m.off)
		for {
			err := s.train(ctx, config, m, rand.New(rand.NewPCG(seed, 1)))
			if err == nil || ctx.Err() != nil {
				s.note("%s ends: %v", m.name, err)
				return
			}
			s.note("%s ends, and is started again: %v", m.name, err)
			s.expect(m, err)
			at = 0
			if errors.Is(err, fabric.ErrNoServer) || errors.Is(err, trainer.ErrNoAnswer) {
				at = s.another()
			}
			config.Server = s.servers[at].url
			if time.Sleep(time.Second); s.isOver() {
				return
			}
		}
	})
}

func (s *system) train(ctx context.Context, config trainer.Config, m *member, r *rand.Rand) (err error) {
	session, err := trainer.Join(ctx, config, s.job)
	if err != nil {
		return err
	}
	defer func() {
		if ending := session.Abort(err); err == nil {
			err = ending
		}
	}()
	run, began := session.RunID(), session.Version()
	last := began
	w := noise{s.job.Seed, s.job.Ahead > 0, s.batches, s.check(m)}
	err = session.Run(ctx, w, s.batches-min(s.batches, uint64(last)), func(p trainer.Progress) {
		s.mu.Lock()
		if m.rejoined { // the next run, or later in the same one
			m.rejoined = false
			run, began = session.RunID(), schema.Version(p.Batch)
			last = began
		}
		s.mu.Unlock()
		if p.Version != last+1 {
			s.t.Errorf("%s: version %d after version %d", m.name, p.Version, last)
		}
		last = p.Version
		s.complete(m, run, began, p.Batch)
		if have, want := checksum(session.Param("w")), s.weights[p.Batch]; have != want {
			s.note("%s: version %d has other weights than it should", m.name, p.Version)
			s.t.Errorf("%s: weights of version %d: %08x, want %08x", m.name, p.Version, have, want)
		}
		s.mu.Lock()
		hold := m.hold
		m.hold = 0
		s.mu.Unlock()
		time.Sleep(hold + s.calm*time.Duration(r.IntN(100))*time.Millisecond)
	})
	if err != nil {
		return err
	}
	digest, err := session.Digest(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.digests[m.name] = fmt.Sprintf("%x", digest[:8])
	if !s.over {
		s.over = true
		close(s.done)
	}
	return nil
}

// expect checks that an error is one that faults lead to. Any other ends jobs, too, but by a defect.
func (s *system) expect(m *member, err error) {
	for _, e := range []error{trainer.ErrServerLost, &trainer.Refused{}, trainer.ErrNoAnswer,
		fabric.ErrNoServer, fabric.ErrLost} {
		if errors.Is(err, e) {
			return
		}
	}
	if errors.Is(err, trainer.ErrJobFailed) && (strings.Contains(err.Error(), "no trainer has taken its place") ||
		strings.Contains(err.Error(), "no trainer is left that had the parameters") ||
		s.nats != nil && strings.Contains(err.Error(), "after the control server had lost its buckets")) {
		return
	}
	if errors.Is(err, trainer.ErrJobFailed) && s.job.Rewinds() && strings.Contains(err.Error(), "it is alive") {
		for _, v := range s.servers { // the job has ended, as one does that would not get further
			s.doubt(v)
		}
		return
	}
	if strings.Contains(err.Error(), "leave job") {
		return // it has all batches and their digest, and no ps was there to be told
	}
	s.t.Errorf("%s: %v", m.name, err)
}

func (s *system) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// kill ends a trainer process as the end of its machine does.
func (s *system) kill(m *member) {
	s.note("%s killed", m.name)
	s.mu.Lock()
	m.dead = true
	m.host.Kill()
	s.mu.Unlock()
	m.end(errDead)
}

// alive are the trainers that have not been killed.
func (s *system) alive() (all []*member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.trainers {
		if !m.dead {
			all = append(all, m)
		}
	}
	return all
}

// checksum is a checksum of values: FNV-1a of their bits.
func checksum(values []float32) uint32 {
	h := uint32(2166136261)
	for _, v := range values {
		h = (h ^ math.Float32bits(v)) * 16777619
	}
	return h
}

// quiet is the digest of the job when nothing happens to it. It notes the weights of every version.
func (s *system) quiet() (string, error) {
	job, backend := s.job, s.backend
	bus := fabric.NewBus()
	server, err := ps.Start(context.Background(), ps.Config{ID: "quiet"}, ps.Options{Bus: bus, Backend: backend,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	alone := *job
	alone.Trainers, alone.Consistency, alone.Ahead = 1, schema.ConsistencySync, 0
	session, err := trainer.Join(ctx, trainer.Config{Server: server.URL(), Bus: bus, Backend: backend,
		TelemetryEvery: -1}, &alone)
	if err != nil {
		return "", err
	}
	defer func() { _ = session.Close() }()
	err = session.Run(ctx, noise{job.Seed, job.Ahead > 0, s.batches, s.remember}, s.batches, func(p trainer.Progress) {
		s.weights = append(s.weights, checksum(session.Param("w")))
	})
	if err != nil {
		return "", err
	}
	digest, err := session.Digest(ctx)
	return fmt.Sprintf("%x", digest[:8]), err
}
