package trainer

import (
	"fmt"
	"testing"
	"time"

	"gradbus/lane"
	"gradbus/schema"
)

// layers is a workload of two parameters and a replicated table. In the middle of its backward pass it waits until the
// gradient of the last parameter has come back from wherever it is added up.
type layers struct {
	session *Session
}

func layersJob(name, dense, table string) *schema.Job {
	job := toyJob(name, 2, 2, schema.ApplyMean)
	job.Reduce, job.FirstBucketBytes = dense, 4096
	init := schema.Init{Kind: schema.InitZeros}
	job.Parameters = []schema.Parameter{{Name: "first", Shape: []int{3000}, Init: init},
		{Name: "second", Shape: []int{1024}, Init: init}}
	job.Tables = []schema.TableSpec{{Name: "t", Rows: 4, Dim: 2, Partitions: 4, Replicated: true, Reduce: table,
		Init: init}}
	return job
}

func (l *layers) Keys(schema.Batch, lane.Lane, [][]uint64) (int, [][]uint64) {
	return 1, [][]uint64{{0, 1, 2, 3}}
}

func (l *layers) Lane(step *LaneStep) (float64, error) {
	before := l.session.Stats().Results
	clear(step.Grad("second"))
	step.Done("second")
	for deadline := time.Now().Add(testTimeout / 2); l.session.Stats().Results == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("batch %d: the gradient of the last layer has not come back while the pass goes on", step.Batch)
		}
	}
	clear(step.Grad("first"))
	step.RowGrad(0, []int64{0, 1, 2, 3}, make([]float32, 8))
	return 0, nil
}

// On every way gradients leave while the backward pass runs and results come in meanwhile, and the report says when.
func TestGradientsTravelWhileThePassRuns(t *testing.T) {
	server := startServer(t, 1)
	for i, way := range [][2]string{{schema.ReduceShards, ""}, {schema.ReduceTrainers, ""},
		{schema.ReduceTrainers, schema.ReduceShards}} {
		c := testConfig(t, server)
		c.Timeline = true
		sessions := joinAll(t, c, layersJob(fmt.Sprintf("overlap-%d", i), way[0], way[1]))
		errs := make(chan error, len(sessions))
		for _, s := range sessions {
			go func() {
				began := time.Now()
				errs <- s.Run(testContext(t), &layers{session: s}, 3, func(p Progress) {
					checkTimes(t, s, way, p, began)
					began = time.Now()
				})
			}()
		}
		for range sessions {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range sessions {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// checkTimes checks what a report says of the two dense buckets and the rows.
func checkTimes(t *testing.T, s *Session, way [2]string, p Progress, began time.Time) {
	owners, rows := 1, s.place.Plan.Tables[0].Reducer // that have a sparse round
	if rows == schema.ByTrainers {
		owners = 2
	}
	if len(p.Buckets) != 2+owners {
		t.Errorf("%v batch %d: %d buckets, want %d", way, p.Batch, len(p.Buckets), 2+owners)
		return
	}
	for i, b := range p.Buckets {
		want := BucketTimes{Bucket: b.Bucket, Sparse: i >= 2, Reduce: s.place.Plan.Reducer}
		if want.Sparse {
			want.Reduce = rows
		}
		all := int64(4096 * (1 + 2*i)) // of the dense ones, about
		if b.Sparse != want.Sparse || b.Reduce != want.Reduce || i < 2 && int(b.Bucket) != i || b.Begun.Before(began) ||
			b.Sent.Before(b.Begun) ||
			b.Complete.Before(b.Begun) || b.Complete.After(time.Now()) || !b.Sparse && b.Reduce == schema.ByShards &&
			(b.Bytes < all-400 || b.Bytes > all+2000) {
			t.Errorf("%v batch %d: %+v", way, p.Batch, b)
		}
	}
	if first, second := p.Buckets[0], p.Buckets[1]; second.Begun.Before(first.Complete) && s.place.Trainers == 0 {
		t.Errorf("%v batch %d: the second bucket leaves at %v, before what the pass has waited for at %v", way, p.Batch,
			second.Begun, first.Complete)
	}
}
