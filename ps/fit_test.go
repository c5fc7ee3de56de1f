package ps

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// A process that must not compute ends its jobs with the reason and takes no others, until it may again.
func TestUnfit(t *testing.T) {
	t.Parallel()
	var unfit atomic.Bool
	s, err := Start(context.Background(), Config{Shards: 1}, Options{Fit: func() error {
		if unfit.Load() {
			return errors.New("GPU 0 has fallen off the bus")
		}
		return nil
	}})
	must(t, err)
	defer s.Close()
	first := gather(t, s, shardtest.New(t, shardtest.SmallJob("first", 1, 1)), "j-a")[0]
	for _, c := range s.Checks() {
		if c.Name == "compute" {
			t.Errorf("a server that is fit has a check %+v", c)
		}
	}
	unfit.Store(true)
	if f := first.failure(); f.Member != s.member || f.Text != "GPU 0 has fallen off the bus" {
		t.Errorf("told %+v, want %s and the GPU", f, s.member)
	}
	second := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("second", 1, 1)), "j-b")
	second.control(schema.Control{Join: &schema.Join{Job: second.p.Job, Host: "test"}})
	if f := second.failure(); f.Text != "GPU 0 has fallen off the bus" {
		t.Errorf("a job that comes later is told %+v", f)
	}
	text := ""
	for _, c := range s.Checks() {
		if c.Name == "compute" && !c.OK {
			text = c.Text
		}
	}
	if !strings.Contains(text, "fallen off") {
		t.Errorf("checks do not say that it is unfit: %q", text)
	}
	unfit.Store(false)
	gather(t, s, shardtest.New(t, shardtest.SmallJob("third", 1, 1)), "j-c")
}
