package fabric

import (
	"testing"
)

// Who asks for the connections waits for none of them, nor for the callout, which new ones may keep busy.
func TestClientsDoNotWaitForTheCallout(t *testing.T) {
	s := startServer(t, ServerConfig{Guard: guardOf()})
	dial(t, Config{URL: s.URL(), Name: "guest"})
	eventually(t, "it is a client", func() bool { return len(s.Clients()) == 1 && s.AnonymousBytes() > 0 })
	s.callout.mu.Lock()
	defer s.callout.mu.Unlock()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if len(s.Clients()) != 1 || len(s.Faded()) != 0 || s.AnonymousBytes() == 0 || s.SlowConsumers() != 0 {
			t.Error("who is connected is not known while the callout is busy")
		}
	}()
	select {
	case <-asked:
	case <-guarded(t).Done():
		t.Fatal("it waits for the callout")
	}
}
