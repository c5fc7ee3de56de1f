package fabric

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// clocked is a recorder that is told the time every 10 ms, in a bubble, and notes when it sent which frame again.
type clocked struct {
	*recorder
	t     *testing.T
	began time.Time
	again [][2]int // milliseconds, number
}

func newClocked(t *testing.T, config OutboxConfig) *clocked {
	return &clocked{recorder: newRecorder(config), t: t, began: time.Now()}
}

// until goes on to a time in milliseconds.
func (c *clocked) until(ms int) {
	c.sent = nil
	for time.Since(c.began) < time.Duration(ms)*time.Millisecond {
		if err := c.Tick(time.Now()); err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait() // for a sender that was let go
		for _, n := range c.sent {
			c.again = append(c.again, [2]int{int(time.Since(c.began) / time.Millisecond), int(n)})
		}
		c.sent = nil
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *clocked) want(what string, again ...[2]int) {
	c.t.Helper()
	if !slices.Equal(c.again, again) {
		c.t.Errorf("%s: sent again %v (ms, frame), want %v", what, c.again, again)
	}
	c.again = nil
}

// Where nothing is heard the newest is sent again, then the oldest, and so on, after twice the time each time.
func TestOutboxTimeoutBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{resendAfter: 100 * time.Millisecond, resendMax: 300 * time.Millisecond})
		c.send(t, 3, 8)
		c.until(700)
		c.want("no ack", [2]int{100, 3}, [2]int{300, 1}, [2]int{600, 3})
		c.ack(t, 1, 0) // it was sent again: how long its ack took is not known, and the wait stays
		c.until(1400)
		c.want("progress", [2]int{1000, 3}, [2]int{1300, 2})
		c.ack(t, 3, 0)
		c.until(3000)
		c.want("idle")
		c.send(t, 1, 8)
		c.until(3040)
		c.ack(t, 4, 0) // a measure: 40 ms. The wait is 40 + 4*20 + 30 ms from now on
		c.send(t, 1, 8)
		c.until(3300)
		c.want("measured", [2]int{3190, 5})
	})
}

// The ack of the newest condemns what left before it and is missing, in one go.
func TestOutboxLostTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{})
		c.send(t, 5, 8)
		c.ack(t, 1, 0) // at once: the wait is a little above 50 ms
		c.until(120)
		c.want("2 to 5 are lost", [2]int{60, 5})
		c.sent = nil
		c.ack(t, 1, 0b1000)
		c.recorder.want(t, "5 is there", 2, 3, 4)
	})
}

// What there is no credit for is not sent again in place of what the receiver waits for.
func TestOutboxTimeoutWithinCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{BytesMax: 24})
		c.send(t, 3, 8)
		if err := c.Ack(Ack{Cumulative: 1, Window: 24}); err != nil {
			t.Fatal(err)
		}
		c.credit = 16 // as after a probe for lost credit
		c.until(250)
		c.want("3 went beyond the credit", [2]int{60, 2}, [2]int{170, 2})
	})
}

// A process that was kept from running finds acks to be read: what is overdue then waits for the next Tick.
func TestOutboxLateTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{resendAfter: 100 * time.Millisecond})
		c.send(t, 2, 8)
		c.until(50)
		time.Sleep(300 * time.Millisecond)
		c.until(360)
		c.want("held up")
		c.ack(t, 2, 0)
		c.until(500)
		c.want("the ack was there")
	})
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{resendAfter: 100 * time.Millisecond})
		c.send(t, 2, 8)
		c.until(50)
		time.Sleep(300 * time.Millisecond)
		c.until(400)
		c.want("no ack was", [2]int{360, 2})
	})
}

// A frame that there was no credit for is not overdue when it has just left.
func TestOutboxCreditStartsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{BytesMax: 8})
		c.send(t, 1, 8)
		c.ack(t, 1, 0)
		b := sendInBackground(t.Context(), c.recorder, 8)
		b.waits(t, "no credit", true)
		c.until(40)
		if err := c.Ack(Ack{Cumulative: 1, Window: 16}); err != nil {
			t.Fatal(err)
		}
		b.waits(t, "credit", false)
		c.until(150)
		c.want("overdue when 50 ms have passed since it left", [2]int{100, 2})
	})
}

// What was sent beyond the credit waited for room, however long, and not for an ack: when there is room the wait is
// short again.
func TestOutboxCreditEndsDoubling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{BytesMax: 8})
		c.send(t, 1, 8)
		c.ack(t, 1, 0) // at once: the wait is a little above 50 ms
		b := sendInBackground(t.Context(), c.recorder, 8)
		b.waits(t, "no credit", true)
		c.until(1000)
		b.waits(t, "probe", false)
		c.sent, c.again = nil, nil
		if err := c.Ack(Ack{Cumulative: 1, Window: 16}); err != nil {
			t.Fatal(err)
		}
		c.recorder.want(t, "room", 2)
		c.until(1070)
		c.want("lost", [2]int{1060, 2})
	})
}

// A window that is lost whole, and once more when the connection is back, is through after few round trips; nothing of
// it is sent a third time but what was sent first.
func TestOutboxWholeWindowLostTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{resendAfter: 100 * time.Millisecond})
		c.send(t, SpanMax, 8)
		if err := c.ResendAll(); err != nil {
			t.Fatal(err)
		}
		c.until(90)
		c.want("not yet overdue")
		var inbox Inbox
		rounds, sent := 0, 0
		for c.sent = nil; inbox.cumulative < SpanMax; rounds++ {
			c.until(100 + 40*rounds + 10) // less than the wait
			arrived := c.again
			for c.again = nil; len(arrived) > 0; arrived = arrived[1:] {
				sent++
				inbox.Accept(uint64(arrived[0][1]))
			}
			c.sent = nil
			if err := c.Ack(inbox.Ack()); err != nil {
				t.Fatal(err)
			}
			for _, n := range c.sent {
				c.again = append(c.again, [2]int{0, int(n)})
			}
			if rounds > 12 {
				t.Fatalf("%d of %d are through after %d rounds", inbox.cumulative, SpanMax, rounds)
			}
		}
		if sent != SpanMax {
			t.Errorf("%d frames were sent again, want each once", sent)
		}
	})
}

// Where answers are late and nothing is lost, what was on the way is not sent again for the answer of one.
func TestOutboxLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t, OutboxConfig{resendAfter: 100 * time.Millisecond})
		c.send(t, 10, 8)
		c.until(110)
		c.want("overdue", [2]int{100, 10})
		c.sent = nil
		c.ack(t, 2, 0)
		c.recorder.want(t, "1 and 2 are there, which were sent once")
		c.ack(t, 2, 0b10000000)
		c.recorder.want(t, "10 is there, the first or the second time: 3 to 9 left before", 3, 4, 5, 6, 7, 8, 9)
	})
}
