package status_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func codesOf(s *status.Status) (codes []string) {
	for _, p := range s.Problems {
		codes = append(codes, p.Code)
	}
	return codes
}

// Clocks of other machines do not matter: hours off, or set while a job runs, they change nothing that is said.
func TestClocks(t *testing.T) {
	plain, skewed := statustest.NewCluster(statustest.Options{Trainers: 3, Hosts: 3}),
		statustest.NewCluster(statustest.Options{Trainers: 3, Hosts: 3})
	a, b := plain.NewTracker(), skewed.NewTracker()
	for second := range 400 {
		if second == 300 {
			plain.Trainers[1].Stopped, skewed.Trainers[1].Stopped = true, true
		}
		for _, h := range plain.Second() {
			a.Take(plain.Now, h.Job, h.From, h.Telemetry)
		}
		for i, h := range skewed.Second() {
			off := int64(i-1) * 7_200_000
			if second > 200 {
				off -= 86_400_000
			}
			h.Telemetry.NowMS += off
			b.Take(skewed.Now, h.Job, h.From, h.Telemetry)
		}
		u, v := a.Tick(plain.Now), b.Tick(skewed.Now)
		if u.Status.Why != v.Status.Why {
			t.Fatalf("second %d: %+v, with clocks that are off %+v", second, u.Status.Why, v.Status.Why)
		}
		x, y := u.Status.Jobs[0].Trainers[0], v.Status.Jobs[0].Trainers[0]
		if math.Abs(float64(x.SamplesPerSecond-y.SamplesPerSecond)) > 1 || x.Phases.Compute < y.Phases.Compute-0.01 ||
			x.Phases.Compute > y.Phases.Compute+0.01 {
			t.Fatalf("second %d: %v samples/s and %+v, with clocks that are off %v and %+v", second, x.SamplesPerSecond,
				x.Phases, y.SamplesPerSecond, y.Phases)
		}
	}
}

// Reports that are lost or late by chance neither change rates nor are told of.
func TestLostReports(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 8})
	tracker := c.NewTracker()
	random := rand.New(rand.NewPCG(1, 2))
	lost := map[schema.Member]bool{}
	for second := range 300 {
		for _, h := range c.Second() {
			if !lost[h.From] && random.IntN(5) == 0 {
				lost[h.From] = true
				continue
			}
			lost[h.From] = false
			late := time.Duration(random.IntN(300)) * time.Millisecond
			tracker.Take(c.Now.Add(late/300), h.Job, h.From, h.Telemetry)
		}
		u := tracker.Tick(c.Now.Add(400 * time.Millisecond))
		if len(u.Status.Problems) > 0 {
			t.Fatalf("second %d: %+v", second, u.Status.Problems)
		}
		if rate := float64(u.Status.Jobs[0].SamplesPerSecond); second > 20 && math.Abs(rate-9840) > 300 {
			t.Fatalf("second %d: %v samples/s, want about 9840", second, rate)
		}
	}
}

// A pause of the process that looks is nobody's silence.
func TestPause(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2, Servers: 2, GPUs: true})
	tracker := c.NewTracker()
	c.Play(tracker, 60)
	late := c.Now.Add(45 * time.Second)
	if u := tracker.Tick(late); len(u.Status.Problems) > 0 {
		t.Errorf("after a pause: %q", codesOf(&u.Status))
	}
	if u := tracker.Tick(late.Add(time.Second)); len(u.Status.Problems) > 0 {
		t.Errorf("a second later: %q", codesOf(&u.Status))
	}
	u := tracker.Tick(late.Add(3 * time.Second))
	if !slices.Contains(codesOf(&u.Status), status.CodeSilent) ||
		!slices.Contains(codesOf(&u.Status), status.CodeServerSilent) {
		t.Errorf("nobody is heard of after the pause: %q", codesOf(&u.Status))
	}
}

