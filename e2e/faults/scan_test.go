package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/trainer"
)

// A server is stopped in the middle of a lookup, which is sent again: its late answers are on the way
// while the table is scanned, and are not taken for pieces of it. With -full 20 times.
func TestScanBesideAStoppedServer(t *testing.T) {
	const rows, dim, asked = 65536, 64, 16384
	job := &schema.Job{Name: "scan", Workload: "none", Seed: 1, Trainers: 1, Lanes: 1, Consistency: schema.ConsistencySync,
		Apply: schema.ApplyUpdate, Policy: schema.PolicyFail, ChunkBytes: 256 << 10,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1},
		Tables: []schema.TableSpec{{Name: "t", Rows: rows, Dim: dim, Partitions: 64,
			Init: schema.Init{Kind: schema.InitNormal, Scale: 1}}}}
	server := send(t, errand{Shards: 2})
	url := server.tale().URL
	s, err := trainer.Join(guarded(t), trainer.Config{Server: url, Backend: openBackend(t), Log: warnings(t),
		ReconnectTimeout: guard}, job)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	keys := make([]uint64, rows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	lookup := func(keys []uint64) []float32 {
		got, err := s.Lookup(guarded(t), []trainer.Query{{Table: 0, Keys: keys}})
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	want, repeated := lookup(keys), uint64(0)
	for i := range volume(3, 20) {
		server.signal(syscall.SIGSTOP)
		resumed := time.AfterFunc(1500*time.Millisecond, func() { _ = server.cmd.Process.Signal(syscall.SIGCONT) })
		before := s.Stats().LookupsRepeated
		lookup(keys[:asked])
		came := 0
		err := s.Table(guarded(t), 0, func(p schema.Partition, keys []uint64, values []float32) error {
			for j, key := range keys {
				if at := difference(values[j*dim:(j+1)*dim], want[int(key)*dim:(int(key)+1)*dim]); at >= 0 {
					return fmt.Errorf("column %d of row %d of partition %d is another's", at, key, p)
				}
			}
			came += len(keys)
			return nil
		})
		if err != nil || came != rows {
			t.Fatalf("scan %d: %d of %d rows, %v", i, came, rows, err)
		}
		resumed.Stop()
		repeated += s.Stats().LookupsRepeated - before
	}
	if t.Logf("lookups asked for again: %d", repeated); repeated == 0 {
		t.Error("no lookup was asked for again, so no answer was late")
	}
}
