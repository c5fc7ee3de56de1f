package trainer

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/client"
	"gradbus/ps"
	"gradbus/schema"
)

// operatorOf asks the server of a trainer.
func operatorOf(c Config) *client.Operator {
	return &client.Operator{Server: c.dialConfig(), AnswerWithin: testTimeout}
}

// endsWhenAsked ends a server once somebody wants that, as its command does.
func endsWhenAsked(t *testing.T, s *ps.Server) {
	go func() {
		select {
		case <-s.Asked():
			s.Drain(testContext(t))
			s.Close()
		case <-s.Done():
		}
	}()
}

// A ps that is told to end by somebody who is no trainer makes a last version of its job durable, says so, and is gone
// when that returns. Of two at one control server the one that is named ends; nobody is an id that nobody has.
func TestDrain(t *testing.T) {
	config := ps.Config{ID: "a", Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Every: time.Hour}}
	const token = "the-token-of-peers"
	control := startOn(t, nil, ps.Config{Shards: 1, ControlToken: token})
	second := startOn(t, nil, ps.Config{Shards: 1, ControlToken: token, NATS: control.URL(), ID: "second"})
	endsWhenAsked(t, second)
	ask := operatorOf(testConfig(t, control))
	ask.AnswerWithin = 300 * time.Millisecond
	if _, err := ask.Drain(testContext(t), "nobody"); err == nil ||
		!strings.Contains(err.Error(), control.URL()+": no ps nobody has answered within") {
		t.Errorf("of an id that nobody has: %v", err)
	}
	ask.AnswerWithin = testTimeout
	if _, err := ask.Drain(testContext(t), "second"); err != nil {
		t.Error(err)
	}
	<-second.Done()
	select {
	case <-control.Asked():
		t.Error("the other ps at the control server was asked, too")
	default:
	}

	server := startOn(t, nil, config) // whose last words are heard
	endsWhenAsked(t, server)
	job := toyJob("drained", 1, 2, schema.ApplyUpdate)
	short := testConfig(t, server)
	short.ReconnectTimeout, short.AnswerWithin = time.Second, time.Second
	session := joinAll(t, short, job)[0]
	trained, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		began := false
		ended <- session.Run(testContext(t), newToy(t, job), 1<<40, func(Progress) {
			time.Sleep(10 * time.Millisecond) // so that the pace, by which the last version is chosen, stays
			if !began {
				began = true
				close(trained)
			}
		})
	}()
	<-trained
	last, err := operatorOf(testConfig(t, server)).Drain(testContext(t), "")
	if err != nil {
		t.Fatal(err)
	}
	<-server.Done()
	if err := <-ended; !mayReturn(err) || !session.joined.Durable {
		t.Errorf("the trainer: %v, want that it has waited for the ps to come back", err)
	}
	if !slices.ContainsFunc(last.Jobs, func(d schema.JobProgress) bool {
		return d.Job == job.Name && d.Durable > 0 && d.Durable <= d.Version && d.To == ""
	}) || last.Server != "a" {
		t.Errorf("told at the end: %+v", last)
	}
	if _, err := operatorOf(testConfig(t, server)).Drain(testContext(t), ""); err == nil {
		t.Error("a ps that is gone was drained")
	}
}
