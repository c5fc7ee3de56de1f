package trainer

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/internal/client"
	"gradbus/schema"
)

// scaled runs a job whose trainers all ask for a change of the learning rates before batch begin, and gives the
// weights' digest.
func scaled(t *testing.T, config Config, job *schema.Job, batches uint64, begin, from schema.Batch,
	scale float32) [32]byte {
	t.Helper()
	digests, all := make([][32]byte, job.Trainers), sync.WaitGroup{}
	for i := range digests {
		c := config
		c.Member = schema.TrainerMember(i)
		all.Go(func() {
			s, err := Join(testContext(t), c, job)
			if err != nil {
				t.Error(err)
				return
			}
			err = s.Run(testContext(t), newToy(t, job), uint64(begin), nil)
			if err == nil {
				var at schema.Batch
				if at, err = s.ScaleLR(testContext(t), from, scale); err == nil && at != from {
					t.Errorf("%s: the change is from batch %d on, want %d", s.Member(), at, from)
				}
			}
			if err == nil {
				err = s.Run(testContext(t), newToy(t, job), batches-uint64(begin), nil)
			}
			if err == nil {
				digests[i], err = s.Digest(testContext(t))
			}
			if err = errors.Join(err, s.Abort(err)); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	all.Wait()
	for i, d := range digests {
		if d != digests[0] {
			t.Errorf("trainer %d: weights %x, trainer 0 has %x", i, d[:6], digests[0][:6])
		}
	}
	return digests[0]
}

// A change takes effect with its batch, for every owner: the bits depend on neither trainers nor shards nor when it was
// asked for.
func TestScaleLRSameBits(t *testing.T) {
	const batches, from = 7, 4
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		job := func(trainers int) *schema.Job {
			j := toyJob("scaled", trainers, 4, apply)
			j.Tables[1].Replicated = apply == schema.ApplyMean
			return j
		}
		one := testConfig(t, startServer(t, 1))
		never, want := trainAll(t, one, job(1), batches)[0].digest, scaled(t, one, job(1), batches, 2, from, 0.5)
		if want == never {
			t.Errorf("%s: the change changes nothing", apply)
		}
		if later := scaled(t, one, job(1), batches, 2, from+1, 0.5); later == want {
			t.Errorf("%s: the change begins with the same batch whichever is named", apply)
		}
		if at := scaled(t, one, job(1), batches, from, from, 0.5); at != want {
			t.Errorf("%s: asked for right before batch %d: weights %x, want %x", apply, from, at[:6], want[:6])
		}
		for _, n := range [][2]int{{2, 1}, {2, 3}, {4, 2}} {
			if got := scaled(t, testConfig(t, startServer(t, n[1])), job(n[0]), batches, 2, from, 0.5); got != want {
				t.Errorf("%s, %d trainers, %d shards: weights %x, want %x", apply, n[0], n[1], got[:6], want[:6])
			}
		}
	}
}

// Somebody who is no trainer changes the rates while a job runs: it goes on with the bits of a job that had been told
// the batch before.
func TestScaleLRWhileRunning(t *testing.T) {
	const batches, ask, block = 400, 20, 120
	config := testConfig(t, startServer(t, 2))
	job := toyJob("running", 2, 2, schema.ApplyUpdate)
	var from atomic.Uint64
	answered := make(chan struct{})
	out, all := make([]outcome, 2), sync.WaitGroup{}
	for i := range out {
		c := config
		c.Member = schema.TrainerMember(i)
		all.Go(func() {
			s, err := Join(testContext(t), c, job)
			if err != nil {
				t.Error(err)
				return
			}
			err = s.Run(testContext(t), newToy(t, job), batches, func(p Progress) {
				if i == 0 && p.Batch == ask {
					go func() {
						defer close(answered)
						at, err := operatorOf(config).ScaleLR(testContext(t), job.Name, 0, 0.25, false)
						if err != nil {
							t.Error(err)
						}
						from.Store(uint64(at))
					}()
				}
				if i == 0 && p.Batch == block { // not to be over before there is an answer
					<-answered
				}
			})
			if err == nil {
				out[i].digest, err = s.Digest(testContext(t))
			}
			if err = errors.Join(err, s.Abort(err)); err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	all.Wait()
	at := schema.Batch(from.Load())
	if at <= ask || at >= batches {
		t.Fatalf("the change is from batch %d on: asked for after batch %d of %d", at, ask, batches)
	}
	if want := scaled(t, config, job, batches, 0, at, 0.25); out[0].digest != want || out[1].digest != want {
		t.Errorf("from batch %d on: weights %x and %x, want %x", at, out[0].digest[:6], out[1].digest[:6], want[:6])
	}
}

// A decision whose word is lost comes with the next proposal: the batches between the two are begun with it.
func TestProposalBringsDecision(t *testing.T) {
	first, second := schema.LRChange{From: 10, Scale: 0.5}, schema.LRChange{From: 14, Scale: 0.25}
	l := newLearningRates(nil, nil)
	if _, answer := l.take(&schema.LR{Serial: 1, Changes: []schema.LRChange{first}}); !answer {
		t.Fatal("no answer to a proposal")
	}
	if _, held := l.begin(10); held == nil {
		t.Fatal("batch 10 begins though a change from it on is proposed")
	}
	l.take(&schema.LR{Serial: 2, Changes: []schema.LRChange{first, second}})
	if _, held := l.begin(10); held != nil {
		t.Fatal("batch 10 is held up by a proposal for batch 14")
	}
	if got := schema.LRScale(l.decided, 10); got != first.Scale {
		t.Errorf("batch 10 is begun at %v times the rate, want %v", got, first.Scale)
	}
	replaced := schema.LRChange{From: 10, Scale: 0.125}
	l.take(&schema.LR{Serial: 3, Changes: []schema.LRChange{replaced}})
	if got := schema.LRScale(l.decided, 10); got != first.Scale {
		t.Errorf("batch 10, which has begun, is at %v times the rate because of what is only proposed; want %v", got,
			first.Scale)
	}
}

// What cannot be done is refused with the reason, and the job goes on.
func TestScaleLRRefused(t *testing.T) {
	config := testConfig(t, startServer(t, 1))
	if _, err := operatorOf(config).ScaleLR(testContext(t), "nobody", 0, 0.5, false); !errors.Is(err, client.ErrRefused) {
		t.Errorf("a job that is not there: %v, want a refusal", err)
	}
	async := toyJob("async", 1, 1, schema.ApplyUpdate)
	async.Consistency = schema.ConsistencyAsync
	for _, c := range []struct {
		job   *schema.Job
		from  schema.Batch
		scale float32
	}{{async, 0, 0.5}, {toyJob("begun", 1, 1, schema.ApplyUpdate), 1, 0.5}} {
		s, err := Join(testContext(t), config, c.job)
		if err == nil {
			err = s.Run(testContext(t), newToy(t, c.job), 3, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.ScaleLR(testContext(t), c.from, c.scale); !errors.Is(err, &Refused{}) {
			t.Errorf("%s from batch %d: %v, want a refusal", c.job.Name, c.from, err)
		}
		if err := s.Run(testContext(t), newToy(t, c.job), 2, nil); err != nil {
			t.Errorf("%s: does not go on: %v", c.job.Name, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, scale := range []float64{-1, math.NaN(), math.Inf(1)} {
		if _, err := operatorOf(config).ScaleLR(testContext(t), "nobody", 0, float32(scale), false); err == nil ||
			!strings.Contains(err.Error(), "want a finite number") {
			t.Errorf("scale %v: %v", scale, err)
		}
	}
	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := operatorOf(config).ScaleLR(ended, "nobody", 0, 0.5, false); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context has ended: %v", err)
	}
}

// A scale that is rather a slip is refused with the one that holds, unless it is forced; the program's own is taken.
func TestScaleLRForced(t *testing.T) {
	config, job := testConfig(t, startServer(t, 1)), toyJob("forced", 1, 1, schema.ApplyUpdate)
	s := joinAll(t, config, job)[0]
	_, err := operatorOf(config).ScaleLR(testContext(t), job.Name, 0, 1e-7, false)
	checkError(t, err, client.ErrRefused, "would be 1e-07 times the manifest's, and are 1 times these now", "--force")
	asked := make(chan error, 1)
	go func() {
		_, err := operatorOf(config).ScaleLR(testContext(t), job.Name, 0, 1e-7, true)
		asked <- err
	}()
	for deadline := time.Now().Add(time.Minute); s.LRScale() != 1e-7; {
		if err := s.Run(testContext(t), newToy(t, job), 8, nil); err != nil || time.Now().After(deadline) {
			t.Fatalf("scale %v: %v", s.LRScale(), err)
		}
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
	if _, err := s.ScaleLR(testContext(t), 0, 1e-9); err != nil || s.LRScale() != 1e-9 {
		t.Errorf("scale %v of the program's own: %v", s.LRScale(), err)
	}
	leaveAll(t, []*Session{s})
}