// Who is meant is said by the subject; a body that claims otherwise changes nothing.
func TestIdentity(t *testing.T) {
	tracker := status.New(status.Config{Server: "a"})
	c := statustest.NewCluster(statustest.Options{})
	reports := c.Second()
	server, trainer := reports[0].Telemetry, reports[1].Telemetry
	for _, from := range []schema.Member{"t0", "s0", "coordinator", "p-", "", "t", "t01", "t-1", "t99999", "all"} {
		tracker.Take(noon, "packages", from, server)
	}
	for _, from := range []schema.Member{"p-a", "s0", "coordinator", "t00", "t5000"} {
		tracker.Take(noon, "packages", from, trainer)
	}
	tracker.Take(noon, "packages", "t0", nil)
	tracker.Take(noon, "packages", "t0", &schema.Telemetry{})
	tracker.Take(noon, "packages", "t0", &schema.Telemetry{Trainer: trainer.Trainer, Server: server.Server})
	if s := tracker.Tick(noon).Status; len(s.Servers) > 0 || len(s.Jobs) > 0 {
		t.Fatalf("%+v", s)
	}
	tracker.Take(noon, "ps", "p-b", server) // which says that it is box-4222
	if s := tracker.Tick(noon).Status; len(s.Servers) != 1 || s.Servers[0].ID != "b" || s.Jobs[0].Coordinator != "b" {
		t.Errorf("%+v", s.Servers)
	}
}

// A run belongs to the ps that told of it first, while that is heard of.
func TestRivals(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{})
	tracker := c.NewTracker()
	c.Play(tracker, 30)
	other := statustest.NewCluster(statustest.Options{})
	play := func(seconds int) (u status.Update) {
		for range seconds {
			for _, h := range c.Second() {
				tracker.Take(c.Now, h.Job, h.From, h.Telemetry)
			}
			p := *other.Second()[0].Telemetry
			said := *p.Server
			said.Jobs = slices.Clone(said.Jobs)
			said.Jobs[0].RunID = 4711
			said.Jobs[0].Batch = 1e9
			p.Server = &said
			tracker.Take(c.Now, "ps", "p-other", &p)
			u = tracker.Tick(c.Now)
		}
		return u
	}
	u := play(20)
	if len(u.Status.Jobs) != 1 || u.Status.Jobs[0].Coordinator != "box-4222" || u.Status.Jobs[0].Batch > 1e6 {
		t.Fatalf("%+v", u.Status.Jobs)
	}
	c.Servers[0].Stopped = true // now another ps may have it
	u = play(15)
	if len(u.Status.Jobs) != 2 || !slices.ContainsFunc(u.Status.Jobs,
		func(j status.Job) bool { return j.Coordinator == "other" && j.RunID == "4711" }) {
		t.Errorf("%+v", u.Status.Jobs)
	}
}

// One GPU that a ps and two trainers of its machine speak of is one GPU; the worst that is fresh counts.
func TestGPUsAreMerged(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2})
	tracker := c.NewTracker()
	gpu := statustest.GPU("box-0", 0)
	gpu.Used = false
	c.Servers[0].GPUs = []schema.GPUReport{gpu}
	gpu.Used = true
	c.Trainers[0].GPUs, c.Trainers[1].GPUs = []schema.GPUReport{gpu}, []schema.GPUReport{gpu}
	u := c.Play(tracker, 5)
	if g := u.Status.GPUs; len(g) != 1 || g[0].Server != "p-box-4222" ||
		!slices.Equal(g[0].Users, []string{"packages/t0", "packages/t1"}) {
		t.Fatalf("%+v", g)
	}
	c.Trainers[1].GPUs[0].State, c.Trainers[1].GPUs[0].Reason = schema.GPUUnhealthy, "XID 79"
	u = c.Play(tracker, 1)
	if g := u.Status.GPUs; len(g) != 1 || g[0].State != schema.GPUUnhealthy || g[0].Server != "packages/t1" {
		t.Fatalf("%+v", g)
	}
	c.Trainers[1].GPUs = nil // it takes its word back
	u = c.Play(tracker, 2)
	if g := u.Status.GPUs; len(g) != 1 || g[0].State != schema.GPUHealthy {
		t.Fatalf("%+v", g)
	}
	c.Trainers[0].Host = "box-1" // the same UUID on another machine is another GPU
	if u = c.Play(tracker, 2); len(u.Status.GPUs) != 2 {
		t.Fatalf("%+v", u.Status.GPUs)
	}
}

