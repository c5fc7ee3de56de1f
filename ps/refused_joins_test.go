package ps

import (
	"fmt"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// What is refused again and again is one entry, told of at powers of two; the bound holds, and what is over is
// forgotten.
func TestRefusedJoins(t *testing.T) {
	t.Parallel()
	var r refusedJoins
	now := time.UnixMilli(1_700_000_000_000)
	told := []uint64{}
	for range 9 {
		now = now.Add(time.Second)
		n, tell := r.note(now, "large", "box (pid 7)",
			&schema.Refused{Reason: "invalid_job", Field: "tables", Text: "too large"})
		if tell {
			told = append(told, n)
		}
	}
	if fmt.Sprint(told) != "[1 2 4 8]" {
		t.Errorf("told of %v", told)
	}
	r.note(now, "large", "box (pid 8)", &schema.Refused{Reason: "invalid_job", Field: "lanes", Text: "no lanes"})
	if n, tell := r.note(now, "No.Name", "box", &schema.Refused{Reason: "invalid_job"}); n != 0 || tell {
		t.Errorf("of a job without a name %d, %v", n, tell)
	}
	all := r.lately(now)
	if len(all) != 2 ||
		all[0] != (schema.RefusedReport{Job: "large", Reason: "invalid_job", Field: "tables", Text: "too large",
			Host: "box (pid 7)", Count: 9,
			FirstMS: 1_700_000_001_000, LastMS: 1_700_000_009_000}) {
		t.Errorf("%+v", all)
	}
	tells := 0
	for i := range 6 * schema.TelemetryRefusedMax {
		name := schema.JobName(fmt.Sprintf("job-%d", i/2)) // each twice in a row
		if _, tell := r.note(now, name, "box", &schema.Refused{Reason: "job_full"}); tell {
			tells++
		}
	}
	if tells != 2*(schema.TelemetryRefusedMax-2) {
		t.Errorf("%d of names without end were told of at once, want those that had room", tells)
	}
	if _, tell := r.note(now.Add(time.Second), "later", "box", &schema.Refused{Reason: "job_full"}); !tell {
		t.Error("a second later another is not told of")
	}
	if all = r.lately(now); len(all) != schema.TelemetryRefusedMax || all[len(all)-1].Job != "later" {
		t.Errorf("%d of them, the last %+v", len(all), all[len(all)-1])
	}
	if all = r.lately(now.Add(refusedShown + 3*time.Second)); len(all) != 0 {
		t.Errorf("after a while %+v", all)
	}
}

// Who asks for a job that does not fit leaves a word in the report: which job, who asked, why, how often.
func TestReportsTellOfRefusedJoins(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{MemoryBytesMax: 1 << 30})
	p := &shardtest.Problem{Job: shardtest.SmallJob("large", 1, 1)}
	p.Job.Tables[0].Rows = 1 << 28
	for _, joiner := range []string{"j-a", "j-b"} {
		m := newMiniTrainer(t, s, p, joiner)
		m.control2(schema.Control{Join: &schema.Join{Job: p.Job, Host: "box (pid 7)"}})
		if m.answer().Refused == nil {
			t.Fatal("not refused")
		}
	}
	got := l.own(s, "two refusals in one",
		func(p *schema.ServerReport) bool { return len(p.Refused) == 1 && p.Refused[0].Count == 2 }).Refused[0]
	if got.Job != "large" || got.Host != "box (pid 7)" || got.Reason != "invalid_job" || got.Field != "tables" ||
		got.FirstMS == 0 || got.LastMS < got.FirstMS {
		t.Errorf("%+v", got)
	}
	taken := shardtest.New(t, shardtest.SmallJob("taken", 1, 1))
	m := gather(t, s, taken, "j-c")[0]
	other := newMiniTrainer(t, s, taken, "j-d")
	other.control2(schema.Control{Join: &schema.Join{Job: taken.Job, Host: "box (pid 9)"}})
	if other.answer().Refused == nil {
		t.Fatal("not refused")
	}
	l.own(s, "a join of a job that is full", func(p *schema.ServerReport) bool {
		return len(p.Refused) == 2 && p.Refused[1].Job == "taken" && p.Refused[1].Reason == "job_full"
	})
	m.leave("")
}
