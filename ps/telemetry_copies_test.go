package ps

import (
	"slices"
	"strings"
	"testing"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/schema"
)

// A ps tells which others keep the shards of its job, and those what they keep of it: while they do, when one ends, and
// when one has no room.
func TestPeersAreTold(t *testing.T) { testkit.Waits(t, peersAreTold) }

func peersAreTold(t *testing.T) {
	peer := Config{ID: "a", Shards: 2, Replicas: 1, NATS: startControl(t, fabric.ServerConfig{}).URL()}
	s, l := startWatched(t, peer)
	m, stop, told := trainKept(t, s, l)
	alone := func(p *schema.ReplicaReport) bool { return p.Off == "" && len(p.Kept) == 0 && p.UnreadyMS > 0 }
	if p := told("that nobody else is there", alone); p.Failure != "ps a alone is there with --replicas 1" {
		t.Errorf("%+v", p)
	}

	peer.ID = "b"
	b, lb := startWatched(t, peer)
	first := told("who keeps shards", func(p *schema.ReplicaReport) bool { return p.Ready && p.Bytes > 0 })
	if !first.Peers || first.Version == 0 || first.ToldMS == 0 || first.Off+first.Failure != "" || first.UnreadyMS != 0 ||
		len(first.Kept) != 1 || !slices.Equal(first.Kept[0].Of, []string{"a"}) || first.Kept[0].Version < first.Version {
		t.Errorf("%+v", first)
	}
	told("a later version", func(p *schema.ReplicaReport) bool {
		return p.Ready && p.Version > first.Version && p.Bytes > first.Bytes
	})
	held := lb.own(b, "what it keeps", func(p *schema.ServerReport) bool {
		return p.Primary != nil && len(p.Primary.Jobs) == 1 && p.Primary.Jobs[0].Version > 0
	})
	if h := held.Primary; !h.Peers || !h.Reached || h.URL != "" || h.Jobs[0].Job != "kept" ||
		h.Jobs[0].RunID != m.joined.RunID || !slices.Equal(h.Jobs[0].Of, []string{"a"}) {
		t.Errorf("%+v", h)
	}
	l.own(s, "that it keeps nothing of others", func(p *schema.ServerReport) bool {
		return p.Primary != nil && p.Primary.Peers && len(p.Primary.Jobs) == 0
	})

	b.Close()
	if gone := told("that it has ended", alone); gone.Ready || gone.Version != 0 || gone.Bytes < first.Bytes {
		t.Errorf("%+v", gone)
	}
	peer.ID, peer.MemoryBytesMax = "c", 1<<20
	small, lc := startWatched(t, peer)
	told("that there is no room", func(p *schema.ReplicaReport) bool {
		return !p.Ready && strings.HasPrefix(p.Failure, "ps c: ") && strings.Contains(p.Failure, " are free") &&
			p.UnreadyMS > 0
	})
	lc.own(small, "what there is no room for", func(p *schema.ServerReport) bool {
		return len(p.Primary.Jobs) == 1 && strings.Contains(p.Primary.Jobs[0].Failure, " are free")
	})
	stop()
	m.leave("")
	l.own(s, "the end of the job", func(p *schema.ServerReport) bool {
		return len(p.Jobs) == 1 && p.Jobs[0].Phase == schema.PhaseEnded && p.Jobs[0].Replica == nil
	})
}
