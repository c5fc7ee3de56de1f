package ps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// publisher sends whatever it is told to, under any name; as a peer where the server has any.
type publisher struct {
	t    testing.TB
	conn *fabric.Conn
	mail chan *schema.View // what comes for the name t0
}

func newPublisher(t testing.TB, s *Server, job string) *publisher {
	t.Helper()
	p := &publisher{t: t, mail: make(chan *schema.View, 1000)}
	conn, err := fabric.Dial(context.Background(),
		fabric.Config{URL: s.URL(), Name: "stranger", Token: s.config.ControlToken})
	must(t, err)
	p.conn = conn
	t.Cleanup(conn.Close)
	must(t, conn.Subscribe(fabric.Pattern(job, fabric.Any, fabric.KindCtl, "t0", false), func(m fabric.Message) {
		v, err := schema.Verify(m.Data, schema.Limits{})
		if err != nil {
			t.Errorf("%s: %v", m.Text(), err)
			return
		}
		p.mail <- &v
	}))
	return p
}

func (p *publisher) send(subject string, data []byte) {
	p.t.Helper()
	must(p.t, p.conn.Publish(subject, data))
}

// Whatever arrives that is no proper frame is refused, counted by reason, told to its sender, and changes nothing: the
// job beside it goes on to the right result.
func TestServerRefusesDamagedFrames(t *testing.T) {
	s := startServer(t, Config{Shards: 1})
	p := shardtest.New(t, shardtest.SmallJob("victim", 1, 2))
	m := newMiniTrainer(t, s, p, "j-a")
	m.join()
	m.start()
	m.batch(0)
	hostile := newPublisher(t, s, "victim")
	whole := p.Frames(t, m.place, m.joined.RunID, 1, lane.Node{First: 0, Count: 2})[0].Frame.Seal()
	dense := fabric.At("victim", "t0", fabric.KindDense, "s0").WithBucket(1, 0).String()
	numbered := bytes.Clone(whole)
	schema.SetSequence(numbered, m.seq[0]+1)
	flip := func(at int) []byte {
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		return b
	}
	for _, c := range []struct {
		name, subject string
		data          []byte
		want          schema.Reason
	}{
		{"nothing", dense, nil, schema.ReasonMalformed},
		{"a text", dense, []byte("hello"), schema.ReasonMalformed},
		{"a cut frame", dense, whole[:len(whole)/2], schema.ReasonDamaged},
		{"a frame cut by one byte", dense, whole[:len(whole)-1], schema.ReasonDamaged},
		{"a cut head", dense, whole[:60], schema.ReasonMalformed},
		{"a flipped value", dense, flip(len(whole) - 5), schema.ReasonDamaged},
		{"a flipped weight", dense, flip(32 + 48), schema.ReasonDamaged},
		{"a frame on another kind's subject", fabric.At("victim", "t0", fabric.KindLookup, "s0").WithBatch(1).String(),
			numbered, schema.ReasonMalformed},
		{"a dense frame as control", fabric.At("victim", "t0", fabric.KindCtl, "coordinator").String(), whole,
			schema.ReasonMalformed},
		{"a frame of no job", fabric.At("nobody", "t0", fabric.KindDense, "s0").WithBucket(1, 0).String(), whole,
			schema.ReasonJobUnknown},
		{"a frame without a number", dense, whole, schema.ReasonMalformed},
	} {
		before := s.Stats().Reasons[c.want]
		hostile.send(c.subject, c.data)
		eventually(t, c.name+" is counted", func() bool { return s.Stats().Reasons[c.want] == before+1 })
		if strings.HasPrefix(c.subject, "gradbus.v1.victim.") {
			if r := refusalFor(t, hostile.mail); r.Reason != c.want.String() || r.Text == "" {
				t.Errorf("%s: told %q (%s), want %v", c.name, r.Reason, r.Text, c.want)
			}
			refusalFor(t, m.mail)
		}
	}
	before := s.Stats().Reasons[schema.ReasonMalformed]
	hostile.send("gradbus.v1.victim.t0.beat.all", []byte("{}"))
	eventually(t, "a damaged heartbeat is counted",
		func() bool { return s.Stats().Reasons[schema.ReasonMalformed] == before+1 })
	refusalFor(t, m.mail)
	if err := hostile.conn.Publish(dense, make([]byte, 9<<20)); !errors.Is(err, fabric.ErrPayload) {
		t.Errorf("9 MiB: %v, want %v", err, fabric.ErrPayload)
	}

	want := p.Model(t)
	for b := range schema.Batch(3) {
		want.Step(t, b)
		if b > 0 {
			m.batch(b)
		}
	}
	if d := shardtest.FirstDifference(m.params[0], want.Params[0]); d != "" {
		t.Errorf("parameter %s: %s", p.Job.Parameters[0].Name, d)
	}
	m.leave("")
}

// refusalFor waits for the next refusal, letting control messages pass.
func refusalFor(t testing.TB, mail chan *schema.View) schema.Refusal {
	t.Helper()
	m := &miniTrainer{t: t, joiner: "refused", mail: mail, p: &shardtest.Problem{Job: &schema.Job{}}}
	for {
		v := m.message()
		if v.Head().Kind == schema.KindRefusal {
			r, err := schema.DecodeRefusal(v)
			must(t, err)
			return r
		}
	}
}

