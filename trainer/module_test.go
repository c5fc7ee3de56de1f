package trainer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/ps"
	"gradbus/schema"
)

// moduleJob hosts a module whose tensors take several frames, beside a tiny one on another shard.
func moduleJob(name string, trainers int, consistency string) *schema.Job {
	job := &schema.Job{Name: schema.JobName(name), Workload: "hosted", Trainers: trainers, Lanes: 2 * trainers,
		Consistency: consistency,
		Apply:       schema.ApplyUpdate, Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytesMin,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.5},
		Modules: []schema.ModuleSpec{
			{Name: "tiny", Seed: 3, In: []int{2}, Samples: 4, Contexts: 2, Module: `[{"linear":{"in":2,"out":1}}]`},
			{Name: "net", Shard: 1, Seed: 5, In: []int{600}, Samples: 4, Contexts: 2,
				Module: `[{"linear":{"in":600,"out":8}},{"dropout":{"p":0.5}},{"relu":{}},{"linear":{"in":8,"out":700}}]`},
		}}
	return job
}

// moduleInput is what trainer and test make of a batch and lane.
func moduleInput(b, lane uint64, in, out int) (x, gradY []float32) {
	x, gradY = make([]float32, 3*in), make([]float32, 3*out)
	source := philox.New(9, "input", b, lane, 0)
	for _, values := range [][]float32{x, gradY} {
		for i := range values {
			values[i] = source.Uniform() - 0.5
		}
	}
	return x, gradY
}

// moduleStep is one step that a trainer has made, by one context or two.
type moduleStep struct {
	made, saw schema.Version
	batch     uint64
	lanes     []uint64
	gradX     []float32
	gradients []Tensor // of the first context, where they were asked for
	y         []float32
}

