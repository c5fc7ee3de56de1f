package status

import (
	"fmt"
	"strings"

	"gradbus/schema"
)

// parts of a trainer's time for one batch: the five phases, and what was spent elsewhere.
const (
	partKeys = iota
	partLookup
	partCompute
	partSend
	partResult
	partOther
	parts
	phases = partOther
)

// activities are what a trainer does, part by part, and joining, in the words of sentences. It is never written to.
var activities = [...]struct {
	doing schema.Doing
	long  string // for some time
	now   string // of one
	verb  string // of one, with the time for a batch between verb and what
	what  string
	// action is what to do where it takes longer than it did; only of parts in which a trainer waits for nobody.
	action string
}{
	partKeys: {schema.DoingKeys, "been preparing its keys for <time>", "prepares keys", "spends", " on making keys",
		"Look at where the trainer reads its data from, and at its machine's load."},
	partLookup: {schema.DoingLookup, "waited <time> for rows of <shard>", "waits for rows of <shard>", "waits",
		" for rows", ""},
	partCompute: {schema.DoingCompute, "computed for <time>", "computes", "computes", "",
		"Look what else runs on the machine, and at the clocks and temperature of its processors or GPU."},
	partSend: {schema.DoingSend, "been sending to <shard> for <time>", "sends to <shard>", "spends", " on sending", ""},
	partResult: {schema.DoingResult, "waited <time> for results of <shard>", "waits for results of <shard>", "waits",
		" for results", ""},
	partOther: {"", "been outside of training for <time>", "is outside of training", "spends", " outside of training",
		"Look at what the training program does between batches: reports, evaluation, saving."},
	parts: {schema.DoingJoining, "been joining for <time>", "joins", "", "", ""},
}

// activityOf is the index of what a trainer says that it does.
func activityOf(d schema.Doing) int {
	for i := range activities {
		if activities[i].doing == d {
			return i
		}
	}
	return partOther
}

// agree is a verb of one thing as n of them have it.
func agree(verb string, n int) string {
	switch {
	case n == 1:
		return verb
	case verb == "is":
		return "are"
	}
	return strings.TrimSuffix(verb, "s")
}

// doing says what a trainer does at the moment.
func doing(tr *trainer) string {
	said := tr.said()
	if said == nil {
		return "which is alive and sends no gradients"
	}
	shard := "a shard"
	if said.AwaitedShard != nil {
		shard = fmt.Sprintf("shard s%d", *said.AwaitedShard)
	}
	return "which has " + strings.NewReplacer("<time>", ago(said.DoingMS), "<shard>",
		shard).Replace(activities[activityOf(said.Doing)].long)
}

// spends says how long a trainer, or n, are at some part of a batch, and were before: "computes 299 ms a batch, 3.0
// times as long as before".
func spends(part, n int, now, was float64) string {
	a := &activities[part]
	return fmt.Sprintf("%s %s a batch%s, %s", agree(a.verb, n), lasting(now), a.what, before(now, was))
}

// before says how that is to what was.
func before(now, was float64) string {
	if was < now/20 || was <= 0 {
		return lasting(max(was, 0)) + " before"
	}
	return times(now/was) + " as long as before"
}
