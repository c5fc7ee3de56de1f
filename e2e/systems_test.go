package e2e

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// All four reference systems work in their small settings, as processes, and each prints the figures that it is known
// by.
func TestSystems(t *testing.T) {
	t.Parallel()
	p := start(t, "psbench", "all", "--json")
	p.succeeds(t)
	var all struct {
		Systems []struct {
			Name   string
			OK     bool
			Error  string
			Result any
		}
	}
	if err := json.Unmarshal([]byte(p.stdout.String()), &all); err != nil || strings.Count(p.stdout.String(), "\n") != 1 {
		t.Fatalf("printed %q: %v", p.stdout.String(), err)
	}
	fields := map[string]string{
		"update": "rounds_per_second push_bytes_per_second seconds loss_first loss_last",
		"average": "batch_all_ms forward_ms backward_ms straggler_ms batch_ms arrival_ms average_ms bytes_sent " +
			"weights_sha256",
		"hybrid": "p50_seconds_per_epoch p75_seconds_per_epoch p90_seconds_per_epoch p95_seconds_per_epoch " +
			"samples_per_second",
		"hosted":   "images_per_second accuracy loss seconds",
		"packages": "gradbus last", "fabric": "round_gb_per_second", "kernels": "",
	}
	if len(all.Systems) != len(fields) {
		t.Errorf("%d systems, want %d", len(all.Systems), len(fields))
	}
	for _, s := range all.Systems {
		if !s.OK || s.Error != "" {
			t.Errorf("%s: %s", s.Name, s.Error)
		}
		for _, field := range strings.Fields(fields[s.Name]) {
			if result, _ := s.Result.(map[string]any); result[field] == nil {
				t.Errorf("%s: no %s in %v", s.Name, field, s.Result)
			}
		}
	}
}

// In each system a process killed with -9 ends the run with one line that names it, and nothing is left over.
func TestSystemsNameTheDead(t *testing.T) {
	for _, args := range [][]string{
		{"update", "--trainers", "3", "--batches", "1000000"},
		{"average", "--epochs", "100000"},
		{"hybrid", "--trainers", "2", "--servers", "2", "--epochs", "1000000"},
		{"hosted", "--trainers", "2", "--epochs", "10000", "--input", "synthetic"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			p := start(t, "psbench", args...)
			var members []int
			poll(t, "servers and trainers", func() bool {
				select {
				case <-p.done:
					t.Fatalf("psbench ended: %s", p.stderr.String())
				default:
				}
				members = childrenOf(t, p.Process.Pid)
				return len(members) >= 3
			})
			if err := syscall.Kill(slices.Max(members), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if status := p.status(t); status != 1 ||
				!regexp.MustCompile(`(s|t)[0-9]: signal: killed$`).MatchString(p.errorLine()) {
				t.Errorf("status %d and %q, want 1 and the member that was killed", status, p.errorLine())
			}
			for _, pid := range members {
				if alive(pid) {
					t.Errorf("process %d is left over", pid)
				}
			}
		})
	}
}

// A ps that runs tells how the buckets of a job fare that was joined from elsewhere.
func TestBucketsOfARunningServer(t *testing.T) {
	_, nats, at := page(t)
	p := start(t, "psbench", "average", "--server", nats, "--model", "Small", "--input", "Small", "--sparse", "--epochs",
		"1000000")
	poll(t, "the metrics of buckets", func() bool {
		_, body := get(t, at+"metrics")
		return strings.Contains(body, `gradbus_shard_bucket_straggler_seconds_count{bucket="0",job_name="average-warmup"`)
	})
	p.signal(t, syscall.SIGINT)
	<-p.done
}
