package ps

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/ps/coordinator"
	"gradbus/shard/shardtest"
)

// putRival writes a lease record of ps a in another's name.
func putRival(t testing.TB, servers *fabric.Bucket) {
	t.Helper()
	text, err := json.Marshal(leaseRecord{ID: "a", Incarnation: 1, URL: "nats://there:1", Shards: 1, Host: "there"})
	must(t, err)
	_, err = servers.Put(context.Background(), "a", text)
	must(t, err)
}

// A ps that finds its id taken, because it was out of reach for longer than its lease, ends and says why: the other one
// lives, and writes its lease record again.
func TestServerWhoseIDWasTakenEnds(t *testing.T) { testkit.Waits(t, serverWhoseIDWasTakenEnds) }

func serverWhoseIDWasTakenEnds(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	s := mustStart(t, Config{NATS: control.URL(), ID: "a"})
	servers, _ := buckets(t, control.URL(), leaseTime)
	eventually(t, "it ends", func() bool {
		putRival(t, servers)
		select {
		case <-s.Done():
			return true
		default:
			return false
		}
	})
	if !errors.Is(s.Err(), errTaken) || !strings.Contains(s.Err().Error(), "there") {
		t.Errorf("%v, want who has taken the id", s.Err())
	}
}

// One lease record in a ps's place that nobody renews ends neither that ps nor its jobs: it is written again.
func TestServerOutlivesALeaseRecordInItsPlace(t *testing.T) {
	testkit.Waits(t, serverOutlivesALeaseRecordInItsPlace)
}

func serverOutlivesALeaseRecordInItsPlace(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	s := mustStart(t, Config{NATS: control.URL(), ID: "a"})
	c := newControlClient(t, control.URL(), shardtest.SmallJob("goes-on", 1, 1), "j-a")
	joined := c.join()
	servers, _ := buckets(t, control.URL(), leaseTime)
	putRival(t, servers)
	eventually(t, "its lease record is its own again", func() bool {
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		e, err := servers.Get(context.Background(), "a")
		var there leaseRecord
		return err == nil && json.Unmarshal(e.Value, &there) == nil && there.Incarnation == s.registry.self.Incarnation
	})
	if stats := s.Stats(); len(stats.Jobs) != 1 || stats.Jobs[0].State == coordinator.Ending.String() ||
		s.runHere("goes-on") != joined.RunID {
		t.Errorf("jobs %+v, want that the one goes on", stats.Jobs)
	}
}
