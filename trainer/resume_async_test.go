package trainer

import (
	"sync"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// counts is a workload of which every round takes countedBy from every value, so that values tell how many there were.
type counts struct{ dense bool } // there is no table

const (
	countedBy   = 1.0 / 1024
	countedRows = 40
)

func (counts) Keys(_ schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) {
	for key := range uint64(countedRows) {
		for t := range keys {
			keys[t] = append(keys[t], key)
		}
	}
	return 1, keys
}

func (c counts) Lane(step *LaneStep) (float64, error) {
	rows := make([]float32, countedRows*3)
	for _, values := range [][]float32{rows, step.Grad("w")} {
		for i := range values {
			values[i] = 1
		}
	}
	if !c.dense {
		step.BagGrad(0, 0, nil, rows)
	}
	return 1, nil
}

func countsJob(trainers int) *schema.Job {
	job := &schema.Job{Name: "counts", Trainers: trainers, Lanes: 4, ChunkBytes: schema.ChunkBytesMin,
		Consistency: schema.ConsistencyAsync, Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: countedBy},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{5000}, Init: schema.Zeros()}},
		Tables:     []schema.TableSpec{{Name: "t", Rows: countedRows, Dim: 3, Init: schema.Zeros()}}}
	return job.WithDefaults()
}

func groupedCounts(trainers int) *schema.Job {
	job := countsJob(trainers)
	job.Consistency, job.Group, job.Tables = schema.ConsistencyGrouped, 1, nil
	return job
}

// An async job goes on without a trainer that was lost before its ps was. Whoever comes later has the place. So does a
// job of groups, but for the place.
func TestAsyncGoesOnWithout(t *testing.T) {
	testkit.Beside(t)
	t.Run("async", func(t *testing.T) {
		testkit.Waits(t, func(t *testing.T) { asyncGoesOnWithout(t, countsJob(3), counts{}, 4) })
	})
	for name, group := range map[string]int{"grouped": 1, "grouped of all": 3} {
		t.Run(name, func(t *testing.T) {
			testkit.Waits(t, func(t *testing.T) {
				job := groupedCounts(3)
				job.Group = group
				asyncGoesOnWithout(t, job, counts{dense: true}, 3)
			})
		})
	}
}

func asyncGoesOnWithout(t *testing.T, job *schema.Job, work counts, trainers int) {
	const batches, dies = 500, 40
	kept := ps.Config{Shards: 2, Deadline: 3 * time.Second, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 5}}
	server := startServerWith(t, kept)
	config := testConfig(t, server)
	var all sync.WaitGroup
	lost, back := make(chan struct{}), make(chan struct{})
	began := make([][]schema.Version, trainers)
	for i := range began {
		all.Go(func() {
			if i == job.Trainers {
				<-back
			}
			err := trainOnce(t, config, job, func(s *Session) error {
				begins := func(v schema.Version) {
					if began[i] = append(began[i], v); i == 1 && len(began[i]) == 2 {
						close(back)
					}
				}
				return s.Run(testContext(t), work, batches-min(batches, uint64(s.Version())), eachRun(s, begins, func(p Progress) {
					time.Sleep(50 * time.Millisecond)
					if i == 0 && p.Batch+1 == dies {
						s.fail(errKilled)
					}
				}))
			})
			if err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
			if i == 0 {
				close(lost)
			}
		})
	}
	<-lost
	time.Sleep(8 * time.Second)
	server.Close()
	kept.Port = fabrictest.PortOf(t, server.URL())
	again := startServerWith(t, kept)
	all.Wait()
	if len(began[1]) != 2 || len(began[2]) != 2 || began[1][1] <= dies || trainers == 4 &&
		(len(began[3]) != 1 || began[3][0] != began[1][1]) {
		t.Errorf("trainers began with versions %v", began)
	}
	again.Close()
	kept.Port = 0
	from := testConfig(t, startServerWith(t, kept))
	from.Resume = true
	last := joinAll(t, from, job)
	values := last[0].Param("w")
	if !work.dense {
		rows, err := last[0].Lookup(testContext(t), []TableKeys{{0, []uint64{0, countedRows - 1}}})
		if err != nil {
			t.Fatal(err)
		}
		values = rows[0]
	}
	least := float32(2*last[0].Version()) + dies/2
	if job.Group > 1 {
		least = float32(last[0].Version()) // of all who were there
	}
	for i, v := range values {
		if n := -v / countedBy; n < least {
			t.Errorf("value %d tells of %v rounds, want %v", i, n, least)
		}
	}
}
