package trainer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// Rows that are looked up, in any order and with repetitions, are those that a scan of the table shows, and the
// oracle's.
func TestLookupAndTableAgree(t *testing.T) {
	server := startServer(t, 3)
	job := toyJob("rows", 1, 2, schema.ApplyUpdate)
	o, w := newOracle(t, job), newToy(t, job)
	s := joinAll(t, testConfig(t, server), job)[0]
	for b := range schema.Batch(3) {
		if err := s.Run(testContext(t), w, 1, nil); err != nil {
			t.Fatal(err)
		}
		o.step(t, w, b)
		if s.Version() != b+1 {
			t.Fatalf("version %d after batch %d", s.Version(), b)
		}
		keys := []uint64{96, 0, 5, 96, 1, 2, 3, 4}
		got, err := s.Lookup(testContext(t), []Query{{Table: 0, Keys: keys}, {Table: 1, Keys: nil}, {Table: 1, Keys: []uint64{30}}})
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			if !sameBits(got[0][i*toyWordDim:(i+1)*toyWordDim], o.tables[0].rows[key]) {
				t.Errorf("version %d: key %d at position %d is %v, want %v", b+1, key, i, got[0][i*toyWordDim:][:toyWordDim],
					o.tables[0].rows[key])
			}
		}
		if len(got[1]) != 0 || !sameBits(got[2], o.tables[1].rows[30]) {
			t.Errorf("version %d: tags %v and %v, want none and %v", b+1, got[1], got[2], o.tables[1].rows[30])
		}
		checkScan(t, s, o)
	}
	if got, want := s.Param("weight"), o.params[1]; !sameBits(got, want) {
		t.Errorf("weight is %v, want %v", got, want)
	}
	if s.Param("none") != nil {
		t.Error("a parameter that does not exist has values")
	}
}

func checkScan(t *testing.T, s *Session, o *oracle) {
	t.Helper()
	for table, spec := range s.Job().Tables {
		seen, partition, last := 0, schema.Partition(0), -1
		err := s.Table(testContext(t), schema.Table(table), func(p schema.Partition, keys []uint64, rows []float32) error {
			if p != partition {
				partition, last = p, -1
			}
			for i, key := range keys {
				if int(key) <= last || schema.PartitionOf(key, spec.Partitions) != p {
					return fmt.Errorf("key %d after %d in partition %d", key, last, p)
				}
				if !sameBits(rows[i*spec.Dim:(i+1)*spec.Dim], o.tables[table].rows[key]) {
					return fmt.Errorf("row %d is %v, want %v", key, rows[i*spec.Dim:(i+1)*spec.Dim], o.tables[table].rows[key])
				}
				last = int(key)
				seen++
			}
			return nil
		})
		if err != nil || seen != int(spec.Rows) {
			t.Errorf("scan of %q: %d of %d rows, %v", spec.Name, seen, spec.Rows, err)
		}
	}
}

func TestReadingErrorsLeaveTheSessionUsable(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("reading", 1, 1, schema.ApplyUpdate)
	s := joinAll(t, testConfig(t, server), job)[0]
	_, err := s.Lookup(testContext(t), []Query{{Table: 1, Keys: []uint64{toyTags}}})
	if err == nil || !strings.Contains(err.Error(), `table "tags": id 31 is outside [0, 31)`) {
		t.Errorf("lookup beyond the table: %v", err)
	}
	if _, err = s.Lookup(testContext(t), []Query{{Table: 7, Keys: nil}}); err == nil ||
		!strings.Contains(err.Error(), "table 7: the job has 2") {
		t.Errorf("lookup in no table: %v", err)
	}
	stop := errors.New("seen enough")
	if err := s.Table(testContext(t), 0, func(schema.Partition, []uint64, []float32) error { return stop }); !errors.Is(
		err, stop) {
		t.Errorf("scan that its caller ends: %v", err)
	}
	ctx, cancel := context.WithCancelCause(testContext(t))
	cancel(stop)
	if _, err := s.Digest(ctx); !errors.Is(err, stop) {
		t.Errorf("digest without time: %v", err)
	}
	if _, err := s.Digest(testContext(t)); err != nil {
		t.Error(err)
	}
	if err := s.Run(testContext(t), newToy(t, job), 2, nil); err != nil {
		t.Error(err)
	}
}