// More than can be shown is bounded, said, and does not push out what is there.
func TestBounds(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{})
	tracker := c.NewTracker()
	c.Play(tracker, 10)
	trainer, server := c.Second()[1].Telemetry, c.Second()[0].Telemetry
	for i := range 300 {
		p := *server
		said := *p.Server
		said.Jobs = nil
		for k := range 50 {
			said.Jobs = append(said.Jobs, schema.JobReport{Name: schema.JobName(fmt.Sprintf("job-%d-%d", i, k)),
				RunID: schema.RunID(k), Phase: schema.PhaseRunning, Trainers: 4000, Shards: 1 << 30})
		}
		for k := range 64 {
			said.GPUs = append(said.GPUs, schema.GPUReport{UUID: fmt.Sprintf("GPU-%d-%d", i, k)})
		}
		p.Server = &said
		tracker.Take(c.Now, "ps", schema.Member(fmt.Sprintf("p-hostile-%d", i)), &p)
		q := *trainer
		told := *q.Trainer
		told.RunID = schema.RunID(i)
		q.Trainer = &told
		tracker.Take(c.Now, schema.JobName(fmt.Sprintf("name-%d", i)), schema.TrainerMember(i%5000), &q)
		tracker.Take(c.Now, "packages", "t1", &q)
	}
	s := tracker.Tick(c.Now).Status
	if len(s.Jobs) > status.JobsMax || len(s.Servers) > status.ServersMax || len(s.GPUs) > status.GPUsMax ||
		len(s.Problems) > status.ProblemsMax {
		t.Errorf("%d jobs, %d ps, %d GPUs, %d problems", len(s.Jobs), len(s.Servers), len(s.GPUs), len(s.Problems))
	}
	at := slices.IndexFunc(s.Jobs, func(j status.Job) bool { return j.Name == "packages" })
	if at < 0 || len(s.Jobs[at].Trainers) != 2 {
		t.Fatalf("the real job is gone, or changed: %d", at)
	}
	if !slices.Contains(codesOf(&s), status.CodeTooMany) {
		t.Errorf("nothing says that there is more: %q", codesOf(&s)[:min(5, len(s.Problems))])
	}
}

// Whatever reports say, what is shown is sane: no negative or endless rates, no negative ages, and no status ever
// changes.
func TestAnything(t *testing.T) {
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 7))
		c := statustest.NewCluster(statustest.Options{Trainers: 3, Servers: 2, Shards: 3, GPUs: true,
			Apply: []string{"mean", "update"}[seed%2], Consistency: []string{"sync", "async", "grouped"}[seed%3]})
		tracker := c.NewTracker()
		now := c.Now
		var first status.Status
		var was string
		for range 60 {
			now = now.Add(time.Duration(random.IntN(2500)) * time.Millisecond)
			for _, h := range c.Second() {
				tracker.Take(now, h.Job, h.From, shake(random, h.Telemetry))
			}
			u := tracker.Tick(now)
			check(t, &u)
			if was == "" {
				first, was = u.Status, encoded(t, u.Status)
			}
		}
		if now := encoded(t, first); now != was {
			t.Fatalf("seed %d: a status has changed:\n%s\n%s", seed, was, now)
		}
		if s, ok := tracker.Series("", 0); ok {
			encoded(t, s)
		}
	}
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// shake puts nonsense into a report, by way of its JSON, so that every field may be hit.
func shake(random *rand.Rand, p *schema.Telemetry) *schema.Telemetry {
	data, _ := json.Marshal(p)
	var tree any
	json.Unmarshal(data, &tree)
	var visit func(any) any
	visit = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for key := range v {
				v[key] = visit(v[key])
			}
		case []any:
			for i := range v {
				v[i] = visit(v[i])
			}
		case float64:
			if random.IntN(40) == 0 {
				return []any{0.0, -1.0, 1e15, -1e15, float64(random.IntN(1000)), v + 1}[random.IntN(6)]
			}
		case string:
			if random.IntN(60) == 0 {
				return []any{"", "NaN", "-Inf", strings.Repeat("x", 5000)}[random.IntN(4)]
			}
		case bool:
			if random.IntN(20) == 0 {
				return !v
			}
		}
		return v
	}
	data, _ = json.Marshal(visit(tree))
	var out schema.Telemetry
	if json.Unmarshal(data, &out) != nil { // as the decoder would refuse it
		return p
	}
	return &out
}

