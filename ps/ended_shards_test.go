package ps

import (
	"fmt"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard"
)

// Figures of ended shards are kept for a time, up to a bound, one for each shard of a job, and not beside a job that
// has shards here again.
func TestEndedShards(t *testing.T) {
	var e endedShards
	now := time.Unix(1000, 0)
	end := func(name string, run schema.RunID, shards int) *assignment {
		a := &assignment{manifest: &schema.Job{Name: schema.JobName(name)}, run: run}
		for i := range shards {
			a.own, a.workers = append(a.own, i), append(a.workers, &worker{config: shard.Config{Index: i}, watch: new(watch)})
		}
		e.add(now, a)
		return a
	}
	end("a", 1, 2)
	now = now.Add(time.Minute)
	again := end("a", 2, 1)
	end("b", 3, 2)
	all := e.report(now, time.Hour, nil)
	if len(all) != 3 || all[0].Run != 2 || all[1].Job != "b" || all[2].Shard != 1 {
		t.Errorf("kept %+v", all)
	}
	if all = e.report(now, time.Hour, map[schema.JobName]*assignment{"a": again}); len(all) != 2 {
		t.Errorf("beside a job that is here again: %+v", all)
	}
	if all = e.report(now.Add(time.Hour+1), time.Hour, nil); len(all) != 0 {
		t.Errorf("after an hour: %+v", all)
	}
	for i := range endedShardsMax + 1 {
		end(fmt.Sprint("job-", i), 1, 1)
	}
	if all = e.report(now, time.Hour, nil); len(all) != endedShardsMax || all[0].Job != "job-1" {
		t.Errorf("%d kept, first %s", len(all), all[0].Job)
	}
}
