package ps

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// keysOf is how many jobs are written down at a ps.
func keysOf(t testing.TB, s *Server) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	jobs, err := s.control.LookBucket(ctx, schema.JobsBucket)
	must(t, err)
	all, err := jobs.All(ctx)
	must(t, err)
	return len(all)
}

// Joins of jobs that cannot be leave nothing: each is refused, no key is left, and the log tells of a few in a second.
func TestRefusedJoinsLeaveNothing(t *testing.T) {
	const names = 300
	for what, spoil := range map[string]func(*schema.Job){
		"invalid":   func(j *schema.Job) { j.Optimizer.LR = -1 },
		"too large": func(j *schema.Job) { j.Tables[0].Rows = 1 << 28 },
	} {
		t.Run(what, func(t *testing.T) {
			log := &testkit.Text{}
			s, err := Start(context.Background(), Config{MemoryBytesMax: 1 << 30, Deadline: unhurried},
				Options{Log: slog.New(slog.NewTextHandler(log, nil))})
			must(t, err)
			t.Cleanup(s.Close)
			conn, err := fabric.DialControl(t.Context(), fabric.Config{URL: s.URL(), Name: "stranger"})
			must(t, err)
			t.Cleanup(conn.Close)
			refused := make([]atomic.Bool, names)
			must(t, conn.Subscribe(fabric.Pattern(fabric.Any, string(schema.Coordinator), fabric.KindCtl, "j-x", false),
				func(m fabric.Message) {
					at, err := m.Parse()
					v, broken := schema.Verify(m.Data, schema.Limits{})
					if err != nil || broken != nil {
						t.Error(err, broken)
						return
					}
					i := 0
					_, err = fmt.Sscanf(at.Job, "job-%d", &i)
					if c, broken := schema.DecodeControl(&v); err == nil && broken == nil && c.Refused != nil &&
						c.Refused.Reason == "invalid_job" {
						refused[i].Store(true)
					}
				}))
			began := time.Now()
			// some at a time, and who has no answer asks again each second, as trainers do
			for from := 0; from < names; from += 50 {
				var asked time.Time
				eventually(t, "all are refused", func() bool {
					again, left := time.Since(asked) > time.Second, 0
					for i := from; i < from+50; i++ {
						if refused[i].Load() {
							continue
						}
						if left++; !again {
							continue
						}
						job := shardtest.SmallJob(fmt.Sprint("job-", i), 1, 1)
						spoil(job)
						frame, err := schema.EncodeControl(schema.Head{}, schema.Control{Join: &schema.Join{Job: job, Host: "there"}})
						must(t, err)
						must(t, conn.Send(fabric.At(string(job.Name), "j-x", fabric.KindCtl, string(schema.Coordinator)), frame))
					}
					if again {
						asked = time.Now()
					}
					return left == 0
				})
			}
			eventually(t, "nothing is written down", func() bool { return keysOf(t, s) == 0 })
			// as package loglimit has it
			told, most := strings.Count(log.String(), "join refused"), 100+int(time.Since(began)/time.Second)+1
			if told == 0 || told > most {
				t.Errorf("the log tells of %d, want at most %d and at least 1", told, most)
			}
			joined := newControlClient(t, s.URL(), shardtest.SmallJob("sound", 1, 1), "j-a").hear("the start", isStarted)
			if keysOf(t, s) != 1 {
				t.Errorf("%d keys after %+v, want that of the job", keysOf(t, s), joined)
			}
		})
	}
}

// Jobs that begin and end, however many, leave the names of the latest alone.
func TestEndedJobsLeaveLittle(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	c, err := fabric.DialControl(context.Background(), fabric.Config{URL: control.URL(), Name: "ps/a"})
	must(t, err)
	t.Cleanup(c.Close)
	r := newRegistry(c, leaseRecord{ID: "a", Incarnation: 1, Shards: 1}, longLease, func() int64 { return 0 },
		func(schema.JobName) schema.RunID { return 0 }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, r.open(ctx))
	begin := func(name, joiner string) acquisition {
		return r.acquire(ctx, &acquireRequest{job: shardtest.SmallJob(name, 1, 1), joiner: schema.Member(joiner)})
	}
	const more = 20
	for i := range leftMax + more {
		name := fmt.Sprint("job-", i)
		if got := begin(name, "j-a"); got.record == nil {
			t.Fatalf("%s: %+v", name, got)
		}
		r.end(schema.JobName(name), endedRun{RunID: 7, Joiners: []schema.Member{"j-a"}})
	}
	r.dropAll(ctx)
	all, err := r.jobs.All(ctx)
	must(t, err)
	if len(all) != leftMax {
		t.Errorf("%d names are left, want %d", len(all), leftMax)
	}
	if got := begin(fmt.Sprint("job-", leftMax+more-1), "j-a"); got.record != nil || len(got.ended) != 1 {
		t.Errorf("a late join of the last: %+v", got)
	}
	vast := make([]schema.Member, endedJoinersMax)
	for i := range vast {
		vast[i] = schema.Member("j-" + strings.Repeat("x", 50) + fmt.Sprint(i))
	}
	for i := range 80 {
		name := fmt.Sprint("vast-", i)
		must(t, begin(name, "j-a").err)
		r.end(schema.JobName(name), endedRun{RunID: 7, Joiners: vast})
	}
	r.dropAll(ctx)
	all, err = r.jobs.All(ctx)
	must(t, err)
	bytes := 0
	for _, e := range all {
		bytes += len(e.Value)
	}
	if bytes > leftBytesMax || bytes < leftBytesMax/2 {
		t.Errorf("%d bytes are left, want at most %d", bytes, leftBytesMax)
	}
}
