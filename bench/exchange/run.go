package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"gradbus/bench/harness"
	"gradbus/bench/machine"
	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/ps"
	"gradbus/schema"
)

// Names of figures in Result.Turns and, where they are measures, in Result.CPU.
const (
	nameRaw         = "raw_tcp"
	nameNATS        = "nats"
	nameFanIn       = "fan_in_sum"
	nameRound       = "round"
	nameRequest     = "request"
	nameLoad        = "request_under_load"
	nameLoad1MiB    = "request_under_load_1mib"
	nameSmall       = "small_round"
	suffixRate      = "_gb_per_second"
	suffixP50       = "_p50_us"
	suffixP99       = "_p99_us"
	suffixCPU       = "_cpu"
	suffixShare     = "_share"
	nameRatio       = "fan_in_ratio"
	nameRoundTime   = "round_seconds"
	giga            = 1e9
	tenths          = 10
	micro           = 1e6
	warmUp          = 100 * time.Millisecond // of streams, before the clock starts
	loadWindowBytes = 4 << 20
	loadWindowSmall = 1 << 20
)

// bench is one Run.
type bench struct {
	Config
	turn    int
	figures map[string][]float64
	result  Result
	raw     map[int][]float64 // rates by size of write
}

// Run measures everything, in turns, and fails where a sum is wrong, a process fails or ctx ends. No process is left
// over.
func Run(ctx context.Context, c Config) (*Result, error) {
	c.Bytes -= c.Bytes % 4
	if err := c.validate(); err != nil {
		return nil, err
	}
	b := &bench{Config: c, figures: map[string][]float64{}, raw: map[int][]float64{}}
	for b.turn = range c.Turns {
		for _, m := range b.measures() {
			if len(c.Only) > 0 && !slices.Contains(c.Only, m.name) {
				continue
			}
			fmt.Fprintf(c.Progress, "turn %d of %d: %s\n", b.turn+1, c.Turns, m.text)
			if err := m.run(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", m.text, err)
			}
		}
	}
	return b.summarize()
}

type measure struct {
	name, text string
	run        func(context.Context) error
}

// measures are those of a turn, in their order.
func (b *bench) measures() []measure {
	load := func(name string, window int) func(context.Context) error {
		return func(ctx context.Context) error { return b.load(ctx, name, window) }
	}
	return []measure{
		{nameRaw, "raw TCP", b.rawTCP}, {nameNATS, "NATS", b.nats}, {nameFanIn, "fan-in", b.fanIn},
		{nameRound, "full round", b.round},
		{nameRequest, "requests", b.requests},
		{nameLoad, "requests under load, windows of 4 MiB", load(nameLoad, loadWindowBytes)},
		{nameLoad1MiB, "requests under load, windows of 1 MiB", load(nameLoad1MiB, loadWindowSmall)},
		{nameSmall, "small round", b.small},
	}
}

func (b *bench) note(name string, value float64) { b.figures[name] = append(b.figures[name], value) }

// last is the latest value of a figure, which is that of this turn.
func (b *bench) last(name string) float64 {
	all := b.figures[name]
	if len(all) == 0 {
		return 0 // left out
	}
	return all[len(all)-1]
}