// check looks at what must hold of every update.
func check(t *testing.T, u *status.Update) {
	t.Helper()
	s := &u.Status
	if s.Why.Text == "" || len(s.Why.Text) > 20_000 {
		t.Errorf("sentence of %d bytes", len(s.Why.Text))
	}
	rate := func(what string, r schema.Real) {
		if f := float64(r); !(f >= 0) || math.IsInf(f, 0) {
			t.Errorf("%s is %v", what, f)
		}
	}
	for _, j := range s.Jobs {
		rate("samples/s", j.SamplesPerSecond)
		if j.AgeMS < 0 || j.LeftMS < 0 {
			t.Errorf("age %d, left %d", j.AgeMS, j.LeftMS)
		}
		for _, tr := range j.Trainers {
			rate("samples/s of "+tr.Member, tr.SamplesPerSecond)
			rate("sent", tr.SentPerSecond)
			rate("cpu", tr.CPU)
			p := tr.Phases
			if sum := float64(p.Keys + p.Lookup + p.Compute + p.Send + p.Result); !(sum >= 0) || sum > 1.0001 {
				t.Errorf("phases %+v of %s", p, tr.Member)
			}
			if tr.AgeMS < 0 || tr.HeldMS < 0 {
				t.Errorf("%s: age %d, held %d", tr.Member, tr.AgeMS, tr.HeldMS)
			}
		}
		for _, h := range j.Shards {
			rate("load", h.Load)
			if h.AgeMS < 0 || h.WaitsMS < 0 {
				t.Errorf("%+v", h)
			}
		}
	}
	for i, p := range s.Problems {
		if p.Code == "" || p.Text == "" || p.Action == "" || p.Runbook == "" || p.SinceMS > s.NowMS {
			t.Errorf("problem %d: %+v", i, p)
		}
	}
	encoded(&testing.T{}, u)
}

// Of two jobs a sentence says which it is about, and the one that is well stays well.
func TestTwoJobs(t *testing.T) {
	a := statustest.NewCluster(statustest.Options{Trainers: 2})
	b := statustest.NewCluster(statustest.Options{Job: "digits", Workload: "mnist", Trainers: 3, Place: "rack"})
	tracker := a.NewTracker()
	play := func(seconds int) (u status.Update) {
		for range seconds {
			for _, h := range append(a.Second(), b.Second()...) {
				tracker.Take(a.Now, h.Job, h.From, h.Telemetry)
			}
			u = tracker.Tick(a.Now)
		}
		return u
	}
	if u := play(30); u.Status.Why.Text != "2 jobs run: digits and packages." ||
		u.Status.Why.Level != status.OK || len(u.Points) != 2 {
		t.Errorf("%+v, points %v", u.Status.Why, u.Points)
	}
	b.Trainers[2].Stopped = true
	u := play(12)
	const want = "digits: batch 240 waits 12 s for trainer t2 on rack-0 (pid 7102), last seen 12 s ago."
	if u.Status.Why.Text != want || u.Status.Jobs[0].Why.Text != want {
		t.Errorf("%q and %q, want %q", u.Status.Why.Text, u.Status.Jobs[0].Why.Text, want)
	}
	if j := u.Status.Jobs[1]; j.Why.Level != status.OK || j.Trainers[1].Level != status.OK {
		t.Errorf("the other job: %+v", j.Why)
	}
	for _, key := range []string{"digits", "packages", ""} {
		if s, ok := tracker.Series(key, 0); !ok || len(s.AtMS) != 42 || key == "" && s.Job != "digits" {
			t.Errorf("series %q: %v, %d times of %q", key, ok, len(s.AtMS), s.Job)
		}
	}
	if _, ok := tracker.Series("nothing", 0); ok {
		t.Error("series of no job")
	}
}

