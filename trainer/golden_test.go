package trainer

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"gradbus/schema"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/digests.txt anew; a change of it is a change of bits")

// digestsFile has a line for each mode: its name, the digest of the weights in the middle of the run, and that at its
// end. What optimizers keep beside weights shows in the second: it is of steps that begin with what the first steps
// left.
const digestsFile = "testdata/digests.txt"

// mode is one legal combination of what a manifest says about rounds, routes, wire and tables.
type mode struct {
	rounds, apply, reduce string
	wire                  schema.Wire
	tables                string // see tableForms
	alone                 bool   // table_consistency async
	momentum              float32
	optimizer             string // another than SGD; "" for SGD
	trainers              int
}

// tableForms are the forms in which the tables of the toy lie: placements of both tables, whether trainers keep both,
// and who adds up the second.
var tableForms = map[string]struct {
	placement  [2]string
	replicated bool
	other      bool // the second goes the way that the job's gradients do not go
}{
	"none": {}, "by-rows": {}, "by-columns": {placement: [2]string{schema.PlacementColumns, schema.PlacementColumns}},
	"whole":      {placement: [2]string{schema.PlacementTables, schema.PlacementTables}},
	"mixed":      {placement: [2]string{schema.PlacementColumns, ""}},
	"replicated": {replicated: true}, "replicated-both-ways": {replicated: true, other: true},
}