// flow marks the members before and after a stretch of time and gives the seconds, the bytes that the first received
// and the processor seconds of all.
func (b *bench) flow(ctx context.Context, t team, stretch time.Duration) (seconds, bytes, used float64, err error) {
	if err := sleep(ctx, warmUp); err != nil {
		return 0, 0, 0, err
	}
	before, err := t.marks(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	if err := sleep(ctx, stretch); err != nil {
		return 0, 0, 0, err
	}
	after, err := t.marks(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	return after[0].At - before[0].At, float64(after[0].Bytes - before[0].Bytes), cpu(before, after), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *bench) stretch(parts int) time.Duration {
	return time.Duration(b.Seconds / float64(parts) * float64(time.Second))
}

// rawTCP takes the best of three sizes of write.
func (b *bench) rawTCP(ctx context.Context) error {
	specs := []spec{{Role: roleSink}, {Role: roleSource}}
	return b.within(ctx, nameRaw, specs, func(t team) error {
		best, used := 0.0, 0.0
		sizes := []int{64 << 10, 256 << 10, 1 << 20}
		for _, size := range sizes {
			if _, err := t[1:].all(ctx, order{Op: opWrite, Bytes: size}); err != nil {
				return err
			}
			seconds, bytes, cpu, err := b.flow(ctx, t, b.stretch(len(sizes)))
			if err != nil {
				return err
			}
			rate := bytes / seconds / giga
			b.raw[size] = append(b.raw[size], rate)
			if rate > best {
				best, used = rate, cpu/bytes*giga
			}
		}
		b.note(nameRaw+suffixRate, best)
		b.note(nameRaw+suffixCPU, used)
		return nil
	})
}

func (b *bench) nats(ctx context.Context) error {
	specs := []spec{{Role: roleReader, WindowBytes: b.windowBytes()},
		{Role: roleWriter, WindowBytes: b.windowBytes(), ChunkBytes: b.ChunkBytes}}
	return b.within(ctx, nameNATS, specs, func(t team) error {
		seconds, bytes, cpu, err := b.flow(ctx, t, b.stretch(1))
		if err != nil {
			return err
		}
		b.note(nameNATS+suffixRate, bytes/seconds/giga)
		b.note(nameNATS+suffixCPU, cpu/bytes*giga)
		return nil
	})
}

// feeders are the members of a fan-in: the shards' process, and trainers whose values count.
func (b *bench) feeders(job *schema.Job, window int) []spec {
	specs := []spec{{Role: roleShard, Shards: b.Shards}}
	for i := range b.Trainers {
		specs = append(specs, spec{Role: roleFeeder, Index: i, Job: job, WindowBytes: window, Feeders: b.Trainers})
	}
	return specs
}

func (b *bench) fanIn(ctx context.Context) error {
	job := withTable(jobOf("fan-in", b.Trainers, b.Bytes, b.ChunkBytes))
	return b.within(ctx, nameFanIn, b.feeders(job, b.windowBytes()), func(t team) error {
		_, err := b.rounds(ctx, t, nameFanIn, b.Trainers)
		if err != nil {
			return err
		}
		b.note(nameRatio, over(b.last(nameFanIn+suffixRate), b.last(nameRaw+suffixRate)))
		return nil
	})
}

// warm has all members but the first run some rounds, and says how many the time holds, at least three.
func (b *bench) warm(ctx context.Context, t team) (count int, err error) {
	const few = 2
	for range 2 {
		got, err := t[1:].all(ctx, order{Op: opRun, Rounds: few})
		if err != nil {
			return 0, err
		}
		b.counted(got)
		count = max(3, int(b.Seconds/longest(got)*few))
	}
	return count, nil
}

// rounds has all members but the first run as many rounds as the time holds. It notes the rate at which the values of
// the given number of trainers went in.
func (b *bench) rounds(ctx context.Context, t team, name string, trainers int) ([]answer, error) {
	count, err := b.warm(ctx, t)
	if err != nil {
		return nil, err
	}
	got, before, after, err := t.marked(ctx, order{Op: opRun, Rounds: count})
	if err != nil {
		return nil, err
	}
	b.counted(got)
	b.noteRate(name, trainers*count, longest(got), before, after)
	return got, nil
}

// noteRate notes what rounds of the given number of gradients gave.
func (b *bench) noteRate(name string, gradients int, seconds float64, before, after []mark) {
	bytes := float64(gradients) * float64(b.Bytes)
	b.note(name+suffixRate, bytes/seconds/giga)
	b.note(name+suffixCPU, cpu(before, after)/bytes*giga)
}

// longest is the time of the slowest.
func longest(all []answer) (seconds float64) {
	for _, a := range all {
		seconds = max(seconds, a.Ran.Seconds)
	}
	return seconds
}

func (b *bench) counted(all []answer) {
	for _, a := range all {
		b.result.ValuesChecked += a.Ran.Checked
		b.result.Again += a.Ran.Again
	}
}

// round runs full rounds in ten parts, after each of which it looks at the server's memory.
func (b *bench) round(ctx context.Context) error {
	job := jobOf("round", roundTrainers, b.Bytes, b.ChunkBytes)
	return b.within(ctx, nameRound, b.sessions(job), func(t team) error {
		count, err := b.warm(ctx, t)
		if err != nil {
			return err
		}
		if b.Rounds > 0 {
			count = b.Rounds
		}
		before, err := t.marks(ctx)
		if err != nil {
			return err
		}
		after, seconds := before, 0.0
		b.result.RSSTenths = b.result.RSSTenths[:0]
		for part := range tenths {
			n := count*(part+1)/tenths - count*part/tenths
			if n == 0 {
				continue
			}
			got, err := t[1:].all(ctx, order{Op: opRun, Rounds: n})
			if err != nil {
				return err
			}
			b.counted(got)
			seconds += longest(got)
			if after, err = t.marks(ctx); err != nil {
				return err
			}
			b.result.RSSTenths = append(b.result.RSSTenths, after[0].RSS)
			b.result.PeakRSS = max(b.result.PeakRSS, after[0].PeakRSS) // of every look: the kernel's own peak lags behind
		}
		b.noteRate(nameRound, roundTrainers*count, seconds, before, after)
		b.note(nameRoundTime, seconds/float64(count))
		b.result.RoundsRun += count
		b.result.PeakRSS = max(b.result.PeakRSS, after[0].PeakRSS)
		b.result.RSSBound = ps.ProcessBytes(serverConfig(b.Shards), job)
		return nil
	})
}

// sessions are the members of a full round.
func (b *bench) sessions(job *schema.Job) []spec {
	specs := []spec{{Role: roleShard, Shards: b.Shards}}
	for i := range roundTrainers {
		specs = append(specs, spec{Role: roleTrainer, Index: i, Job: job, WindowBytes: b.windowBytes(), Feeders: roundTrainers})
	}
	return specs
}

func (b *bench) requests(ctx context.Context) error {
	job := withTable(jobOf("requests", 1, b.Bytes, b.ChunkBytes))
	specs := []spec{{Role: roleShard, Shards: b.Shards}, {Role: roleAsker, Job: job, WindowBytes: b.windowBytes()}}
	return b.within(ctx, nameRequest, specs, func(t team) error {
		if _, err := t[1:].all(ctx, order{Op: opAsk, Seconds: warmUp.Seconds()}); err != nil {
			return err
		}
		got, before, after, err := t.marked(ctx, order{Op: opAsk, Seconds: b.Seconds})
		if err != nil {
			return err
		}
		b.noteTimes(nameRequest, got[0].Ran)
		b.note(nameRequest+suffixCPU, cpu(before, after)/float64(got[0].Ran.Count)*1e6)
		return nil
	})
}

func (b *bench) noteTimes(name string, r *ran) {
	b.note(name+suffixP50, r.P50*micro)
	b.note(name+suffixP99, r.P99*micro)
}

// load is the fan-in once more, with another member of the job that asks all the while.
func (b *bench) load(ctx context.Context, name string, window int) error {
	job := withTable(jobOf("load", b.Trainers+1, b.Bytes, b.ChunkBytes))
	specs := append(b.feeders(job, window), spec{Role: roleAsker, Index: b.Trainers, Job: job, WindowBytes: window})
	return b.within(ctx, name, specs, func(t team) error {
		got, err := b.rounds(ctx, t, name, b.Trainers)
		if err != nil {
			return err
		}
		b.noteTimes(name, got[len(got)-1].Ran)
		b.note(name+suffixShare, over(b.last(name+suffixRate), b.last(nameFanIn+suffixRate)))
		return nil
	})
}

func (b *bench) small(ctx context.Context) error {
	job := jobOf("small", roundTrainers, smallBytes, max(b.ChunkBytes, smallBytes))
	return b.within(ctx, nameSmall, b.sessions(job), func(t team) error {
		if _, err := t[1:].all(ctx, order{Op: opRun, Rounds: max(2, b.SmallRounds/10)}); err != nil {
			return err
		}
		got, before, after, err := t.marked(ctx, order{Op: opRun, Rounds: b.SmallRounds})
		if err != nil {
			return err
		}
		b.counted(got)
		b.noteTimes(nameSmall, got[0].Ran)
		b.note(nameSmall+suffixCPU,
			cpu(before, after)/(roundTrainers*smallBytes*float64(b.SmallRounds))*giga)
		return nil
	})
}

// summarize takes medians.
func (b *bench) summarize() (*Result, error) {
	r := &b.result
	for _, f := range []struct {
		to   *float64
		name string
	}{
		{&r.RawTCP, nameRaw + suffixRate}, {&r.NATS, nameNATS + suffixRate}, {&r.FanIn, nameFanIn + suffixRate},
		{&r.FanInRatio, nameRatio},
		{&r.Round, nameRound + suffixRate}, {&r.RoundSeconds, nameRoundTime},
		{&r.RequestP50, nameRequest + suffixP50}, {&r.RequestP99, nameRequest + suffixP99},
		{&r.RequestLoadP50, nameLoad + suffixP50}, {&r.RequestLoadP99, nameLoad + suffixP99},
		{&r.RequestLoadRate, nameLoad + suffixRate}, {&r.RequestLoadShare, nameLoad + suffixShare},
		{&r.Request1MiBP50, nameLoad1MiB + suffixP50}, {&r.Request1MiBP99, nameLoad1MiB + suffixP99},
		{&r.Request1MiBRate, nameLoad1MiB + suffixRate}, {&r.Request1MiBShare, nameLoad1MiB + suffixShare},
		{&r.SmallP50, nameSmall + suffixP50}, {&r.SmallP99, nameSmall + suffixP99},
	} {
		*f.to = harness.Median(b.figures[f.name])
	}
	r.CPU = map[string]float64{}
	for _, name := range []string{nameRaw, nameNATS, nameFanIn, nameRound, nameRequest, nameLoad, nameLoad1MiB,
		nameSmall} {
		r.CPU[name] = harness.Median(b.figures[name+suffixCPU])
	}
	for size, rates := range b.raw {
		if r.RawTCPWrite == 0 || harness.Median(rates) > harness.Median(b.raw[r.RawTCPWrite]) {
			r.RawTCPWrite = size
		}
	}
	if r.ValuesChecked == 0 && len(b.Only) == 0 {
		return nil, errors.New("no sum was checked")
	}
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		return nil, err
	}
	r.Settings = settings{b.Config, roundTrainers, b.windowBytes(), cuda.Describe(backend)}
	r.SumsExact, r.Machine, r.Turns = true, machine.This(), b.figures
	return r, backend.Close()
}

// over is a share, 0 where what it is of was left out.
func over(x, of float64) float64 {
	if of == 0 {
		return 0
	}
	return x / of
}

// startWithin bounds the time until the first answers of members.
const startWithin = 30 * time.Second

// team is the members of one measure. The first is the receiver, whose address the others are told.
type team []*harness.Handle

// within starts the members of a measure, connects them, and ends them after do.
func (b *bench) within(ctx context.Context, measure string, specs []spec, do func(team) error) error {
	c := harness.Harness{Roles: Roles()}
	if b.Profile != "" && b.turn == 0 {
		c.Profile = b.Profile
	}
	defer c.Close()
	var members []harness.Spec
	inJob := 0
	for _, s := range specs {
		if s.Job != nil {
			inJob++
		}
	}
	for _, s := range specs {
		if s.Job != nil {
			s.Procs = config.Share(inJob) // what --spawn gives trainers
		}
		name := fmt.Sprintf("%s-%s%d", measure, s.Role, s.Index)
		members = append(members, harness.Spec{Role: harnessRole, Name: name, Settings: s})
	}
	handles, err := c.Start(ctx, members...)
	if err != nil {
		return err
	}
	if err := team(handles).connect(ctx); err != nil {
		return err
	}
	if err := do(handles); err != nil {
		return err
	}
	return c.Close()
}

// connect asks the first member for its address and has the others connect to it.
func (t team) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("members not ready within %v", startWithin))
	defer cancel()
	at, err := t[:1].all(ctx, order{Op: opListen})
	if err != nil {
		return err
	}
	_, err = t[1:].all(ctx, order{Op: opConnect, URL: at[0].URL})
	return err
}

