package trainer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// rating is what a user thinks of an item.
type rating struct {
	user, item uint64
	stars      float32
}

const (
	ratingUsers, ratingItems, ratingDim = 60, 40, 4
	ratingNoise                         = 0.1
)

// ratings are products of hidden factors of length 2, with noise of a known deviation.
func ratings(n int) []rating {
	random := rand.New(rand.NewPCG(3, 4))
	var hidden [ratingUsers + ratingItems][2]float64
	for i := range hidden {
		hidden[i] = [2]float64{random.NormFloat64(), random.NormFloat64()}
	}
	all := make([]rating, n)
	for i := range all {
		u, v := random.Uint64N(ratingUsers), random.Uint64N(ratingItems)
		h, g := hidden[u], hidden[ratingUsers+v]
		all[i] = rating{u, v, float32(h[0]*g[0] + h[1]*g[1] + ratingNoise*random.NormFloat64())}
	}
	return all
}

func ratingKeys(r rating, k *Keys) { k.Add("users", r.user); k.Add("items", r.item) }

// factors computes a step of a factorisation.
func factors(b *Step[rating]) (loss float64) {
	for n, r := range b.Samples() {
		p, q := b.Row("users", n), b.Row("items", n)
		e := nn.Dot(p, q) - r.stars
		nn.Axpy(e, q, b.RowGrad("users", n))
		nn.Axpy(e, p, b.RowGrad("items", n))
		loss += float64(e*e) / 2
	}
	return loss
}

func ratingJob(name string, trainers int) *Job {
	job := NewJob(name, trainers).LR(20).Lanes(4)
	job.Table("users", ratingUsers, ratingDim).Normal(0.3)
	job.Table("items", ratingItems, ratingDim).Normal(0.3)
	return job
}

// byShards has shards pool both tables, one by columns and one whole.
func byShards(j *Job) {
	j.tables[0].Sum()
	j.tables[1].Mean()
	j.Adjust(func(m *schema.Job) {
		m.Tables[0].Placement, m.Tables[1].Placement = schema.PlacementColumns, schema.PlacementTables
	})
}