// plain is a workload whose gradients are simple functions of what it sees, for jobs of any shape.
type plain struct{ job *schema.Job }

func (p plain) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	for table, spec := range p.job.Tables {
		for key := uint64(l) % spec.Rows; key < spec.Rows; key += 1 + uint64(b) {
			keys[table] = append(keys[table], key)
		}
	}
	return 1 + int(l), keys
}

func (p plain) Lane(step *LaneStep) (float64, error) {
	for i := len(p.job.Parameters) - 1; i >= 0; i-- {
		name := p.job.Parameters[i].Name
		value, grad := step.Param(name), step.Grad(name)
		for j := range grad {
			grad[j] = float32(value[j]*0.25) + float32(j%7) - float32(step.Lane)
		}
		step.Done(name)
	}
	for table := range p.job.Tables {
		ids := step.IDs(schema.Table(table)) // ascending and distinct here
		dim, rows := p.job.Tables[table].Dim, step.Rows(schema.Table(table))
		grad := make([]float32, len(ids)*dim)
		for i, id := range ids {
			for j := range dim {
				grad[i*dim+j] = float32(rows[int(id)*dim+j]*0.5) + float32(step.Lane+1)
			}
		}
		step.RowGrad(schema.Table(table), ids, grad)
	}
	return 1, nil
}

// Jobs without tables, without parameters, and with more of both than a window holds, against the oracle.
func TestJobsOfAllShapes(t *testing.T) {
	zeros, small := schema.Init{Kind: schema.InitZeros}, schema.Init{Kind: schema.InitUniform, Scale: 0.5}
	for _, c := range []struct {
		name       string
		shards     int
		parameters []schema.Parameter
		tables     []schema.TableSpec
	}{
		{"dense-only", 2, []schema.Parameter{{Name: "w", Shape: []int{3}, Init: small}}, nil},
		{"tables-only", 2, nil, []schema.TableSpec{{Name: "t", Rows: 9, Dim: 2, Partitions: 2, Init: small}}},
		// and shards without any
		{"one-row", 3, nil, []schema.TableSpec{{Name: "t", Rows: 1, Dim: 2, Partitions: 4, Init: small}}},
		{"large", 1, []schema.Parameter{{Name: "w", Shape: []int{175, 1024}, Init: zeros},
			{Name: "v", Shape: []int{125, 1024}, Init: zeros}},
			[]schema.TableSpec{{Name: "t", Rows: 1250, Dim: 256, Partitions: 7, Init: zeros}}},
	} {
		jobOf := func(trainers int, apply string) *schema.Job {
			job := toyJob(c.name, trainers, 3, apply)
			job.Parameters, job.Tables, job.ChunkBytes = c.parameters, c.tables, schema.ChunkBytes
			return job
		}
		o := newOracle(t, jobOf(1, schema.ApplyUpdate))
		for b := range schema.Batch(2) {
			o.step(t, plain{o.job}, b)
		}
		want := o.digest(t)
		server := startServer(t, c.shards)
		for _, trainers := range []int{1, 2} {
			for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
				if testing.Short() && c.name == "large" && (trainers == 1) == (apply == schema.ApplyMean) {
					continue // each once, without all pairs
				}
				t.Run(fmt.Sprintf("%s/%d/%s", c.name, trainers, apply), func(t *testing.T) {
					job := jobOf(trainers, apply)
					config := testConfig(t, server)
					config.WindowBytes = 1 << 20
					sessions := joinAll(t, config, job)
					for _, err := range runAll(testContext(t), sessions, plain{job}, 2) {
						if err != nil {
							t.Fatal(err)
						}
					}
					if got, err := sessions[0].Digest(testContext(t)); err != nil || got != want {
						t.Errorf("weights %x, want %x: %v", got[:6], want[:6], err)
					}
				})
			}
		}
	}
}
