package ps

import (
	"encoding/json"
	"testing"

	"gradbus/fabric"
)

// What a ps has announced whose process was seen to end holds no more.
func TestWhoHasEndedIsNotAnnounced(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	s := mustStartFor(t, Config{NATS: control.URL(), ID: "a", Replicas: 1}, longLease)
	servers, _ := buckets(t, control.URL(), longLease)
	value, err := json.Marshal(leaseRecord{ID: "b", Incarnation: 9, URL: "nats://b:1", Shards: 1})
	must(t, err)
	_, err = servers.Put(t.Context(), "b", value)
	must(t, err)
	for _, want := range []int{2, 1} {
		all, err := s.registry.listAll(t.Context())
		if err != nil || len(all) != want {
			t.Errorf("%d ps are announced (%v), want %d", len(all), err, want)
		}
		s.registry.gone(9)
	}
}
