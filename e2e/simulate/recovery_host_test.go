//go:build !wasip1 && !race

package simulate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/internal/testkit"
)

var (
	rewriteRecovery = flag.Bool("rewrite", false, "write testdata/recovery.txt again")
	rowChance       = flag.Uint64("chance", 1, "seed of the first machine that rows run on")
)

// otherChances are the further machines on which a row runs that is other than in the table. Which of two processes is
// first may follow from chance, and with it what is said last. Every change of the code draws other chances.
const otherChances = 6

// recoveryHead explains the table to its reader.
const recoveryHead = `# How jobs recover when processes die. TestRecovery runs every row in virtual time; -rewrite writes the file.
#
#   job | shards,trainers | state to go on from | who dies | when : outcome; batches computed again; the end
#
# A folder holds a version of the job every few batches. With a replica there is another ps, and the folder. What has
# died is started again after 4 s: a ps as it was, trainers without --resume. The last rows split the network of a pair
# for 27 s: with the replica's ps some trainers are cut off from the coordinator's, and more start there. Outcomes:
#
#   in place           the run goes on
#   restart            a new run goes on from a version of the run before
#   the others go on   the run goes on without the lanes of a trainer
#   a new job          the job was lost, and what was started again begins it from the start
#   ends: LINE         what the first trainer that was not killed says at its end
#
# In the end a job that is bit-reproducible has its digest. Of the others each lane of each batch is applied once, or
# at least once, or some are twice, or not at all. LINE has no addresses, numbers of members and batches, and times.
# How many batches are computed again is compared to within two: it follows from how far trainers were.
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
			text, _, err := p.recovers(row.String(), *rowChance)
			if t.Logf("%v\n%s", row, text); err != nil {
				t.Error(err)
			}
		}
		return
	}
	path := filepath.Join("testdata", "recovery.txt")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, results := strings.Split(string(old), "\n"), make([]recoveryResult, len(rows))
	p.recoverAll(t, rows, results, *rowChance, func(int) bool { return true })
	have := recoveryText(t, rows, results, want)
	for chance := uint64(1); chance <= otherChances && !*rewriteRecovery && len(have) == len(want); chance++ {
		head := len(have) - 1 - len(rows)
		p.recoverAll(t, rows, results, *rowChance+chance, func(i int) bool { return have[head+i] != want[head+i] })
		have = recoveryText(t, rows, results, want)
	}
	if *rewriteRecovery {
		if err := os.WriteFile(path, []byte(strings.Join(have, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for i := range max(len(have), len(want)) {
		if i >= len(have) || i >= len(want) || have[i] != want[i] {
			t.Errorf("%s line %d differs, from there on, from what happens:\n%s", path, i+1,
				strings.Join(slices.DeleteFunc(have[min(i, len(have)):], func(line string) bool {
					return slices.Contains(want, line)
				}), "\n"))
			return
		}
	}
}

// recoverAll runs the rows that are wanted, and records their results.
func (p *program) recoverAll(t *testing.T, rows []recoveryRow, results []recoveryResult, chance uint64,
	wanted func(int) bool) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				began := time.Now()
				text, result, err := p.recovers(rows[i].String(), chance)
				t.Logf("%.1f s  %d  %v, chance %d: %+v", time.Since(began).Seconds(), i, rows[i], chance, result)
				if results[i] = result; err != nil {
					t.Errorf("row %d: %v: %v\n%s", i, rows[i], err, text)
				}
			}
		})
	}
	for i := range rows {
		if wanted(i) {
			next <- i
		}
	}
	close(next)
	wg.Wait()
}

// recovers runs a row of the recovery table.
func (p *program) recovers(row string, chance uint64) (text string, result recoveryResult, err error) {
	var out testkit.Text
	err = p.runTest(chance, &out, "^TestRecoveryRow$", "-row", row)
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

// recoveryText gives the lines of the table. It checks that all runs of a job that shares a digest have it.
func recoveryText(t *testing.T, rows []recoveryRow, results []recoveryResult, old []string) []string {
	digests := map[string]string{}
	of := func(r recoveryRow) string {
		if _, rounded := sharesDigest(recoveryJob(r.job, 1)); rounded {
			return fmt.Sprint(r.job, " at ", r.trainers)
		}
		return r.job
	}
	lines := strings.Split(strings.TrimSuffix(recoveryHead, "\n"), "\n")
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
		case result.Missing == 0 && strings.HasPrefix(result.Outcome, "restart") && !commonRounds(r):
			end = "each at least once"
		case result.Twice+result.Missing == 0:
			end = "each once"
		default:
			end = strings.Trim(some(result.Twice, "twice")+", "+some(result.Missing, "not at all"), ", ")
		}
		if line := fmt.Sprintf("%v : %s", r, anonymous(result.Outcome)); end == "" {
			lines = append(lines, line)
		} else {
			lines = append(lines, fmt.Sprintf("%s; %d again; %s", line, steady(old, line, result.Again), end))
		}
	}
	return append(lines, "")
}

// steady is how many batches were computed again as the table has it, if it has the same but for one or two more or
// fewer: how far trainers are when others die follows from chance.
func steady(old []string, line string, again int) int {
	for _, o := range old {
		var before int
		if rest, ok := strings.CutPrefix(o, line+"; "); ok {
			if n, _ := fmt.Sscanf(rest, "%d again", &before); n == 1 && max(before-again, again-before) <= 2 {
				return before
			}
		}
	}
	return again
}

// mayRound reports whether a row's job may be rounded otherwise once it was restarted: what rounding had taken away is
// lost with a trainer, or others have its lanes.
func mayRound(r recoveryRow) bool {
	job := recoveryJob(r.job, r.trainers)
	_, rounded := sharesDigest(job)
	return rounded && job.Rewinds()
}

// commonRounds reports whether rounds of a row's job are of all trainers. Of others, a version has what each shard had
// at some moment, and what trainers did since may be in it.
func commonRounds(r recoveryRow) bool { return recoveryJob(r.job, r.trainers).Plan().Clock.Common() }

// some says that some lanes of batches were applied so often.
func some(n int, often string) string {
	if n == 0 {
		return ""
	}
	return "some " + often
}

// chances are the parts of errors that follow from which of equal processes came first, or from how long one waited.
var chances = []struct {
	part *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`(memory://)?local:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\bps [ab]\b`), "ps X"},
	{regexp.MustCompile(`\b([st])\d\b`), "${1}N"},
	{regexp.MustCompile(`\bbatch \d+\b`), "batch N"},
	{regexp.MustCompile(`\b\d+s\b`), "Ns"},
}

// anonymous replaces these parts of an outcome.
func anonymous(outcome string) string {
	for _, c := range chances {
		outcome = c.part.ReplaceAllString(outcome, c.text)
	}
	return outcome
}
