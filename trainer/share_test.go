package trainer

import (
	"testing"

	"gradbus/schema"
)

// placedAnswers counts answers that are put in place.
type placedAnswers int

func (c *placedAnswers) take(int, *schema.View) (bool, error) {
	*c++
	return false, nil
}

func (c *placedAnswers) send(*connection, int) error { return nil }

// Of what comes to who has asked for parameters, all that is no answer is left out: of another version or generation,
// which who had the place before has asked for, without values, of no number of frames, and repeated.
func TestAnswersThatAreNone(t *testing.T) {
	s := &share{connection: &connection{joined: schema.Joined{Generation: 3, Version: 7}}, exchange: testExchange()}
	var placed placedAnswers
	s.exchange.ask(resumeAsked, &placed, 1, []int{0}, 0, false)
	for _, c := range []struct {
		what   string
		change func(*schema.Head, *schema.Layout)
		placed placedAnswers
	}{
		{"another version", func(h *schema.Head, _ *schema.Layout) { h.Batch-- }, 0},
		{"another generation", func(h *schema.Head, _ *schema.Layout) { h.Generation-- }, 0},
		{"nothing", func(_ *schema.Head, l *schema.Layout) { l.Values = 0 }, 0},
		{"of no number", func(h *schema.Head, _ *schema.Layout) { h.Chunks = 0 }, 0},
		{"another question", func(h *schema.Head, _ *schema.Layout) { h.Sequence++ }, 0},
		{"the answer", func(*schema.Head, *schema.Layout) {}, 1},
		{"the same again", func(*schema.Head, *schema.Layout) {}, 1},
	} {
		h := schema.Head{Generation: 3, Batch: 7, Chunks: 1, Sequence: 1, Flags: schema.FlagParameters}
		l := schema.Layout{Kind: schema.KindState, Values: 8}
		c.change(&h, &l)
		if err := s.takeResumed(0, viewOf(t, l, h, nil)); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if placed != c.placed {
			t.Errorf("after %s %d answers are placed, want %d", c.what, placed, c.placed)
		}
	}
}