// A run's name may be used again: both are shown, and the later one has the name.
func TestNameIsUsedAgain(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{})
	tracker := c.NewTracker()
	c.Play(tracker, 20)
	first := c.RunID
	c.End(nil)
	c.Play(tracker, 3)
	c.Begin(4711)
	u := c.Play(tracker, 10)
	if len(u.Status.Jobs) != 2 || u.Status.Jobs[0].RunID != "4711" || u.Status.Jobs[0].Series != "packages" ||
		u.Status.Jobs[0].Phase != schema.PhaseRunning {
		t.Fatalf("%+v", u.Status.Jobs)
	}
	if s := u.Status.Jobs[1].Series; s != fmt.Sprintf("packages.%d", first) {
		t.Errorf("series of the first run: %q", s)
	}
	if u.Status.Why.Level != status.OK {
		t.Errorf("%+v", u.Status.Why)
	}
	c.Trainers[1].Gone = true
	c.Play(tracker, 3)
	c.End(&schema.Ended{Member: "t1",
		Text: "trainer t1 on box-0 (pid 7101) was last seen 3s ago, and its connection is gone"})
	u = c.Play(tracker, 5)
	later, before := &u.Status.Jobs[0], &u.Status.Jobs[1]
	if later.RunID != "4711" || later.Why.Level != status.Critical || before.Why.Level != status.Info ||
		!strings.HasPrefix(before.Why.Text, "packages ended ") {
		t.Errorf("that the later run failed is told of the one before: %+v, %+v", later.Why, before.Why)
	}
	for i, want := range []string{"left", "lost"} {
		if tr := &later.Trainers[i]; tr.State != want || tr.Doing != "" || tr.DoingMS != 0 || tr.Shard != nil ||
			tr.PendingBytes != 0 {
			t.Errorf("%+v, want state %s, and that it does nothing", tr, want)
		}
		if tr := &before.Trainers[i]; tr.State != "left" || tr.Level != status.OK {
			t.Errorf("of the run that ended well: %+v", tr)
		}
	}
	c.Begin(4712)
	u = c.Play(tracker, 10)
	if j := &u.Status.Jobs[1]; j.RunID != "4711" || j.Why.Level != status.Info ||
		!strings.HasPrefix(j.Why.Text, "packages failed ") || !strings.HasSuffix(j.Why.Text, "its connection is gone.") {
		t.Errorf("of the run that failed, when there is another: run %s, %+v", j.RunID, j.Why)
	}
}

// Changed says that a Tick at once is worth it.
func TestChanged(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{GPUs: true})
	tracker := c.NewTracker()
	c.Play(tracker, 10)
	take := func() bool {
		for _, h := range c.Second() {
			tracker.Take(c.Now, h.Job, h.From, h.Telemetry)
		}
		return tracker.Changed()
	}
	if take() {
		t.Error("nothing has changed")
	}
	c.Trainers[0].GPUs[0].State = schema.GPUUnhealthy
	if !take() {
		t.Error("a GPU is worse")
	}
	if tracker.Tick(c.Now); tracker.Changed() {
		t.Error("still changed after a Tick")
	}
	c.Trainers[1].Gone = true
	if !take() {
		t.Error("a trainer's connection is gone")
	}
}
