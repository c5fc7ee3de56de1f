package ps

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// train has a trainer do batches until the test ends or the result is called, a few hundred in the second after which a
// ps reports. Each is told of by a heartbeat.
func (m *miniTrainer) train() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	at := fabric.At(string(m.p.Job.Name), string(m.joined.Member), fabric.KindHeartbeat, "all").String()
	var training sync.WaitGroup
	training.Go(func() {
		for n := schema.Batch(0); ctx.Err() == nil; n++ {
			time.Sleep(5 * time.Millisecond)
			head := schema.Head{Job: m.joined.RunID, Generation: 1, Batch: n}
			must(m.t, m.conn.Publish(at, encodeHeartbeat(m.t, head, nil)))
			m.batch(n)
		}
	})
	stop = func() { cancel(); training.Wait() }
	m.t.Cleanup(stop)
	return stop
}

// What is told of checkpoints while they are written, while they cannot be, once they can be again, and after the end
// of the job.
func TestDurabilityIsTold(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, link, file := filepath.Join(base, "real"), filepath.Join(base, "link"), filepath.Join(base, "file")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(file, nil, 0o644))
	must(t, os.Symlink(dir, link))
	to := func(what string) { // of one moment to the next
		must(t, os.Symlink(what, link+"-new"))
		must(t, os.Rename(link+"-new", link))
	}
	s, l := startWatched(t, Config{Shards: 2, Checkpoints: checkpoint.Policy{Dir: link, Batches: 1, Keep: 2}})
	m := gather(t, s, shardtest.New(t, shardtest.SmallJob("kept", 1, 2)), "j-a")[0]
	stop := m.train()
	told := func(what string, ok func(j *schema.JobReport, d *schema.DurabilityReport) bool) schema.DurabilityReport {
		t.Helper()
		p := l.own(s, what, func(p *schema.ServerReport) bool {
			return len(p.Jobs) == 1 && ok(&p.Jobs[0], p.Jobs[0].Durability)
		})
		return *p.Jobs[0].Durability
	}
	first := told("a durable version", func(_ *schema.JobReport, d *schema.DurabilityReport) bool { return d.Version > 0 })
	if first.Off != "" || first.EveryBatches != 1 || first.EveryMS != 0 || first.Bytes == 0 || first.TookSeconds <= 0 ||
		first.DurableMS == 0 || first.Failures != 0 || first.Failure != "" {
		t.Errorf("%+v", first)
	}
	to(file)
	failed := told("a failure", func(_ *schema.JobReport, d *schema.DurabilityReport) bool { return d.Failure != "" })
	if failed.Failures == 0 || failed.Version < first.Version || !strings.Contains(failed.Failure, "not a directory") ||
		!strings.Contains(failed.Failure, link) {
		t.Errorf("%+v", failed)
	}
	told("trainers are past it", func(_ *schema.JobReport, d *schema.DurabilityReport) bool { return d.LateMS > 0 })
	to(dir)
	again := told("a version is durable again", func(_ *schema.JobReport, d *schema.DurabilityReport) bool {
		return d.Failure == "" && d.Version > failed.Version
	})
	if again.Failures < failed.Failures {
		t.Errorf("%+v after %+v", again, failed)
	}
	stop()
	m.leave("")
	told("what was durable at the end", func(j *schema.JobReport, d *schema.DurabilityReport) bool {
		return j.Phase == schema.PhaseEnded && d.Version >= again.Version && d.LateMS == 0
	})
}

// A job of which no version is written says why.
func TestNothingDurableIsTold(t *testing.T) {
	t.Parallel()
	exact := shardtest.SmallJob("alone", 1, 1)
	exact.Consistency, exact.Optimizer.Exact = schema.ConsistencyAsync, true
	for name, c := range map[string]struct {
		dir  string
		job  *schema.Job
		want string
	}{
		"no folder": {"", shardtest.SmallJob("alone", 1, 1), "--checkpoint-dir"},
		"exact":     {t.TempDir(), exact, "want consistency sync"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := startWatched(t, Config{Shards: 1, Checkpoints: checkpoint.Policy{Dir: c.dir}})
			newMiniTrainer(t, s, shardtest.New(t, c.job), "j-a").join()
			l.own(s, "a job", func(p *schema.ServerReport) bool {
				return len(p.Jobs) == 1 && strings.Contains(p.Jobs[0].Durability.Off, c.want)
			})
		})
	}
}

// A job that restarts from checkpoints alone says when it starts that it has no replica, and no folder.
func TestJobsThatRestartSayWhatTheyLack(t *testing.T) {
	t.Parallel()
	log := &testkit.Text{}
	s, err := Start(context.Background(), Config{Shards: 1, Replicas: 1, NATS: startControl(t, fabric.ServerConfig{}).URL()},
		Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	must(t, err)
	t.Cleanup(s.Close)
	job := shardtest.SmallJob("alone", 1, 1)
	job.Apply, job.Policy = schema.ApplyMean, schema.PolicyRecover
	newMiniTrainer(t, s, shardtest.New(t, job), "j-a").join()
	for _, want := range []string{"no replica of the job is kept", "own dense parameters",
		"no checkpoint folder: a lost trainer or ps ends the job"} {
		if said := strings.Count(log.String(), want); said != 1 {
			t.Errorf("%q is said %d times", want, said)
		}
	}
}