// What a program learns from samples comes near to the noise in them.
func TestTrainLearnsAFactorisation(t *testing.T) {
	t.Parallel()
	var printed strings.Builder
	last := 0.0
	s, err := Train(testContext(t), testConfig(t, startServer(t, 2)), ratingJob("mf", 1),
		Samples(ratings(4000), 200, 1, ratingKeys).Epochs(12), factors,
		func(e Epoch) error { last = e.Loss; return e.print(&printed) })
	if err != nil {
		t.Fatal(err)
	}
	if rmse := math.Sqrt(2 * last); rmse > 1.3*ratingNoise {
		t.Errorf("RMSE %.3f of ratings with noise of %.3f", rmse, ratingNoise)
	}
	if lines := strings.Split(printed.String(), "\n"); len(lines) != 13 ||
		!strings.HasPrefix(lines[11], "epoch 12 of 12  loss 0.00") {
		t.Errorf("printed %q", printed.String())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// called is the same factorisation by callbacks.
type called struct {
	items    []rating
	shuffler *shuffle.Shuffler
	grads    [2][]float32
}

func (c *called) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	chosen := c.shuffler.Samples(b, l)
	for _, i := range chosen {
		keys[0], keys[1] = append(keys[0], c.items[i].user), append(keys[1], c.items[i].item)
	}
	return len(chosen), keys
}

func (c *called) Lane(step *LaneStep) (loss float64, err error) {
	users, items, userIDs, itemIDs := step.Rows(0), step.Rows(1), step.IDs(0), step.IDs(1)
	dim := step.compute.tables.specs[0].Dim
	for i := range c.grads {
		c.grads[i] = grown(c.grads[i], step.Samples*dim)
		clear(c.grads[i])
	}
	for n, i := range c.shuffler.Samples(step.Batch, step.Lane) {
		p, q := users[int(userIDs[n])*dim:][:dim], items[int(itemIDs[n])*dim:][:dim]
		e := nn.Dot(p, q) - c.items[i].stars
		nn.Axpy(e, q, c.grads[0][n*dim:(n+1)*dim])
		nn.Axpy(e, p, c.grads[1][n*dim:(n+1)*dim])
		loss += float64(e*e) / 2
	}
	step.BagGrad(0, cuda.Sum, nil, c.grads[0])
	step.BagGrad(1, cuda.Sum, nil, c.grads[1])
	return loss, nil
}

// A step has the bits of callbacks, pooled or not, at any number of trainers.
func TestTrainHasTheBitsOfCallbacks(t *testing.T) {
	t.Parallel()
	server, all := startServer(t, 2), ratings(500)
	shuffler, err := shuffle.New(1, len(all), 50, 4)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := ratingJob("callbacks", 1).LR(3).Manifest()
	if err != nil {
		t.Fatal(err)
	}
	s := joinAll(t, testConfig(t, server), manifest)[0]
	if err := s.Run(testContext(t), &called{items: all, shuffler: shuffler}, 20, nil); err != nil {
		t.Fatal(err)
	}
	want, err := s.Digest(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, adjust := range map[string]func(*Job){
		"rows":    func(*Job) {},
		"pooled":  func(j *Job) { j.tables[0].Sum(); j.tables[1].Mean() },
		"columns": byShards,
	} {
		for _, trainers := range []int{1, 2} {
			digests, errs := make([][32]byte, trainers), make([]error, trainers)
			done := make(chan int)
			for i := range trainers {
				go func() {
					defer func() { done <- i }()
					c := testConfig(t, server)
					c.Member = schema.TrainerMember(i)
					job := ratingJob(fmt.Sprintf("step-%s-%d", name, trainers), trainers)
					adjust(job.LR(3))
					s, err := Train(testContext(t), c, job, Samples(all, 50, 1, ratingKeys).Epochs(2), factors)
					if err == nil {
						digests[i], err = s.Digest(testContext(t))
						err = errors.Join(err, s.Close())
					}
					errs[i] = err
				}()
			}
			for range trainers {
				<-done
			}
			for i := range trainers {
				if errs[i] != nil || digests[i] != want {
					t.Errorf("%s, trainer %d of %d: weights %x, want %x: %v", name, i, trainers, digests[i][:6], want[:6], errs[i])
				}
			}
		}
	}
}

// Who adds up and who keeps is said by parties, and stands in the manifest as its words.
func TestJobNamesParties(t *testing.T) {
	j := NewJob("parties", 1).LR(1).Apply(schema.ByTrainers).Reduce(schema.ByTrainers)
	j.Dense("mu", 2)
	j.Table("users", 4, 2).Zeros().Replicated().Reduce(schema.ByShards)
	m, err := j.Manifest()
	if err != nil || m.Apply != schema.ApplyMean || m.Reduce != schema.ReduceTrainers ||
		m.Tables[0].Reduce != schema.ReduceShards {
		t.Errorf("%+v, %v", m, err)
	}
	j = NewJob("shards", 1).LR(1).Apply(schema.ByShards)
	j.Dense("mu", 2)
	if m, err = j.Manifest(); err != nil || m.Apply != schema.ApplyUpdate {
		t.Errorf("%+v, %v", m, err)
	}
}

// Several keys of a sample are rows of their own, or one that is pooled.
func TestStepWithSeveralKeys(t *testing.T) {
	t.Parallel()
	server := startServer(t, 1)
	keys := func(r rating, k *Keys) { k.Add("users", r.user, r.item) }
	for _, pooled := range []bool{false, true} {
		job := NewJob(fmt.Sprintf("several-%v", pooled), 1).LR(1)
		users := job.Table("users", ratingUsers, 2).Zeros()
		job.Dense("mu", 2)
		if pooled {
			users.Sum()
		}
		s, err := Train(testContext(t), testConfig(t, server), job,
			Samples([]rating{{user: 1, item: 2}, {user: 2, item: 3}}, 2, 1, keys), func(b *Step[rating]) float64 {
				for n := range b.Samples() {
					b.Grad("mu")[1] += 2
					if pooled {
						copy(b.RowGrad("users", n), []float32{2, 4})
						continue
					}
					for k := range 2 {
						copy(b.RowGrad("users", n, k), []float32{2, 4})
					}
					if r := b.Row("users", n, 1); len(r) != 2 || r[0] != 0 {
						b.Fail(fmt.Errorf("row %v", r))
					}
				}
				return 0
			})
		if err != nil {
			t.Fatal(err)
		}
		rows, err := s.Lookup(testContext(t), []Query{{Table: 0, Keys: []uint64{1, 2, 3}}})
		if got := fmt.Sprint(rows, s.Param("mu")); err != nil || got != "[[-1 -2 -2 -4 -1 -2]] [0 -2]" {
			t.Errorf("pooled %v: %v, %v", pooled, got, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What a program gets wrong is said once, with names.
func TestTrainSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	server, all := startServer(t, 1), ratings(20)
	for i, c := range []struct {
		keys func(rating, *Keys)
		step func(*Step[rating]) float64
		says string
	}{
		{func(_ rating, k *Keys) { k.Add("films", 1) }, factors, `keys of table "films": the job has ["users" "items"]`},
		{func(_ rating, k *Keys) { k.Add("users", 99) }, factors, `table "users": id 99 is outside [0, 60)`},
		{func(r rating, k *Keys) { k.Add("users", r.user); k.Add("items", 1, 2) }, factors,
			`table "items": sample 0 has 2 keys, and the table no pooling`},
		{ratingKeys, func(b *Step[rating]) float64 { b.Row("user", 0); return 0 },
			`table "user": the job has ["users" "items"]`},
		{ratingKeys, func(b *Step[rating]) float64 { b.RowGrad("users", 1000)[0]++; return 0 },
			`table "users": sample 1000: the step has`},
		{ratingKeys, func(b *Step[rating]) float64 { b.RowGrad("users", 0, 1)[0]++; return 0 },
			`table "users": key number 1 of sample 0, which has 1`},
		{ratingKeys, func(b *Step[rating]) float64 { b.Grad("mu")[0]++; return 0 }, `parameter "mu"`},
		{ratingKeys, func(b *Step[rating]) float64 {
			b.Grad("bias")[0]++
			b.Done("bias")
			b.Grad("bias")[0]++
			return 0
		}, `gradient of "bias" is asked for after Done`},
		{ratingKeys, func(b *Step[rating]) float64 { b.Fail(errors.New("no more paper")); return 0 }, "no more paper"},
	} {
		job := ratingJob(fmt.Sprintf("wrong-%d", i), 1)
		job.Dense("bias", 1)
		s, err := Train(testContext(t), testConfig(t, server), job, Samples(all, 10, 1, c.keys), c.step)
		checkError(t, err, ErrWorkload, c.says)
		if s != nil {
			t.Errorf("%s: there is a session", c.says)
		}
	}
	s, err := Train(testContext(t), testConfig(t, server), ratingJob("wrong-end", 1),
		Samples(all, 10, 1, ratingKeys).Epochs(3), factors,
		func(e Epoch) error {
			if e.Number == 2 {
				return errors.New("no better")
			}
			return nil
		})
	if s != nil || err == nil || !strings.Contains(err.Error(), "after epoch 2: no better") {
		t.Errorf("an epoch's error: %v", err)
	}
}

// A function that does not return leaves no session behind: its job ends, and another may have the name.
func TestTrainEndsWithAPanic(t *testing.T) {
	t.Parallel()
	config, data := testConfig(t, startServer(t, 1)), Samples(ratings(20), 10, 1, ratingKeys)
	ended := make(chan any)
	for name, step := range map[string]func(*Step[rating]) float64{
		"panic": func(*Step[rating]) float64 { panic("of the program") },
		"exit":  func(*Step[rating]) float64 { runtime.Goexit(); return 0 },
	} {
		go func() {
			defer func() { ended <- recover() }()
			_, _ = Train(testContext(t), config, ratingJob("again", 1), data, step)
		}()
		if p := <-ended; (p == "of the program") != (name == "panic") {
			t.Errorf("%s: recovered %v", name, p)
		}
	}
	s, err := Train(testContext(t), config, ratingJob("again", 1), data, factors)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Data that cannot be trained on are refused before anything is sent.
func TestDataAreChecked(t *testing.T) {
	for want, data := range map[string]*Data[rating]{
		"no samples":          Samples([]rating{}, 10, 1, ratingKeys),
		"batches of 0":        Samples(ratings(3), 0, 1, ratingKeys),
		"0 epochs":            Samples(ratings(3), 1, 1, ratingKeys).Epochs(0),
		"which keys a sample": Samples(ratings(3), 1, 1, nil),
		"are nil":             nil,
	} {
		_, err := Train(t.Context(), "", ratingJob("j", 1), data, factors)
		checkError(t, err, ErrConfig, want)
	}
}

// A Job says all that is missing at once, and leaves the rest to the manifest's defaults.
func TestJob(t *testing.T) {
	job := NewJob("mf", 2)
	job.Dense("mu", 1)
	job.Table("users", 10, 2)
	_, err := job.Manifest()
	checkError(t, err, ErrConfig, `parameter "mu" has no learning rate`, `table "users" has no learning rate`,
		`table "users" does not say how its rows begin`)
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %v", err)
	}
	job = NewJob("mf", 2).SGD(0.5).LR(0.1).Adjust(func(m *schema.Job) {
		m.ChunkBytes, m.Settings, m.Tables[0].Partitions = 8192, map[string]string{"data": "x"}, 3
	})
	job.Dense("mu", 1)
	job.Table("users", 10, 2).Normal(0.1)
	m, err := job.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	want := (&schema.Job{Name: "mf", Trainers: 2, Seed: 1, ChunkBytes: 8192, Settings: map[string]string{"data": "x"},
		Optimizer:  schema.Optimizer{LR: 0.1, Momentum: 0.5},
		Parameters: []schema.Parameter{{Name: "mu", Shape: []int{1}, Init: schema.Zeros()}},
		Tables: []schema.TableSpec{{Name: "users", Rows: 10, Dim: 2, Partitions: 3,
			Init: schema.Normal(0.1)}}}).WithDefaults()
	if a, b := encoded(t, m), encoded(t, want); a != b {
		t.Errorf("manifest %s\nwant %s", a, b)
	}
}

// The optimizer of a table is the job's, with what the table says changed, in whatever order the two are described.
func TestJobOptimizers(t *testing.T) {
	job := NewJob("mf", 1)
	users := job.Table("users", 10, 2).Zeros().LR(0.5).PerRow()
	items := job.Table("items", 10, 2).Zeros().FTRL(1, 2)
	mu := job.Dense("mu", 1).AdamW().Betas(0.8, 0.9).Eps(1e-6)
	job.LR(0.1).Decay(0.01).SGD(0.9).Nesterov().ClipValue(3).Schedule(
		schema.Schedule{Kind: schema.ScheduleLinear, Total: 10})
	of := schema.Optimizer{Kind: schema.OptimizerSGD}
	job.apply(&of)
	text := func(o *schema.Optimizer) string {
		clip, schedule := o.Clip, o.Schedule
		bare := *o
		bare.Clip, bare.Schedule = nil, nil
		return fmt.Sprintf("%+v %v %v", bare, *clip, *schedule)
	}
	for _, c := range []struct {
		got  *schema.Optimizer
		want schema.Optimizer
	}{
		{users.override(of), schema.Optimizer{Kind: "sgd", LR: 0.5, Momentum: 0.9, WeightDecay: 0.01, Nesterov: true}},
		{items.override(of), schema.Optimizer{Kind: "ftrl", LR: 0.1, L1: 1, L2: 2}},
		{mu.override(of), schema.Optimizer{Kind: "adamw", LR: 0.1, WeightDecay: 0.01, Beta1: 0.8, Beta2: 0.9, Eps: 1e-6}},
	} {
		c.want.Clip, c.want.Schedule = &schema.Clipping{Kind: "value", Max: 3}, &schema.Schedule{Kind: "linear", Total: 10}
		if a, b := text(c.got), text(&c.want); a != b {
			t.Errorf("optimizer %s\nwant %s", a, b)
		}
	}
	if !users.spec.PerRow || items.spec.PerRow {
		t.Error("PerRow is not where it was asked for")
	}
}

func encoded(t *testing.T, job *schema.Job) string {
	t.Helper()
	b, err := job.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
