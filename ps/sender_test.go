package ps

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// A control server that takes nothing holds nobody up who has something to say: what there is no room for is dropped
// and counted, the rest is sent in its order when it goes on.
func TestSenderNeverWaits(t *testing.T) {
	var dropped atomic.Uint64
	stuck, sent := make(chan struct{}), make(chan string, 2*sendsMax)
	s := newSender(func(at fabric.Subject, _ []byte) { <-stuck; sent <- at.To }, &dropped)
	const more = 100
	for i := range sendsMax + more {
		must(t, s.Send(fabric.At("job", "coordinator", fabric.KindCtl, fmt.Sprint("t", i)), make([]byte, 8)))
	}
	large := make([]byte, sendBytesMax)
	must(t, s.Send(fabric.At("job", "coordinator", fabric.KindCtl, "large"), large))
	if n := dropped.Load(); n < more || n > more+1 { // one may be on its way
		t.Errorf("%d were dropped, want %d or one more", n, more)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.end(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the end of a sender that is stuck: %v", err)
	}
	close(stuck)
	<-s.done
	close(sent)
	next := 0
	for to := range sent {
		if want := fmt.Sprint("t", next); to != want {
			t.Fatalf("%s was sent, want %s", to, want)
		}
		next++
	}
	if next+int(dropped.Load()) != sendsMax+more+1 {
		t.Errorf("%d were sent and %d dropped, of %d", next, dropped.Load(), sendsMax+more+1)
	}
}

// A job whose shards cannot be listened at, because dialing hangs, holds no other job up: joins are answered, and a
// release of the first is heard and carried out.
func TestDialingThatHangsHoldsNobodyUp(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	hangs := make(chan struct{}, 8)
	s, err := Start(context.Background(), Config{NATS: control.URL(), ID: "a", Deadline: unhurried}, Options{
		Bus: network(t), lease: longLease, dialing: func(ctx context.Context, shard int) error {
			if shard < 40 {
				return nil
			}
			hangs <- struct{}{}
			select {
			case <-ctx.Done():
			case <-t.Context().Done():
			}
			return errors.New("given up")
		}})
	must(t, err)
	t.Cleanup(s.Close)
	_, jobs := buckets(t, control.URL(), longLease)
	f := newForger(t, control, s)
	others := schema.DataServer{ID: "other"}
	for i := range 40 {
		others.Shards = append(others.Shards, i)
	}
	wide := shardtest.SmallJob("wide", 1, 1)
	record(t, jobs, 7, wide, others, schema.DataServer{ID: "a", Shards: []int{40, 41}})
	f.assign(7, &schema.Assign{Job: wide, Shards: 42, Own: []int{40, 41}})
	eventually(t, "its shards are dialed", func() bool { return len(hangs) == 2 })
	eventually(t, "its run is here", func() bool { return s.runHere("wide") == 7 })
	c := newControlClient(t, control.URL(), shardtest.SmallJob("beside", 1, 1), "j-a")
	if joined := c.join(); joined.Member != "t0" {
		t.Errorf("joined as %q", joined.Member)
	}
	frame, err := schema.EncodeControl(schema.Head{Job: 7, Generation: generationFirst},
		schema.Control{Ended: &schema.Ended{End: schema.EndCompleted}})
	must(t, err)
	must(t, f.conn.Send(fabric.At("wide", string(schema.Coordinator), fabric.KindCtl, string(s.member)), frame))
	eventually(t, "the job is released", func() bool { return s.runHere("wide") == 0 && len(s.Stats().Jobs) == 1 })
	eventually(t, "what it was promised is free", func() bool { return s.Stats().Memory == JobBytes(s.config, c.job, 1) })
}
