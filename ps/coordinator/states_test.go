package coordinator

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// The diagrams of docs/internals/states.md have the transitions of the tables, and no others.
func TestStateDiagrams(t *testing.T) {
	document, err := os.ReadFile("../../docs/internals/states.md")
	must(t, err)
	compareDiagram(t, string(document), "## Job\n", jobTransitions[:])
	compareDiagram(t, string(document), "## Slot\n", slotTransitions[:])
}

var arrow = regexp.MustCompile(`(?m)^ +(\w+) --> (\w+)(?:: .+)?$`)

// compareDiagram compares the first diagram behind a heading with a table.
func compareDiagram[S interface {
	~int
	fmt.Stringer
}](t *testing.T, document, heading string, table [][]S) {
	t.Helper()
	_, document, _ = strings.Cut(document, heading)
	_, document, _ = strings.Cut(document, "```mermaid\n")
	diagram, _, _ := strings.Cut(document, "```")
	var have, want []string
	for _, m := range arrow.FindAllStringSubmatch(diagram, -1) {
		have = append(have, m[1]+" "+m[2])
	}
	for from, all := range table {
		for _, to := range all {
			want = append(want, fmt.Sprint(S(from), " ", to))
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("%sthe diagram has\n%s\nand the table\n%s", heading, strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// A transition that is not in the table panics, changes nothing, and names the job whose state it is.
func TestIllegalTransition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	c, other, at := randomCoordinator(r, 3), randomCoordinator(r, 3), Running
	for text, do := range map[string]func(){
		"from running to gathering": func() { at.Transition(Gathering) },
		"from gathering to placing": func() { c.state = Gathering; c.state.Transition(Placing) },
		"from vacant to done":       func() { c.members[1].become(slotDone, member{}) },
	} {
		func() {
			defer func() {
				e, ok := recover().(*IllegalTransition)
				if !ok || !strings.Contains(e.Error(), text) || !e.Of(&at, c) || e.Of(new(JobState), other) ||
					e.Of(new(JobState), nil) {
					t.Errorf("want an illegal transition %s of the job: %v", text, e)
				}
			}()
			do()
		}()
	}
	if at != Running || c.state != Gathering || c.members[1].state != slotVacant {
		t.Errorf("states %v, %v and %v have changed", at, c.state, c.members[1].state)
	}
}

// Whatever trainers and shards say, and in whichever order, no transition is illegal. A slot comes to every state.
func TestRandomEventsTransition(t *testing.T) {
	const trainers = 3
	seen := map[slotState]bool{}
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := randomCoordinator(r, trainers)
		now := time.Unix(1000, 0)
		c.Assign(now)
		for range 150 {
			now = now.Add(time.Duration(r.IntN(4000)) * time.Millisecond)
			randomEvent(c, r, now, trainers)
			for i := range c.members {
				seen[c.members[i].state] = true
			}
		}
	}
	for state := range slotTransitions {
		if s := slotState(state); !seen[s] {
			t.Errorf("no slot comes to %v", s)
		}
	}
}

func randomCoordinator(r *rand.Rand, trainers int) *Coordinator {
	job := shardtest.SmallJob("random", trainers, 4)
	switch r.IntN(5) {
	case 0:
		job.Consistency, job.Apply = schema.ConsistencyAsync, schema.ApplyUpdate
	case 1:
		job.Consistency, job.Ahead = schema.ConsistencyBounded, 1
	case 2:
		job.Consistency, job.Apply, job.Group, job.Tables = schema.ConsistencyGrouped, schema.ApplyUpdate, 1, nil
	}
	if job.Consistency != schema.ConsistencyGrouped {
		job.Policy = []string{schema.PolicyFail, schema.PolicyWait, schema.PolicyRecover}[r.IntN(3)]
	}
	if job.Validate() != nil {
		job.Policy = schema.PolicyFail
	}
	config := Config{Job: job, RunID: 5, Generation: 1, Deadline: 10 * time.Second,
		StallTimeout: 20 * time.Second, Checkpoints: &CheckpointPolicy{Epoch: 1, Batches: 5},
		ShardServers: []ShardServer{{Member: "p-a", Server: schema.DataServer{ID: "a", Shards: []int{0}}}}}
	if r.IntN(2) == 0 {
		config.Resume, config.Rejoining = &ResumeFrom{ID: "x", Version: 2}, []schema.RunID{4}
	}
	return New(config)
}

func randomEvent(c *Coordinator, r *rand.Rand, now time.Time, trainers int) {
	i := r.IntN(trainers)
	name := schema.TrainerMember(i)
	joiner := schema.Member(fmt.Sprint("j-", r.IntN(8)))
	g := c.members[i%len(c.members)].generation
	if r.IntN(8) == 0 {
		g = schema.Generation(r.IntN(5))
	}
	switch r.IntN(12) {
	case 0, 1:
		c.Join(now, joiner, &schema.Join{Job: c.config.Job.WithTrainers(c.admission.places()), Host: "host",
			Key: uint64(r.IntN(3)), Resume: c.config.Resume != nil, Run: schema.RunID(4 + r.IntN(2)*r.IntN(2))})
	case 2:
		c.Leave(now, name, g, &schema.Leave{Reason: []string{"", "why"}[r.IntN(2)], HandOver: r.IntN(2) == 0})
	case 3:
		c.Leaving(name)
	case 4:
		if r.IntN(4) == 0 {
			c.Died(now, name, g)
		}
	case 5:
		var waiting []schema.Waiting
		if r.IntN(2) == 0 {
			waiting = []schema.Waiting{{Batch: 3, Members: []schema.Member{name}, First: []schema.Member{name}}}
		}
		c.Report(now, "p-a", &schema.Report{Serial: c.serial, Ready: r.IntN(8) > 0, Waiting: waiting,
			Generation: c.generation, Done: schema.Version(r.IntN(5))})
	case 6:
		var names []string
		for i := range trainers {
			if r.IntN(3) > 0 {
				names = append(names, "random/"+string(schema.TrainerMember(i)))
			}
		}
		c.Connections(names)
	case 7, 8:
		c.Tick(now)
	default:
		from := []schema.Member{name, name, joiner}[r.IntN(3)]
		h := schema.Head{Batch: schema.Batch(r.IntN(6)), Generation: g}
		if r.IntN(4) == 0 {
			h.Flags = schema.FlagComplete
		}
		c.Heartbeat(now, from, &h)
	}
}