func (m mode) String() string {
	words := []string{m.rounds, m.apply, m.reduce, m.wire.Gradients, m.tables}
	for _, w := range []struct {
		is   bool
		word string
	}{{m.optimizer != "", m.optimizer}, {m.wire.ErrorFeedback, "feedback"}, {m.alone, "tables-async"},
		{m.momentum == 0 && m.optimizer == "", "no-momentum"}, {m.trainers > 1, fmt.Sprint(m.trainers, "-trainers")}} {
		if w.is {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}

// job is a small job of the mode, with a parameter larger than a chunk.
func (m mode) job(name string) *schema.Job {
	job := bagJob(name, "", m.trainers, 5)
	job.Consistency, job.Apply, job.Reduce, job.Wire = m.rounds, m.apply, m.reduce, m.wire
	job.Optimizer.Momentum, job.Optimizer.Nesterov = m.momentum, m.momentum != 0
	if m.optimizer != "" {
		job.Optimizer = schema.Optimizer{Kind: m.optimizer, LR: 0.05}
	}
	job.Parameters = append(job.Parameters, schema.Parameter{Name: "ballast", Shape: []int{1500}, Init: schema.Uniform(1)})
	switch m.rounds {
	case schema.ConsistencyBounded:
		job.Ahead = 2
	case schema.ConsistencyGrouped:
		job.Group = m.trainers
	}
	if m.alone {
		job.TableConsistency = schema.ConsistencyAsync
	}
	form := tableForms[m.tables]
	for i := range job.Tables {
		job.Tables[i].Placement, job.Tables[i].Replicated = form.placement[i], form.replicated
	}
	if form.other {
		job.Tables[1].Reduce = map[string]string{schema.ReduceShards: schema.ReduceTrainers,
			schema.ReduceTrainers: schema.ReduceShards}[m.reduce]
	}
	if m.tables == "none" {
		job.Tables = nil
	}
	return job
}

// modes are all legal combinations of rounds, routes and tables, each with both optimizers, and the wires that it may
// have. Bits of some modes depend on who is first: these have one trainer.
func modes() (all []mode) {
	add := func(m mode) {
		if m.job("check").Validate() == nil {
			all = append(all, m)
		}
	}
	forms := []string{"none", "by-rows", "by-columns", "whole", "mixed", "replicated", "replicated-both-ways"}
	for _, rounds := range []string{schema.ConsistencySync, schema.ConsistencyBounded, schema.ConsistencyAsync,
		schema.ConsistencyGrouped} {
		for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
			for _, reduce := range []string{schema.ReduceShards, schema.ReduceTrainers} {
				for _, tables := range forms {
					for _, alone := range []bool{false, true} {
						m := mode{rounds: rounds, apply: apply, reduce: reduce, tables: tables, alone: alone, momentum: 0.9, trainers: 1}
						m.wire = schema.Wire{Gradients: schema.GradientsFloat32}
						add(m)
						m.momentum = 0
						add(m)
						if tables == "by-rows" || tables == "replicated" {
							for _, m.optimizer = range optimizers {
								add(m)
							}
						}
						m.momentum, m.optimizer = 0.9, ""
						for _, m.wire = range narrowWires {
							add(m)
						}
						if m.trainers = 2; rounds == schema.ConsistencySync && !alone {
							add(m) // with the last wire: 16 bits, fed back
						}
					}
				}
			}
		}
	}
	return all
}

// optimizers are those beside SGD.
var optimizers = []string{schema.OptimizerAdagrad, schema.OptimizerRowwiseAdagrad, schema.OptimizerAdam,
	schema.OptimizerAdamW, schema.OptimizerFTRL}

// narrowWires are those beside the plain one.
var narrowWires = []schema.Wire{{Gradients: schema.GradientsBFloat16}, {Gradients: schema.GradientsFloat16},
	{Gradients: schema.GradientsBFloat16, ErrorFeedback: true}}

// goldenToy is the toy over bags, with a parameter of two chunks, and with gradients given as rows in one batch of
// three where the second table has rows here. Its arithmetic is its own, in Go.
type goldenToy struct{ *bagToy }

func (m goldenToy) Lane(step *LaneStep) (float64, error) {
	all := m.samples(step.Batch, step.Lane)
	n := bagNet{weight: step.Param("weight"), bias: step.Param("bias"), gradWeight: step.Grad("weight"),
		gradBias:  step.Grad("bias"),
		gradWords: make([]float32, len(all)*toyWordDim), gradTags: make([]float32, len(all)*toyTagDim)}
	loss := n.run(all, step.Pooled(0), step.Pooled(1))
	for i, g := 0, step.Grad("ballast"); i < len(g); i++ {
		g[i] = float32(step.Param("ballast")[i]*float32(loss)) / 64
	}
	step.Done("ballast")
	step.PooledGrad(0, n.gradWords)
	if step.Batch%3 != 1 || m.job.Tables[1].Placement != "" {
		step.PooledGrad(1, n.gradTags)
		return loss, nil
	}
	byKey, ids, rows := naiveRows(n.gradTags, toyTagDim, true, all, tagsOf), slices.Clone(step.IDs(1)), []float32(nil)
	key := map[int64]uint64{}
	for i, k := range slices.Concat(mapped(all, tagsOf)...) {
		key[ids[i]] = k
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	for _, id := range ids {
		rows = append(rows, byKey[key[id]]...)
	}
	step.RowGrad(1, ids, rows)
	return loss, nil
}

func mapped[A, B any](all []A, f func(A) B) (out []B) {
	for _, a := range all {
		out = append(out, f(a))
	}
	return out
}

// digests runs a job, and gives the digests of its weights after 4 batches and after 6. Where bits depend on how far a
// trainer is ahead, each batch is complete before the next begins, but for the fourth of the toy, in which no lane has
// a sample.
func digests(t *testing.T, config Config, job *schema.Job) (text string) {
	runs, w := []uint64{4, 2}, Workload(goldenToy{&bagToy{toy: newToy(t, job)}})
	inStep := job.Plan().Sync()
	if !inStep {
		runs = []uint64{1, 1, 2, 1, 1}
	}
	if len(job.Tables) == 0 {
		w = &pull{job: job}
		if !inStep {
			runs = []uint64{1, 1, 1, 1, 1, 1} // every batch has samples
		}
	}
	sessions := joinAll(t, config, job)
	done := uint64(0)
	for _, n := range runs {
		for _, err := range runAll(testContext(t), sessions, w, n) {
			if err != nil {
				t.Fatal(err)
			}
		}
		if done += n; done == 4 || done == 6 {
			text += fmt.Sprintf(" %x", sameDigest(t, sessions))
		}
	}
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return text
}

// sameDigest is the digest of the weights, the same of every trainer.
func sameDigest(t *testing.T, sessions []*Session) []byte {
	t.Helper()
	var sums [][32]byte
	for _, s := range sessions {
		sum, err := s.Digest(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, sum)
	}
	if len(slices.Compact(sums)) != 1 {
		t.Errorf("trainers see weights %x", sums)
	}
	return sums[0][:12]
}

// No bit changes by accident: every legal combination of modes gives the weights that it gave when its line was
// written. When contributions are added up, as they come or when a round closes, changes none of them.
func TestDigestsOfAllModes(t *testing.T) {
	server := startServer(t, 2)
	config, all := testConfig(t, server), modes()
	lines := make([]string, len(all)+1)
	var running sync.WaitGroup
	for worker := range 2 {
		running.Go(func() {
			for i := worker; i < len(all); i += 2 {
				m, job := all[i], all[i].job(fmt.Sprint("mode-", i))
				if job.Sum = schema.SumClose; i%2 == 0 || job.Validate() != nil {
					job.Sum = ""
				}
				lines[i] = m.String() + ":" + digests(t, config, job)
			}
		})
	}
	running.Wait()
	lines[len(all)] = "hosted:" + hostedDigest(t, config)
	checkGolden(t, lines)
}

// hostedDigest is that of a hosted module's parameters after every step of one trainer.
func hostedDigest(t *testing.T, config Config) string {
	sessions := joinAll(t, config, moduleJob("mode-hosted", 1, schema.ConsistencySync))
	if _, err := drive(testContext(t), sessions[0], 6, nil); err != nil {
		t.Fatal(err)
	}
	m, err := sessions[0].Module("net")
	if err != nil {
		t.Fatal(err)
	}
	weights, version, err := m.Weights(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	sum := uint32(0)
	for _, w := range weights {
		sum = schema.AddReplica(sum, w.Values)
	}
	return fmt.Sprintf(" %08x of version %d", sum, version)
}

func checkGolden(t *testing.T, lines []string) {
	t.Helper()
	text := strings.Join(lines, "\n") + "\n"
	if *rewrite {
		if err := os.WriteFile(digestsFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(digestsFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(have), "\n"), "\n")
	if len(want) != len(lines) {
		t.Fatalf("%d modes, and %s has %d lines", len(lines), digestsFile, len(want))
	}
	for i := range lines {
		if lines[i] != want[i] {
			t.Errorf("line %d: have\n\t%s\nwant\n\t%s", i+1, lines[i], want[i])
		}
	}
}
