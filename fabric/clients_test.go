package fabric

import (
	"fmt"
	"sync"
	"testing"
)

// Who asks for the connections and who lets new ones in do not meet: the race detector holds that.
func TestClientsWhileConnecting(t *testing.T) {
	s := startServer(t, ServerConfig{Guard: guardOf()})
	ctx := guarded(t)
	done := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				s.Clients()
			}
		}
	})
	for i := range 20 {
		c, err := Dial(ctx, Config{URL: s.URL(), Name: fmt.Sprint("guest-", i)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	close(done)
	asking.Wait()
	if got := s.Clients(); len(got) != 20 {
		t.Errorf("clients %v, want 20", got)
	}
}
