//go:build !wasip1 && !race

package simulate

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/internal/planted"
)

var (
	plants = flag.Bool("planted", false, "plant defects, one after the other, and look whether they are found")
	rare   = flag.Bool("rare", false, "also those that show in one seed of many hundreds")
)

const often = 400 // seeds within which a defect shows that is looked for without -rare

// defects are those with which jobs must come to a wrong end, or to none, within so many seeds.
var defects = []struct {
	defect planted.Defect
	name   string
	seeds  uint64
}{
	{planted.CountContributors, "requests counted in place of lanes", 10},
	{planted.ReuseGeneration, "a generation used again", 400},
	{planted.CountNodeTwice, "a node counted twice after a rise", 400},
	{planted.AnswerWithOldRows, "a parked lookup answered with old rows", 5},
	{planted.ReadChangedRows, "rows of a batch under way that have changed", 120},
	{planted.SkipEmptyBatch, "the weights of a batch without samples", 400},
	{planted.SkipReplicaSteps, "steps of rows that a replica is not told of", 60},
	{planted.KeepFirstPieces, "stretches of parameters that stay as they were told first", 60},
	{planted.SkipFolderSync, "a name in a folder that is not brought to the disk", 400},
	{planted.SkipFileSync, "a file that is not brought to the disk", 400},
	{planted.SkipBatchUnderWay, "a batch under way left out by a trainer that takes a place", 40},
	{planted.RemakeShards, "shards made again in the middle of a job", 5000},
	{planted.TrustDates, "silence by dates, which may be set", 120},
	{planted.CopyLaterRows, "rows of later batches in a version that is written down", 60},
	{planted.SkipSharedRows, "rows that trainers have and do not copy", 60},
	{planted.CloseSharedRows, "rows that trainers have as they are by now", 400},
	{planted.AskLateVersion, "a version that is asked for when it is over", 60},
}

// Every planted defect is found. Those that show seldom are looked for by hand, with -rare: that takes an hour each.
func TestPlantedDefectsAreFound(t *testing.T) {
	if !*plants {
		t.Skip("takes minutes: -planted")
	}
	p, err := compile("planted")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for _, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			if d.seeds > often && !*rare {
				t.Skip("shows in one seed of many hundreds: -rare")
			}
			p.defect = d.defect
			found := p.run(0, d.seeds, true)
			if len(found) == 0 {
				t.Fatalf("not found within %d seeds", d.seeds)
			}
			seed := slices.Min(slices.Collect(maps.Keys(found)))
			_, text, _ := strings.Cut(found[seed], ".go:")
			t.Logf("found at seed %d:%.200s", seed, text)
		})
	}
}

// Where the network of a pair is split, a defect of who may continue the job shows as two runs that both go on.
func TestPlantedSplitsAreFound(t *testing.T) {
	if !*plants {
		t.Skip("takes minutes: -planted")
	}
	p, err := compile("planted")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for _, d := range []struct {
		defect planted.Defect
		how    string
	}{{planted.TakeUnreachableForEnded, splitRefused}, {planted.GoOnWithMinority, splitRefused},
		{planted.GoOnWithMinority, splitCut}} {
		p.defect = d.defect
		row := splitRow("one trainer of 3", d.how)
		text, result, err := p.recovers(row.String(), *rowChance)
		if err == nil || !strings.Contains(text, "while another goes on") {
			t.Errorf("defect %d, %v: %+v, %v, want two runs; have\n%s", d.defect, row, result, err, text)
		}
	}
}

// All sources of versions share one choice: a defect of it shows in restarts from replicas and from the folder, after
// the loss of a ps and of a trainer.
func TestPlantedChoiceIsFound(t *testing.T) {
	if !*plants {
		t.Skip("takes minutes: -planted")
	}
	table, err := os.ReadFile(filepath.Join("testdata", "recovery.txt"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := compile("planted")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.defect = planted.IgnoreOffers
	for _, row := range []string{
		"sync mean shards none | 2,3 | folder | another ps | between batches",
		"sync mean shards columns | 1,3 | folder | a trainer | between batches",
		"sync update shards whole | 1,3 | replica | coordinator's ps | version written",
		"sync update shards columns | 2,3 | replica | another ps | in mid-batch",
	} {
		_, line, _ := strings.Cut(string(table), row+" : restart; ")
		var want int
		if n, _ := fmt.Sscanf(line, "%d again", &want); n != 1 {
			t.Fatalf("%s: no restart in the table", row)
		}
		_, result, err := p.recovers(row, *rowChance)
		t.Logf("%s: %+v, %d again in the table; %v", row, result, want, err)
		if err == nil && result.Outcome == "restart" && result.Again <= want+2 {
			t.Errorf("%s: as in the table, so the defect is not found", row)
		}
	}
}