// drive trains with a hosted module for some batches and notes what came of it.
func drive(ctx context.Context, s *Session, batches uint64, enter func(b uint64)) (steps []moduleStep, err error) {
	m, err := s.Module("net")
	if err != nil {
		return nil, err
	}
	first, _ := s.Lanes()
	for b := range batches {
		if enter != nil {
			enter(b)
		}
		step, err := driveBatch(ctx, m, b, uint64(first))
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

func driveBatch(ctx context.Context, m *Module, b, first uint64) (step moduleStep, err error) {
	forward := func(l uint64) (pass *Activation, y, gradY []float32) {
		var x []float32
		x, gradY = moduleInput(b, l, 600, 700)
		if err == nil {
			pass, y, err = m.Forward(ctx, schema.Batch(b), lane.Lane(l), x)
		}
		return pass, y, gradY
	}
	pass, y, gradY := forward(first)
	if err != nil {
		return step, err
	}
	step = moduleStep{batch: b, lanes: []uint64{first}, saw: pass.Version(), y: slices.Clone(y)}
	switch b % 3 {
	case 0: // one request for both
		step.made, err = pass.BackwardStep(ctx, gradY, 3)
	case 1: // in turn, with everything that can be asked for
		gradX, err := pass.BackwardInput(ctx, gradY)
		if err != nil {
			return step, err
		}
		step.gradX = slices.Clone(gradX)
		if step.gradients, err = pass.Gradients(ctx); err != nil {
			return step, err
		}
		step.made, err = m.Step(ctx, 3, pass)
		return step, err
	case 2: // two lanes, one step; the oracle replays passes of one version
		if err := pass.Backward(ctx, gradY); err != nil {
			return step, err
		}
		other, _, gradY := forward(first + 1)
		switch {
		case err != nil:
		case other.Version() != pass.Version():
			if err = other.Release(ctx); err == nil {
				step.made, err = m.Step(ctx, 3, pass)
			}
		default:
			step.lanes = append(step.lanes, first+1)
			if err = other.Backward(ctx, gradY); err == nil {
				step.made, err = m.Step(ctx, 6, other, pass)
			}
		}
	}
	return step, err
}

// Four trainers at once, each pass on the version that it pinned whoever steps meanwhile: outputs, gradients by input
// and by parameters, and every version of the parameters are those of passes in one process, bit by bit, in the order
// of the steps.
func TestHostedModuleIsALocalPass(t *testing.T) {
	const trainers, batches = 4, 6
	ctx := testContext(t)
	server := startServer(t, 2)
	job := moduleJob("hosted", trainers, schema.ConsistencySync)
	sessions := joinAll(t, testConfig(t, server), job)
	all := make([][]moduleStep, trainers)
	errs := make([]error, trainers)
	var together sync.WaitGroup
	for i, s := range sessions {
		together.Go(func() { all[i], errs[i] = drive(ctx, s, batches, nil) })
	}
	together.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	checkHosted(t, job, sessions[0], slices.Concat(all...))
	leaveAll(t, sessions)
}

func equalValues(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func leaveAll(t *testing.T, sessions []*Session) {
	t.Helper()
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// While others train, an evaluation drops nothing and sees one version: repeated on it, it gives the same bits.
func TestHostedEvaluationWhileOthersTrain(t *testing.T) {
	ctx := testContext(t)
	server := startServer(t, 1)
	job := moduleJob("evaluation", 2, schema.ConsistencySync)
	sessions := joinAll(t, testConfig(t, server), job)
	trained := make(chan error, 1)
	go func() {
		_, err := drive(ctx, sessions[1], 12, nil)
		trained <- err
	}()
	m, err := sessions[0].Module("net")
	if err != nil {
		t.Fatal(err)
	}
	x, _ := moduleInput(0, 0, 600, 700)
	x = append(x, x...) // six samples, which take two requests
	for range 8 {
		if _, err := m.Evaluate(ctx, x); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-trained; err != nil {
		t.Fatal(err)
	}
	weights, _, err := m.Weights(ctx)
	if err != nil {
		t.Fatal(err)
	}
	y, err := m.Evaluate(ctx, x)
	if err != nil {
		t.Fatal(err)
	}
	o := newModuleOracle(t, job, 1)
	params := make([][]float32, len(weights))
	for i, w := range weights {
		params[i] = w.Values
	}
	want, err := o.net.Forward(params, x, nn.Mode{})
	if err != nil {
		t.Fatal(err)
	}
	equalValues(t, "evaluation", y, want)
	leaveAll(t, sessions)
}

// Refusals name what is wrong and end nothing but the call.
func TestHostedModuleRefuses(t *testing.T) {
	ctx := testContext(t)
	server := startServer(t, 1)
	sessions := joinAll(t, testConfig(t, server), moduleJob("refusals", 2, schema.ConsistencySync))
	m, err := sessions[0].Module("tiny")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sessions[0].Module("huge"); err == nil || !strings.Contains(err.Error(), `"huge"`) {
		t.Errorf("unknown module: %v", err)
	}
	pass, _, err := m.Forward(ctx, 0, 0, []float32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := m.Forward(ctx, 0, 0, []float32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = m.Forward(ctx, 0, 0, []float32{1, 2})
	checkError(t, err, &Refused{}, "over_budget", "t0 has 2 contexts", "allows 2")
	_, _, err = m.Forward(ctx, 0, 2, []float32{1, 2})
	checkError(t, err, &Refused{}, "wrong_sender")
	other, err := sessions[1].Module("tiny")
	if err != nil {
		t.Fatal(err)
	}
	stolen := &Activation{module: other.hostedModule, id: pass.id, samples: 1}
	checkError(t, stolen.Backward(ctx, []float32{1}), errActivation, "another trainer's")
	_, err = m.Step(ctx, 1, pass)
	checkError(t, err, errActivation, "has no gradients")
	if err := pass.Backward(ctx, []float32{1}); err != nil {
		t.Fatal(err)
	}
	checkError(t, pass.Backward(ctx, []float32{1}), errActivation, "no pass to go back through")
	if _, err := m.Step(ctx, 1, pass); err != nil {
		t.Fatal(err)
	}
	_, err = m.Step(ctx, 1, pass)
	checkError(t, err, errActivation, "was stepped")
	if err := second.Release(ctx); err != nil {
		t.Fatal(err)
	}
	pass, _, err = m.Forward(ctx, 0, 0, []float32{3e38, 3e38})
	if err != nil {
		t.Fatal(err)
	}
	made, err := pass.BackwardStep(ctx, nil, 1)
	if made != 0 || err == nil || !strings.Contains(err.Error(), "a gradient of 0 values: want 1") {
		t.Errorf("a step that was not sent made version %d, %v", made, err)
	}
	made, err = pass.BackwardStep(ctx, []float32{3e38}, 1)
	checkError(t, err, &Refused{}, "non_finite")
	if made != 0 {
		t.Errorf("a step that was refused made version %d", made)
	}
	before, version, err := m.Weights(ctx)
	if err != nil || version != 1 || len(before) != 2 {
		t.Errorf("weights of version %d, %v: want version 1, which the refused step has left", version, err)
	}
	leaveAll(t, sessions)
}

// A read of the parameters that is given up gives back its pin, and waits until the shard has said so: what is sent may
// be lost.
func TestWeightsGivenUpLeaveNoPin(t *testing.T) {
	t.Parallel()
	job := moduleJob("pins", 1, schema.ConsistencySync)
	s := joinAll(t, testConfig(t, startServer(t, 2)), job)[0]
	m, err := s.Module("tiny")
	if err != nil {
		t.Fatal(err)
	}
	pin := &Activation{module: m.hostedModule}
	if _, err := m.read(testContext(t), pin, 0); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := m.unpin(ended, pin); err != nil {
		t.Errorf("the release of a pin that nobody awaits any more: %v", err)
	}
	pin.samples = 1
	checkError(t, pin.Release(testContext(t)), errActivation, "")
	leaveAll(t, []*Session{s})
}

// A trainer that falls silent loses its contexts, by name; in async the others go on.
func TestHostedContextsExpireWithTheirTrainer(t *testing.T) {
	testkit.Waits(t, hostedContextsExpireWithTheirTrainer)
}

func hostedContextsExpireWithTheirTrainer(t *testing.T) {
	ctx := testContext(t)
	sessions := joinOneSilent(t, moduleJob("expire", 2, schema.ConsistencyAsync))
	var passes []*Activation
	for i, s := range sessions {
		m, err := s.Module("tiny")
		if err != nil {
			t.Fatal(err)
		}
		pass, _, err := m.Forward(ctx, 0, lane.Lane(2*i), []float32{1, 2})
		if err != nil {
			t.Fatal(err)
		}
		passes = append(passes, pass)
	}
	// Every request is a sign of life, so it is asked after a silence only; without gradients there is nothing to be had
	// either way.
	var err error
	for until := time.Now().Add(testTimeout / 2); time.Now().Before(until) &&
		(err == nil || !strings.Contains(err.Error(), "expired")); {
		time.Sleep(shortDeadline + 2200*time.Millisecond) // the deadline, a tick and more
		_, err = passes[1].Gradients(ctx)
	}
	checkError(t, err, errActivation, "expired", "t1 was not heard of for", "deadline "+shortDeadline.String())
	if _, err := passes[0].BackwardStep(ctx, []float32{1}, 1); err != nil {
		t.Errorf("the context of the trainer that was heard: %v", err)
	}
	leaveAll(t, sessions)
}

// Connections that break again and again, so that requests and answers are lost and come again, change no bit: each
// step counts once.
func TestHostedOverBrokenConnections(t *testing.T) {
	const trainers, batches = 2, 12
	ctx := testContext(t)
	server := startTCP(t, 2)
	p := startProxy(t, server.URL())
	config := testConfig(t, server)
	config.Server = p.url()
	job := moduleJob("broken-modules", trainers, schema.ConsistencySync)
	sessions := joinAll(t, config, job)
	all, errs := make([][]moduleStep, trainers), make([]error, trainers)
	var together sync.WaitGroup
	for i, s := range sessions {
		together.Go(func() {
			all[i], errs[i] = drive(ctx, s, batches, func(b uint64) {
				if b%4 == uint64(i) {
					p.cut(false)
				}
			})
		})
	}
	together.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	checkHosted(t, job, sessions[0], slices.Concat(all...))
	reconnects := uint64(0)
	for _, s := range sessions {
		reconnects += s.Stats().Traffic.Reconnects
	}
	if reconnects < 4 {
		t.Errorf("%d reconnections: the connections were not cut", reconnects)
	}
	leaveAll(t, sessions)
}

// In a job that a lost trainer ends, the others' requests end with its name.
func TestHostedJobFailsWithItsTrainer(t *testing.T) { testkit.Waits(t, hostedJobFailsWithItsTrainer) }

func hostedJobFailsWithItsTrainer(t *testing.T) {
	ctx := testContext(t)
	sessions := joinOneSilent(t, moduleJob("dead", 2, schema.ConsistencySync))
	m, err := sessions[0].Module("tiny")
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		time.Sleep(100 * time.Millisecond) // an evaluation need not wait for anything
		_, err = m.Evaluate(ctx, []float32{1, 2})
	}
	checkError(t, err, ErrJobFailed, "trainer t1", "deadline "+shortDeadline.String())
	for _, s := range sessions {
		_ = s.Abort(errors.New("the job has failed")) // which is known
	}
}

// joinOneSilent joins both trainers of a job on a server whose deadline is short. The second gives one sign of life and
// no more.
func joinOneSilent(t *testing.T, job *schema.Job) []*Session {
	t.Helper()
	config := testConfig(t, startServerWith(t, ps.Config{Deadline: shortDeadline}))
	var joining sync.WaitGroup
	sessions, errs := make([]*Session, 2), make([]error, 2)
	for i := range sessions {
		c := config
		c.Member = schema.TrainerMember(i)
		if i == 1 {
			c.HeartbeatEvery, c.TelemetryEvery = 2*time.Hour, time.Hour // a report is a sign of life, too
		}
		joining.Go(func() { sessions[i], errs[i] = Join(testContext(t), c, job) })
	}
	joining.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return sessions
}
