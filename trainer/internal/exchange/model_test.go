package exchange

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gradbus/schema"
)

// model is the exchange told naively: everything is looked up in what has happened.
type model struct {
	t         *testing.T
	x         *Exchange
	random    *rand.Rand
	config    Config
	claimed   map[part]bool
	placed    map[part]bool
	pulled    map[place]bool // since the last probe
	asked     map[schema.Sequence]int
	answered  map[schema.Sequence]bool
	begun     schema.Batch
	completed schema.Batch
	now       time.Duration
	wire      []any // Results and answers under way
	losses    int   // that may be yet
}

type place struct {
	batch        schema.Batch
	owner, round int
}

type part struct {
	place
	part int
}

type answer struct{ number schema.Sequence }

// partsOf is how many frames a result has.
func (m *model) partsOf(p place) int {
	if m.config.HasRows[p.owner] && p.round == len(m.config.Rounds[p.owner])-1 {
		return 1 + (int(p.batch)+p.owner)%3
	}
	return 1
}

// whole reports whether all of a result is in place.
func (m *model) whole(p place) bool { return m.have(m.placed, p) }

// have reports whether all parts of a result are in a set.
func (m *model) have(set map[part]bool, p place) bool {
	for i := range m.partsOf(p) {
		if !set[part{p, i}] {
			return false
		}
	}
	return true
}

// missing reports whether there is something of a result to ask for.
func (m *model) missing(p place) bool {
	if m.partsOf(p) == 1 {
		return !m.claimed[part{p, 0}]
	}
	return !m.whole(p)
}

// say puts a result on the wire, in as many frames as it has: some are lost, some come twice.
func (m *model) say(p place, pulled bool) {
	for i := range m.partsOf(p) {
		m.wire = append(m.wire, Result{Owner: p.owner, Round: p.round, Batch: p.batch, Version: p.batch + 1, Weight: 4,
			Part: i, Parts: m.partsOf(p), Pulled: pulled})
		m.harm()
	}
}

// harm loses the last thing on the wire, or says it twice.
func (m *model) harm() {
	last := len(m.wire) - 1
	switch m.random.IntN(4) {
	case 0:
		if m.losses > 0 {
			m.losses--
			m.wire = m.wire[:last]
		}
	case 1:
		m.wire = append(m.wire, m.wire[last])
	}
}

// begin begins a batch, whose results are all published at once.
func (m *model) begin() {
	b := m.begun
	m.x.Begin(b)
	m.begun++
	for owner, rounds := range m.config.Rounds {
		for round := range rounds {
			m.say(place{b, owner, round}, false)
		}
	}
}

// result lets a result arrive.
func (m *model) result(r Result) {
	p := place{r.Batch, r.Owner, r.Round}
	before := place{r.Batch - 1, r.Owner, r.Round}
	want := r.Batch >= m.completed && r.Batch < m.begun && !m.claimed[part{p, r.Part}] &&
		(m.partsOf(p) > 1 || m.config.HasRows[r.Owner] && r.Round == len(m.config.Rounds[r.Owner])-1 ||
			r.Batch == m.completed || m.whole(before))
	fresh, err := m.x.Claim(r)
	if err != nil || fresh != want {
		m.t.Fatalf("result %+v: %v, %v, want %v", r, fresh, err, want)
	}
	if !fresh {
		return
	}
	m.claimed[part{p, r.Part}], m.placed[part{p, r.Part}] = true, true
	var wantLost []Pull
	if m.whole(p) {
		for round, name := range m.config.Rounds[r.Owner] {
			q := place{r.Batch, r.Owner, round}
			if (round < r.Round || r.Pulled) && m.missing(q) && !m.pulled[q] {
				m.pulled[q] = true
				wantLost = append(wantLost, Pull{r.Owner, r.Batch, name})
			}
		}
	}
	whole, lost := m.x.Place(r)
	if whole != m.whole(p) || !slices.Equal(lost, wantLost) {
		m.t.Fatalf("result %+v: whole %v, lost %v, want %v and %v", r, whole, lost, m.whole(p), wantLost)
	}
	m.pull(lost)
	m.finish()
}

func (m *model) finish() {
	for {
		full := m.completed < m.begun
		for owner, rounds := range m.config.Rounds {
			for round := range rounds {
				full = full && m.whole(place{m.completed, owner, round})
			}
		}
		b, _, got := m.x.Full()
		if got != full || got && b != m.completed {
			m.t.Fatalf("batch %d is full: %v, want %v of batch %d", b, got, full, m.completed)
		}
		if !got {
			return
		}
		m.x.Finish()
		m.completed++
	}
}

// pull asks for results: owners publish them again.
func (m *model) pull(pulls []Pull) {
	for _, p := range pulls {
		round := slices.Index(m.config.Rounds[p.Owner], p.Round)
		m.say(place{p.Batch, p.Owner, round}, true)
	}
}

