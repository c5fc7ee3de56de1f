package update

import (
	"fmt"
	"time"

	"gradbus/bench/harness"
	"gradbus/schema"
)

// stamped is a line of the log: the time of day and what happened.
func stamped(at time.Time, text string) string { return at.Format("15:04:05") + " " + text }

// serverStream is the stream of lines that the server is told of by every trainer.
const serverStream = "server"

// log says what happens to a trainer, and what its server tells it, in the words of the program that this one stands
// beside. A nil log says nothing.
type log struct {
	member *harness.Member
	name   string
}

// begin tells the driver who will say something.
func (l *log) begin() error {
	if l == nil {
		return nil
	}
	return l.member.Feed("", serverStream)
}

// say says what has just happened to the trainer.
func (l *log) say(what string) {
	if l != nil {
		now := time.Now()
		_ = l.member.SayAt("", now, stamped(now, l.name+" "+what)) // a driver that is gone ends this member anyway
	}
}

// group says what has become of a group, at the time of the server's clock.
func (l *log) group(g schema.Group) {
	if l == nil || g.Start {
		return
	}
	at, text := time.Unix(0, g.AtNS), "PS updated model"
	if !g.Closed {
		text = fmt.Sprintf("PS got %d/%d updates", g.Parked, g.Size)
	}
	_ = l.member.SayAt(serverStream, at, stamped(at, text))
}
