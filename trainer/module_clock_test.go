package trainer

import (
	"testing"
	"time"

	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// A session that trains with a hosted module tells where it is in a pass, which shard it waits for, and the batches and
// times of its steps.
func TestHostedPhasesAreTold(t *testing.T) {
	t.Parallel()
	server, w := startWatched(t, ps.Config{Shards: 2})
	config, job := testConfig(t, server), moduleJob("phases", 1, schema.ConsistencyAsync)
	config.TelemetryEvery = 10 * time.Millisecond
	ctx := testContext(t)
	s, err := Join(ctx, config, job)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	m, err := s.Module("net")
	if err != nil {
		t.Fatal(err)
	}
	says := func(what string, doing schema.Doing, hosted bool, shard int, batches uint64) *schema.TrainerReport {
		t.Helper()
		return w.last("t0", what, func(p *schema.TrainerReport) bool {
			return p.Doing == doing && p.Hosted == hosted && (p.AwaitedShard == nil) == (shard < 0) &&
				(shard < 0 || *p.AwaitedShard == shard) &&
				p.Batches == batches && p.Batch == schema.Batch(batches) && p.Planned == 0
		})
	}
	says("nothing is done yet", schema.DoingOther, false, -1, 0)
	x, gradY := moduleInput(0, 0, 600, 700)
	pass, _, err := m.Forward(ctx, 0, 0, x)
	if err != nil {
		t.Fatal(err)
	}
	says("what the output is used for", schema.DoingCompute, true, -1, 0)
	if _, _, err := m.Weights(ctx); err != nil {
		t.Fatal(err)
	}
	if s.modules.passes.open != 1 {
		t.Errorf("%d passes are open after a read of the parameters, want the 1 before it", s.modules.passes.open)
	}
	for kind, doing := range map[schema.Kind]schema.Doing{schema.KindForward: schema.DoingLookup,
		schema.KindBackward: schema.DoingResult, schema.KindStep: schema.DoingResult} {
		answered := m.asking(kind, true)
		s.exchange.ask(m.asker(), m, s.exchange.number(1), []int{1}, s.since(), true)
		s.exchange.do(func(x *exchange.Exchange) { x.Await(m.asker(), s.since()) })
		says("a request waits", doing, true, 1, 0)
		s.exchange.close(m.asker())
		s.exchange.do((*exchange.Exchange).Stop)
		answered(false)
	}
	if _, err := pass.BackwardStep(ctx, gradY, 3); err != nil {
		t.Fatal(err)
	}
	p := says("a step, which makes a batch", schema.DoingOther, true, -1, 1)
	if p.Samples != 3 || p.LookupSeconds <= 0 || p.ComputeSeconds <= 0 || p.ResultSeconds <= 0 {
		t.Errorf("after a step: %d samples, lookup %v, compute %v, result %v", p.Samples, p.LookupSeconds, p.ComputeSeconds,
			p.ResultSeconds)
	}
	if pass, _, err = m.Forward(ctx, 1, 0, x); err == nil {
		err = pass.Release(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	says("a pass that was released is no batch", schema.DoingOther, true, -1, 1)
	if _, err := m.Evaluate(ctx, x); err != nil {
		t.Fatal(err)
	}
	s.modules.passes.mu.Lock()
	s.modules.passes.since = s.modules.passes.since.Add(-2 * hostedLately)
	s.modules.passes.mu.Unlock()
	says("nothing was trained lately", schema.DoingOther, false, -1, 1)
}
