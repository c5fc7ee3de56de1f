package status

import (
	"fmt"
	"strings"

	"gradbus/schema"
)

// phases is the number of a trainer's phases: keys, lookup, compute, send, result.
const phases = 5

// activities are what a trainer does in the words of sentences: the phases in their order, joining, and what is none of
// these. It is never written to.
var activities = [...]struct {
	doing schema.Doing
	long  string // for some time
	now   string // of one
}{
	{schema.DoingKeys, "been preparing its keys for <time>", "prepares keys"},
	{schema.DoingLookup, "waited <time> for rows of <shard>", "waits for rows of <shard>"},
	{schema.DoingCompute, "computed for <time>", "computes"},
	{schema.DoingSend, "been sending to <shard> for <time>", "sends to <shard>"},
	{schema.DoingResult, "waited <time> for results of <shard>", "waits for results of <shard>"},
	{schema.DoingJoining, "been joining for <time>", "joins"},
	{schema.DoingOther, "been outside of training for <time>", "is outside of training"},
}

// activityOf is the index of what a trainer says that it does.
func activityOf(d schema.Doing) int {
	for i := range activities {
		if activities[i].doing == d {
			return i
		}
	}
	return len(activities) - 1
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
