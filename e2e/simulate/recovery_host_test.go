//go:build !wasip1 && !race

package simulate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/internal/testkit"
)

var rewriteRecovery = flag.Bool("rewrite", false, "write testdata/recovery.txt again")

// recoveryHead explains the table to its reader.
const recoveryHead = `# What becomes of a job when processes die. TestRecovery runs every row in virtual time; -rewrite writes the file.
#
#   job | shards,trainers | state to go on from | who dies | when : outcome; batches computed again; the end
#
# A folder holds a version of the job every few batches. With a replica there is another ps, and the folder. What has
# died is started again after 4 s: a ps as it was, trainers without --resume. Outcomes:
#
#   in place           the run goes on
#   restart            a new run goes on from a version of the run before
#   the others go on   the run goes on without the lanes of a trainer
#   a new job          the job was lost, and what was started again begins it from the start
#   ends: LINE         what the first trainer that was not killed says at its end
#
# In the end a job that is bit-reproducible has its digest. Of the others each lane of each batch is applied once, or
# so many of them are not, or more often.
#
`

// A job of every kind recovers from deaths of processes at any time, or says why not, as testdata/recovery.txt has it.
func TestRecovery(t *testing.T) {
	p, rows := simulator(t), recoveryTable()
	if *singleRow != "" {
		for _, row := range rows {
			if !strings.Contains(row.String(), *singleRow) {
				continue
			}
			text, _, err := p.recovers(row.String())
			if t.Logf("%v\n%s", row, text); err != nil {
				t.Error(err)
			}
		}
		return
	}
	results := make([]recoveryResult, len(rows))
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				began := time.Now()
				text, result, err := p.recovers(rows[i].String())
				t.Logf("%.1f s  %d  %v: %+v", time.Since(began).Seconds(), i, rows[i], result)
				if results[i] = result; err != nil {
					t.Errorf("row %d: %v: %v\n%s", i, rows[i], err, text)
				}
			}
		})
	}
	for i := range rows {
		next <- i
	}
	close(next)
	wg.Wait()
	have := recoveryText(t, rows, results)
	path := filepath.Join("testdata", "recovery.txt")
	if *rewriteRecovery {
		if err := os.WriteFile(path, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(have, "\n")
	for i, line := range strings.Split(string(want), "\n") {
		if i >= len(lines) || lines[i] != line {
			this := append(lines, "")[min(i, len(lines))]
			t.Errorf("%s has\n%s\nand this run\n%s", path, line, this)
		}
	}
	if n := strings.Count(string(want), "\n"); len(lines)-1 > n {
		t.Errorf("%s has %d lines, and this run %d", path, n, len(lines)-1)
	}
}

// recovers runs a row of the recovery table.
func (p *program) recovers(row string) (text string, result recoveryResult, err error) {
	var out testkit.Text
	err = p.runTest(1, &out, "^TestRecoveryRow$", "-row", row)
	text = out.String()
	_, line, ok := strings.Cut(text, "\nresult ")
	if !ok {
		return text, result, fmt.Errorf("no result: %w", err)
	}
	if wrong := json.NewDecoder(bytes.NewBufferString(line)).Decode(&result); err == nil {
		err = wrong
	}
	return text, result, err
}

// recoveryText writes the table. It checks that all runs of a job that shares a digest have it.
func recoveryText(t *testing.T, rows []recoveryRow, results []recoveryResult) string {
	digests := map[string]string{}
	of := func(r recoveryRow) string {
		if _, rounded := sharesDigest(recoveryJob(r.job, 1)); rounded {
			return fmt.Sprint(r.job, " at ", r.trainers)
		}
		return r.job
	}
	var out strings.Builder
	out.WriteString(recoveryHead)
	for i, r := range rows {
		result, end := results[i], ""
		switch {
		case result.Outcome == "" || strings.HasPrefix(result.Outcome, "ends"):
		case r.who == whoNobody && result.Digest != "":
			digests[of(r)] = result.Digest
			end = "digest " + result.Digest
		case result.Digest != "" && result.Digest == digests[of(r)]:
			end = "same digest"
		case result.Digest != "" && mayRound(r):
			end = "other digest"
		case result.Digest != "":
			end = "OTHER DIGEST"
			t.Errorf("row %d: %v: digest %s, want %s", i, r, result.Digest, digests[of(r)])
		case result.Twice+result.Missing == 0:
			end = "each once"
		default:
			end = fmt.Sprintf("%d twice, %d not at all", result.Twice, result.Missing)
		}
		fmt.Fprintf(&out, "%v : %s", r, result.Outcome)
		if end != "" {
			fmt.Fprintf(&out, "; %d again; %s", result.Again, end)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// mayRound reports whether a row's job may be rounded otherwise once it was restarted: what rounding had taken away is
// lost with a trainer, or others have its lanes.
func mayRound(r recoveryRow) bool {
	job := recoveryJob(r.job, r.trainers)
	_, rounded := sharesDigest(job)
	return rounded && job.Rewinds()
}
