package trainer

import (
	"slices"
	"testing"
	"time"

	"gradbus/schema"
)

func testGaps(rounds int) *gaps {
	g := &gaps{there: make([]bool, rounds), asked: make([]bool, rounds)}
	for i := range rounds {
		g.rounds = append(g.rounds, roundName{1, schema.Chunk(i)})
	}
	return g
}

func chunks(names []roundName) []int {
	var all []int
	for _, n := range names {
		all = append(all, int(n.chunk))
	}
	return all
}

func checkChunks(t *testing.T, what string, got []roundName, want ...int) {
	t.Helper()
	if !slices.Equal(chunks(got), want) {
		t.Errorf("%s: asks for %v, want %v", what, chunks(got), want)
	}
}

// What is missing before a result is asked for at once, and once; the answer to a pull proves the loss of everything else.
func TestGaps(t *testing.T) {
	g := testGaps(8)
	checkChunks(t, "in order", g.came(0, false))
	checkChunks(t, "1 and 2 are missing", g.came(3, false), 1, 2)
	checkChunks(t, "asked for already", g.came(4, false))
	checkChunks(t, "answer of the one that was missing", g.came(1, true), 5, 6, 7)
	checkChunks(t, "second answer", g.came(2, true))
	checkChunks(t, "nothing came", g.probe(false), 5)
	checkChunks(t, "its answer", g.came(5, true), 6, 7)
	checkChunks(t, "connection lost", g.probe(true), 6, 7)
	checkChunks(t, "the last but one", g.came(6, false))
	checkChunks(t, "the last", g.came(7, false))
	checkChunks(t, "all there", g.probe(true))
	g.reset()
	checkChunks(t, "next batch", g.came(1, false), 0)
}

// Answers are waited for as long as they take, and the wait that is too short every time grows: else a lookup over a long way would be sent
// again for ever, and none be a measure.
func TestAnswerTimes(t *testing.T) {
	a := answerTimes(time.Second)
	want := func(what string, from, to time.Duration) {
		t.Helper()
		if got := a.Timeout(); got < from || got > to {
			t.Errorf("%s: waits %v, want %v to %v", what, got, from, to)
		}
	}
	want("before any answer", 250*time.Millisecond, 250*time.Millisecond)
	a.Late() // 400 ms are too long
	want("after a repetition", 500*time.Millisecond, 500*time.Millisecond)
	a.Took(400 * time.Millisecond)
	want("after 400 ms", 1200*time.Millisecond, 1200*time.Millisecond)
	for range 100 {
		a.Took(time.Millisecond)
	}
	want("after many of 1 ms", answerSlack, answerSlack+2*time.Millisecond)
	for range 20 {
		a.Late()
	}
	want("after none for long", 8*time.Second, 8*time.Second)

	s := &Session{config: Config{RetryAfter: time.Second}, answers: answerTimes(time.Second)}
	for range 100 {
		s.answers.Took(60 * time.Millisecond)
	}
	if got := s.answerTime(); got != 240*time.Millisecond {
		t.Errorf("where answers take 60 ms: waits %v, want four times that", got)
	}
	for range 100 {
		s.answers.Took(400 * time.Millisecond)
	}
	if got := s.answerTime(); got != time.Second {
		t.Errorf("where answers take 400 ms: waits %v, want RetryAfter, which is more than %v", got, s.answers.Timeout())
	}
}

// A module that computes for longer than RetryAfter is not asked twice for ever.
func TestModuleTimes(t *testing.T) {
	m := moduleTimes(time.Second)
	for i, want := range []time.Duration{time.Second, 2 * time.Second} {
		if got := m.Timeout(); got != want {
			t.Errorf("request %d: waits %v, want %v", i+1, got, want)
		}
		if i == 0 {
			m.Late()
		}
	}
	m.Took(1500 * time.Millisecond)
	if got := m.Timeout(); got != 4500*time.Millisecond {
		t.Errorf("after an answer of 1.5 s: waits %v, want that and four times half of it", got)
	}
	for range 100 {
		m.Took(2 * time.Millisecond)
	}
	if got := m.Timeout(); got < time.Second || got > 1010*time.Millisecond {
		t.Errorf("after many of 2 ms: waits %v, want RetryAfter and that", got)
	}
}

// A lookup or pull of the batch under way that comes so late that others have gone on is no reason to end.
func TestLateRepetitionOfTheBatchUnderWay(t *testing.T) {
	s := bareSession(t)
	s.results.begin(17)
	frame, err := schema.EncodeRefusal(schema.Head{Job: 5, Batch: 17}, schema.ReasonStaleBatch, "batch 18 is under way")
	arrives(t, s, "s0", frame, err)
	if s.Err() != nil {
		t.Error(s.Err())
	}
}
