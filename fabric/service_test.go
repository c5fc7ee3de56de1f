package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// What nats micro ls, info and stats ask, asked by a plain client: a service is found with all that it says of itself
// while its connection lasts, after a restart of the server too, and not after Close.
func TestServiceIsFound(t *testing.T) {
	server := startServer(t, ServerConfig{JetStream: true})
	var answer atomic.Pointer[[]byte]
	c := dialControl(t, Config{URL: server.URL(), Name: "ps/a"})
	if err := c.Service(ServiceConfig{Name: "gradbus-ps", Version: "0.1.0", Description: "a server",
		Metadata: map[string]string{"id": "a"}, Endpoint: "status", Subject: "gradbus-ps.a.status",
		Answer: func() []byte {
			if p := answer.Load(); p != nil {
				return *p
			}
			return nil
		}}); err != nil {
		t.Fatal(err)
	}
	plain, err := nats.Connect(server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	ask := func(subject string, to any) {
		t.Helper()
		ctx := guarded(t)
		m, err := plain.RequestWithContext(ctx, subject, nil)
		// until the server has read the other connection's subscriptions
		for errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil {
			m, err = plain.RequestWithContext(ctx, subject, nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		if err := json.Unmarshal(m.Data, to); err != nil {
			t.Fatalf("%s: %v in %s", subject, err, m.Data)
		}
	}
	var nothing any = 1
	if ask("gradbus-ps.a.status", &nothing); nothing != nil {
		t.Errorf("before there is an answer: %v", nothing)
	}
	data := []byte(`{"shards":[{"job":"demo","version":7}]}`)
	answer.Store(&data)
	check := func() {
		t.Helper()
		var ping micro.Ping
		ask("$SRV.PING", &ping)
		if ping.Name != "gradbus-ps" || ping.Version != "0.1.0" || ping.Metadata["id"] != "a" {
			t.Errorf("ping: %+v", ping)
		}
		var info micro.Info
		ask("$SRV.INFO.gradbus-ps", &info)
		if len(info.Endpoints) != 1 || info.Endpoints[0].Subject != "gradbus-ps.a.status" || info.Description != "a server" {
			t.Errorf("info: %+v", info)
		}
		var stats micro.Stats
		ask("$SRV.STATS.gradbus-ps."+ping.ID, &stats)
		if len(stats.Endpoints) != 1 || string(stats.Endpoints[0].Data) != string(data) {
			t.Errorf("stats: %+v", stats)
		}
	}
	check()
	server.Stop()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, plain, nil)
	check()
	c.Close()
	until(t, plain, nats.ErrNoResponders) // once the server has seen it
}

// A question is answered at an inbox of a client's alone: the connection may write where the asker may not, and
// JetStream answers at the inboxes of members.
func TestServiceAnswersInboxesAlone(t *testing.T) {
	server := startServer(t, ServerConfig{JetStream: true})
	c := dialControl(t, Config{URL: server.URL(), Name: "ps/a", Log: discard()})
	lease, err := c.OpenBucket(t.Context(), BucketConfig{Name: "leases", BytesMax: 1 << 10})
	must(t, err)
	revision, err := lease.Put(t.Context(), "a", []byte("mine"))
	must(t, err)
	must(t, c.Service(ServiceConfig{Name: "gradbus-ps", Version: "0.1.0", Endpoint: "status",
		Subject: "gradbus-ps.a.status", Answer: func() []byte { return nil }}))
	plain, err := nats.Connect(server.URL())
	must(t, err)
	defer plain.Close()
	heard, err := plain.SubscribeSync(">")
	must(t, err)
	mine := c.nats.nats.NewInbox()
	for _, subject := range []string{"$SRV.PING", "$SRV.INFO.gradbus-ps", "$SRV.STATS", "gradbus-ps.a.status"} {
		for _, reply := range []string{"$KV.leases.a", "$JS.API.STREAM.DELETE.KV_leases", "gradbus.v1.job.s0.mean.all",
			"_INBOX", mine} {
			must(t, plain.PublishRequest(subject, reply, nil))
		}
		_, err := plain.RequestWithContext(guarded(t), subject, nil) // which is answered after those before it
		must(t, err)
	}
	must(t, c.Flush(t.Context()))
	must(t, plain.FlushWithContext(guarded(t)))
	for n, err := heard.NextMsg(0); err == nil; n, err = heard.NextMsg(0) {
		if n.Reply == "" && !strings.HasPrefix(n.Subject, inboxPrefix) || strings.HasPrefix(n.Subject, mine) {
			t.Errorf("said to %s: %s", n.Subject, n.Data)
		}
	}
	if e, err := lease.Get(t.Context(), "a"); err != nil || e.Revision != revision || string(e.Value) != "mine" {
		t.Errorf("%+v, %v, want what was written before", e, err)
	}
}

// until asks whether anybody is there, until that gives an error, or none.
func until(t *testing.T, plain *nats.Conn, want error) {
	t.Helper()
	for deadline := time.Now().Add(guard); ; {
		// for one that is lost; where nobody is there that is said at once
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := plain.RequestWithContext(ctx, "$SRV.PING", nil)
		cancel()
		if errors.Is(err, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %v, want %v", err, want)
		}
	}
}