// ask asks for something of every owner.
func (m *model) ask() {
	owners := m.random.Perm(len(m.config.Rounds))
	first := m.x.Number(len(owners))
	m.x.Ask(0, first, owners, m.now, m.random.IntN(2) == 0)
	clear(m.asked)
	for i, owner := range owners {
		m.asked[first+schema.Sequence(i)] = owner
		m.request(first + schema.Sequence(i))
	}
}

func (m *model) request(number schema.Sequence) {
	m.wire = append(m.wire, answer{number})
	m.harm()
}

// answer lets an answer arrive, which may be wrong.
func (m *model) answer(a answer) {
	owner, want := m.asked[a.number]
	want = want && !m.answered[a.number]
	i, fresh, err := m.x.ClaimAnswer(0, owner, a.number, 0, 1)
	if err != nil || fresh != want {
		m.t.Fatalf("answer to %d: %v, %v, want %v", a.number, fresh, err, want)
	}
	if fresh {
		right := m.losses == 0 || m.random.IntN(8) > 0
		m.x.PlaceAnswer(0, i, 0, right)
		m.answered[a.number] = right
	}
}

// arrive lets something on the wire arrive, out of order where that is so.
func (m *model) arrive() {
	i := 0
	if m.random.IntN(3) == 0 {
		i = m.random.IntN(len(m.wire))
	}
	one := m.wire[i]
	m.wire = slices.Delete(m.wire, i, i+1)
	switch one := one.(type) {
	case Result:
		m.result(one)
	case answer:
		m.answer(one)
	}
}

// wait does what is to be done, and lets time pass.
func (m *model) wait() (done bool) {
	if m.random.IntN(8) == 0 {
		m.x.Back()
	}
	lost := m.x.lost
	w := m.x.wait
	probe := w.who == Results && (lost || m.now >= w.due && m.x.counts.Taken == m.x.seen)
	a := m.x.Tick(m.now)
	if a.Done {
		return true
	}
	if a.Next <= m.now {
		m.t.Fatalf("next at %v, and it is %v", a.Next, m.now)
	}
	var want []Pull
	if probe {
		want = m.probe(lost)
	}
	if !slices.Equal(a.Pulls, want) {
		m.t.Fatalf("pulls %v, want %v", a.Pulls, want)
	}
	m.pull(a.Pulls)
	for _, i := range a.Requests {
		number := m.x.asks[0].first + schema.Sequence(i)
		if m.answered[number] {
			m.t.Fatalf("request %d is sent again and was answered", number)
		}
		m.request(number)
	}
	m.now = a.Next
	return false
}

// probe is what there is to be pulled when nothing has come for a while, or everything may be lost.
func (m *model) probe(lost bool) (want []Pull) {
	for b := m.completed; b < m.begun && (lost || b == m.completed); b++ {
		for owner, rounds := range m.config.Rounds {
			found := false
			for round, name := range rounds {
				p := place{b, owner, round}
				delete(m.pulled, p)
				if m.missing(p) && (lost || !found) {
					found, m.pulled[p] = true, true
					want = append(want, Pull{owner, b, name})
				}
			}
		}
	}
	return want
}

// Whatever is lost, repeated and reordered: what the exchange says is what the naive model says, and when nothing is
// lost any more all batches are complete and all requests answered.
func TestExchangeAgreesWithModel(t *testing.T) {
	for seed := range uint64(2000) {
		m := &model{t: t, random: rand.New(rand.NewPCG(seed, 1)), claimed: map[part]bool{},
			placed: map[part]bool{}, pulled: map[place]bool{}, asked: map[schema.Sequence]int{},
			answered: map[schema.Sequence]bool{}, losses: 30}
		owners := 1 + m.random.IntN(3)
		m.config = Config{Rounds: make([][]Round, owners), HasRows: make([]bool, owners), Open: 1 + m.random.IntN(3),
			Shared: true,
			Askers: 1, RetryAfter: time.Second}
		for i := range owners {
			m.config.HasRows[i] = m.random.IntN(2) == 0
			for c := range 1 + m.random.IntN(5) {
				m.config.Rounds[i] = append(m.config.Rounds[i], Round{Chunk: schema.Chunk(c)})
			}
		}
		m.x = New(m.config)
		if t.Run("", func(t *testing.T) { m.t = t; m.run() }); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (m *model) run() {
	const batches = 5
	for m.completed < batches {
		for m.begun < batches && m.begun < m.completed+schema.Batch(m.config.Open) {
			m.begin()
		}
		m.ask()
		m.x.Await(0, m.now)
		m.await()
		if m.completed < m.begun {
			m.x.AwaitResults(m.x.Completed(), 0, m.now)
			m.await()
		}
	}
}

// await lets things arrive until what is waited for is there.
func (m *model) await() {
	for steps := 0; !m.wait(); steps++ {
		if steps > 1000 {
			m.t.Fatalf("it has not come after %v, at batch %d", m.now, m.completed)
		}
		for range min(len(m.wire), m.random.IntN(6)) {
			m.arrive()
		}
	}
}
