package trainer

import (
	"errors"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// What is asked for against the rules can be read and written, so that the lane comes to its end and the reason is
// told.
func TestScratchIsGivenForWhatIsNotThere(t *testing.T) {
	server := startServer(t, 1)
	fill := func(values []float32, n int) {
		for i := range n {
			values[i]++
		}
	}
	for _, c := range []struct {
		name, want string
		lane       func(s *LaneStep) error
	}{
		{"grad", `parameter "typo": the job has`, func(s *LaneStep) error { fill(s.Grad("typo"), 1500); return nil }},
		{"final", `gradient of "bias" is asked for after Done`, func(s *LaneStep) error {
			fill(s.Grad("bias"), toyClasses)
			s.Done("bias")
			fill(s.Grad("bias"), toyClasses)
			return nil
		}},
		{"param", `parameter "typo"`, func(s *LaneStep) error { fill(s.Param("typo"), 1500); return nil }},
		{"rows", "table 2: the job has 2 tables", func(s *LaneStep) error {
			ids, rows := s.IDs(2), s.Rows(2)
			for i := range 3 {
				fill(rows[ids[i]*toyWordDim:], toyWordDim)
			}
			return nil
		}},
		{"bags", "table 0 has no bags", func(s *LaneStep) error { fill(s.Pooled(0), 3*toyWordDim); return nil }},
		{"both", `parameter "typo": the job has ["ballast" "bias" "shift" "weight"]; then 4 labels`, func(s *LaneStep) error {
			s.Param("typo")
			return errors.New("4 labels")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := joinAll(t, testConfig(t, server), toyJob("scratch-"+c.name, 1, 1, schema.ApplyUpdate))[0]
			err := s.Run(testContext(t), laneOnly{c.lane}, 1, nil)
			checkError(t, err, ErrWorkload, "batch 0 lane 0", c.want)
		})
	}
}

// laneOnly has three samples in each lane, with three words, and computes what a test wants.
type laneOnly struct{ lane func(*LaneStep) error }

func (laneOnly) Keys(_ schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) {
	keys[0] = append(keys[0], 1, 2, 3)
	return 3, keys
}

func (w laneOnly) Lane(step *LaneStep) (float64, error) { return 1, w.lane(step) }

// What a program gets wrong is told in words that say what would be right.
func TestWrongPrograms(t *testing.T) {
	server := startServer(t, 1)
	_, err := Join(testContext(t), testConfig(t, server), nil)
	checkError(t, err, ErrConfig, "the job is nil: want its manifest")
	for _, c := range []struct {
		name, want string
		keys       func([][]uint64) (int, [][]uint64)
	}{
		{"negative", "-1 samples: want how many the lane has, 0 for none", func(keys [][]uint64) (int, [][]uint64) {
			return -1, keys
		}},
		{"few tables", "keys of 1 tables: the job has 2", func(keys [][]uint64) (int, [][]uint64) { return 1, keys[:1] }},
	} {
		s := joinAll(t, testConfig(t, server),
			toyJob("wrong-"+strings.ReplaceAll(c.name, " ", "-"), 1, 1, schema.ApplyUpdate))[0]
		checkError(t, s.Run(testContext(t), nil, 1, nil), ErrWorkload, "nil")
		checkError(t, s.Run(testContext(t), keysOnly{c.keys}, 1, nil), ErrWorkload, "batch 0 lane 0", c.want)
	}
}

// A Run of which no batch has a sample is an error, for all trainers; that of one trainer, or of one batch, is none.
func TestRunWithoutSamples(t *testing.T) {
	server := startServer(t, 2)
	for _, c := range []struct {
		name        string
		trainers    int
		consistency string
		samples     func(schema.Batch, lane.Lane) int
		fails       bool
	}{
		{"none", 2, schema.ConsistencySync, func(schema.Batch, lane.Lane) int { return 0 }, true},
		{"none-ahead", 2, schema.ConsistencyBounded, func(schema.Batch, lane.Lane) int { return 0 }, true},
		{"none-alone", 1, schema.ConsistencyAsync, func(schema.Batch, lane.Lane) int { return 0 }, true},
		{"one-trainer", 2, schema.ConsistencySync, func(_ schema.Batch, l lane.Lane) int { return int(l) }, false},
		{"one-batch", 2, schema.ConsistencySync, func(b schema.Batch, _ lane.Lane) int { return int(b) & 1 }, false},
		{"one-of-many", 2, schema.ConsistencyAsync, func(_ schema.Batch, l lane.Lane) int { return int(l) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := toyJob(c.name, c.trainers, 2, schema.ApplyUpdate)
			job.Consistency = c.consistency
			if c.consistency == schema.ConsistencyBounded {
				job.Ahead = 1
			}
			for i, err := range runAll(testContext(t), joinAll(t, testConfig(t, server), job), samplesOnly(c.samples), 3) {
				if c.fails {
					kind := ErrWorkload
					if errors.Is(err, ErrJobFailed) { // another trainer was the first to say so
						kind = ErrJobFailed
					}
					checkError(t, err, kind, "no lane of any trainer had a sample", "(3)", "want Keys to return")
				} else if err != nil {
					t.Errorf("trainer %d: %v", i, err)
				}
			}
		})
	}
}

// samplesOnly is a workload of which only the numbers of samples matter.
type samplesOnly func(schema.Batch, lane.Lane) int

func (c samplesOnly) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	n := c(b, l)
	for i := range n {
		keys[0] = append(keys[0], uint64(i))
	}
	return n, keys
}

func (samplesOnly) Lane(*LaneStep) (float64, error) { return 1, nil }