// Random bytes, and frames with random damage, on every subject: the server stays, and answers no more than its limit.
func TestServerSurvivesNoise(t *testing.T) {
	const seed, messages = 11, 3000
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	s := startServer(t, Config{Shards: 2})
	p := shardtest.New(t, shardtest.SmallJob("noise", 1, 2))
	m := newMiniTrainer(t, s, p, "j-a")
	m.join()
	m.start()
	hostile := newPublisher(t, s, "noise")
	frames := p.Frames(t, m.place, m.joined.RunID, 0, lane.Node{First: 0, Count: 2})
	kinds := []string{fabric.KindDense, fabric.KindSparse, fabric.KindMean, fabric.KindLookup, fabric.KindRows,
		fabric.KindPull,
		fabric.KindAck, fabric.KindCtl, fabric.KindHeartbeat, "reduce", "module"}
	targets := []string{"s0", "s1", "all", "coordinator"}
	for range messages {
		data := bytes.Clone(frames[r.IntN(len(frames))].Frame.Seal())
		for range 1 + r.IntN(4) {
			data[r.IntN(len(data))] = byte(r.Uint32())
		}
		if r.IntN(4) == 0 {
			data = data[:r.IntN(len(data))]
		}
		at := fabric.At("noise", fmt.Sprintf("t%d", 1+r.IntN(3)), kinds[r.IntN(len(kinds))], targets[r.IntN(len(targets))])
		if bucket := r.IntN(2) == 0; at.Kind == fabric.KindModule {
			at.Name = "m"
		} else if bucket {
			at = at.WithBucket(r.Uint64N(3), uint32(r.IntN(4)))
		}
		hostile.send(at.String(), data)
	}
	m.batch(0)
	m.batch(1)
	eventually(t, "a quarter of the damaged messages is refused", func() bool {
		var refused uint64
		for reason, n := range s.Stats().Reasons {
			if schema.Reason(reason) != schema.ReasonOK {
				refused += n
			}
		}
		return refused >= messages/4
	})
	m.leave("")
}

// A trainer's frames that come twice count once, and its acks say what has come.
func TestServerAcknowledges(t *testing.T) {
	s := startServer(t, Config{Shards: 1})
	p := shardtest.New(t, shardtest.SmallJob("acks", 1, 1))
	m := newMiniTrainer(t, s, p, "j-a")
	m.join()
	m.start()
	acks := make(chan schema.Ack, 1000)
	must(t, m.conn.Subscribe(fabric.Pattern("acks", "s0", fabric.KindAck, "t0", false), func(msg fabric.Message) {
		v, err := schema.Verify(msg.Data, schema.Limits{})
		if err != nil {
			t.Error(err)
			return
		}
		a, _ := v.Ack()
		acks <- a
	}))
	contributions := p.Frames(t, m.place, m.joined.RunID, 0, lane.Root(1))
	bytes := 0
	for i, c := range contributions {
		subject := fabric.At("acks", "t0", kindToken(c.Kind), "s0").WithBucket(0, uint32(c.Bucket)).String()
		c.Frame.SetSequence(schema.Sequence(i + 1))
		bytes += c.Frame.Bytes()
		must(t, m.conn.Publish(subject, c.Frame.Seal()))
		must(t, m.conn.Publish(subject, c.Frame.Seal()))
	}
	m.results(0)
	share := uint64(s.config.StagedBytesMax)
	eventually(t, "everything is acknowledged and given back", func() bool {
		select {
		case a := <-acks:
			return a.Cumulative == uint64(len(contributions)) && a.Window == uint64(bytes)+share
		default:
			return false
		}
	})
	eventually(t, "each repetition is counted", func() bool {
		return s.Stats().Reasons[schema.ReasonDuplicate] == uint64(len(contributions))
	})
	// A repetition that comes when its batch is over is still only a repetition.
	m.seq[0] = schema.Sequence(len(contributions))
	m.batch(1)
	c := contributions[0]
	must(t, m.conn.Publish(fabric.At("acks", "t0", kindToken(c.Kind), "s0").WithBucket(0, uint32(c.Bucket)).String(),
		c.Frame.Seal()))
	eventually(t, "the late repetition is counted", func() bool {
		return s.Stats().Reasons[schema.ReasonDuplicate] == uint64(len(contributions))+1
	})
	if r := s.Stats().Reasons; r[schema.ReasonStaleBatch] != 0 {
		t.Errorf("a repetition was refused: %v", r)
	}
	m.leave("")
}

// What a stranger sends that is no frame fills no log.
func TestDamagedFramesFillNoLog(t *testing.T) {
	log := &testkit.Text{}
	s, err := Start(context.Background(), Config{Shards: 1, Deadline: unhurried},
		Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	must(t, err)
	t.Cleanup(s.Close)
	hostile := newPublisher(t, s, "victim")
	began := time.Now()
	const frames = 30_000
	subject := fabric.At("victim", "t0", fabric.KindDense, "s0").WithBucket(1, 0).String()
	for n := range uint64(frames) {
		hostile.send(subject, []byte("0123456789"))
		if n%1000 == 999 { // no faster than they are counted, so that none is lost
			eventually(t, "all are counted", func() bool {
				counted := uint64(0)
				for _, c := range s.Stats().Reasons {
					counted += c
				}
				return counted > n
			})
		}
	}
	told, most := strings.Count(log.String(), "frame refused"), 100+int(time.Since(began)/time.Second)+1
	if told == 0 || told > most {
		t.Errorf("%d lines of %d frames, want at most %d and at least 1", told, frames, most)
	}
}