// all gives every member the same order and waits for all answers.
func (t team) all(ctx context.Context, o order) ([]answer, error) { return askAll[answer](ctx, t, o) }

// marks asks every member what it has used.
func (t team) marks(ctx context.Context) ([]mark, error) {
	return askAll[mark](ctx, t, order{Op: opMark})
}

func askAll[A any](ctx context.Context, t team, o order) ([]A, error) {
	for _, h := range t {
		if err := h.Ask(ctx, o); err != nil {
			return nil, err
		}
	}
	all := make([]A, len(t))
	for i, h := range t {
		if err := h.Answer(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// marked gives all members but the first an order, with what each member had used before and after.
func (t team) marked(ctx context.Context, o order) (got []answer, before, after []mark, err error) {
	if before, err = t.marks(ctx); err == nil {
		got, err = t[1:].all(ctx, o)
	}
	if err == nil {
		after, err = t.marks(ctx)
	}
	return got, before, after, err
}

// cpu is the processor seconds that all members together used between two marks.
func cpu(from, to []mark) float64 {
	var s float64
	for i := range from {
		s += to[i].CPU - from[i].CPU
	}
	return s
}

// What a member may be.
const (
	roleSink    = "sink"    // reads a raw TCP connection
	roleSource  = "source"  // writes one
	roleReader  = "reader"  // embedded NATS server, read in process
	roleWriter  = "writer"  // publishes to it
	roleShard   = "shard"   // a parameter server
	roleFeeder  = "feeder"  // contributes to a job and takes no results
	roleAsker   = "asker"   // contributes nothing to a job, and asks for rows
	roleTrainer = "trainer" // a trainer.Session
)

// spec is the settings of a member: what it is.
type spec struct {
	Role        string      `json:"role"`
	Index       int         `json:"index"` // among those of its role
	Job         *schema.Job `json:"job,omitempty"`
	Shards      int         `json:"shards,omitempty"`
	ChunkBytes  int         `json:"chunk_bytes,omitempty"`
	WindowBytes int         `json:"window_bytes,omitempty"`
	Feeders     int         `json:"feeders,omitempty"` // members of the job whose values count
	Procs       int         `json:"procs,omitempty"`   // for harness.Member.LimitProcs
}

// Operations of an order.
const (
	opListen  = "listen"  // give the address to dial
	opConnect = "connect" // to URL, and be ready
	opWrite   = "write"   // in pieces of Bytes, until told otherwise
	opRun     = "run"     // Rounds rounds
	opAsk     = "ask"     // for Seconds
	opMark    = "mark"    // say what was used so far, by a mark in place of an answer
)

// order is a request to a member.
type order struct {
	Op      string  `json:"op"`
	URL     string  `json:"url,omitempty"`
	Bytes   int     `json:"bytes,omitempty"`
	Rounds  int     `json:"rounds,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// answer is the answer of a member to each order but opMark.
type answer struct {
	URL string `json:"url,omitempty"`
	Ran *ran   `json:"ran,omitempty"`
}

// ran is the result of rounds or requests.
type ran struct {
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"`
	P50     float64 `json:"p50"` // seconds of one
	P99     float64 `json:"p99"`
	Checked int     `json:"checked"` // values that were compared with what they must be
	Again   int     `json:"again"`   // frames or requests that were sent again
}

// mark is the work and the use of resources of a process since its start.
type mark struct {
	At         float64 `json:"at"`      // seconds since the epoch
	CPU        float64 `json:"cpu"`     // seconds, user and system
	Bytes      uint64  `json:"bytes"`   // of payload received or sent, by role
	RSS        int64   `json:"rss"`     // bytes
	PeakRSS    int64   `json:"peak"`    // bytes
	Goroutines int     `json:"threads"` // goroutines
}

// role is the work of a member.
type role interface {
	// order does what is asked and gives the answer.
	order(ctx context.Context, o order) (answer, error)
	// bytes is the payload received, or sent, so far. Any goroutine may call it.
	bytes() uint64
	// close ends everything that the role has started and waits for it.
	close()
}

func newRole(ctx context.Context, s *spec) (role, error) {
	switch s.Role {
	case roleSink:
		return newSink()
	case roleSource:
		return newSource(), nil
	case roleReader:
		return newReader(ctx, s)
	case roleWriter:
		return newWriter(s), nil
	case roleShard:
		return newShard(ctx, s)
	case roleFeeder, roleAsker:
		return newMember(ctx, s), nil
	case roleTrainer:
		return newTrainer(s)
	}
	return nil, fmt.Errorf("role %q: no such role", s.Role)
}

// harnessRole is the name that the members of all measures have as a role of a harness; spec says which of them one is.
const harnessRole = "fabric"

// Roles returns the roles of members.
func Roles() map[string]harness.Role { return map[string]harness.Role{harnessRole: run} }

// run is a member from start to end: it does what it is asked, and says what it has used where that is the question.
func run(ctx context.Context, m *harness.Member) (any, error) {
	var s spec
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	m.LimitProcs(s.Procs)
	r, err := newRole(ctx, &s)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return nil, m.Serve(ctx, func(ctx context.Context, question json.RawMessage) (any, error) {
		var o order
		if err := json.Unmarshal(question, &o); err != nil {
			return nil, err
		}
		if o.Op == opMark {
			return usage(r.bytes())
		}
		a, err := r.order(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Op, err)
		}
		return a, nil
	})
}
