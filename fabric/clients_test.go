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
	eventually(t, "all are clients", func() bool { return len(s.Clients()) == 20 })
}

// Who asks for the connections waits for none of them, nor for the door, which new ones may keep busy.
func TestClientsDoNotWaitForTheDoor(t *testing.T) {
	s := startServer(t, ServerConfig{Guard: guardOf()})
	dial(t, Config{URL: s.URL(), Name: "guest"})
	eventually(t, "it is a client", func() bool { return len(s.Clients()) == 1 && s.AnonymousBytes() > 0 })
	s.door.mu.Lock()
	defer s.door.mu.Unlock()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if len(s.Clients()) != 1 || len(s.Faded()) != 0 || s.AnonymousBytes() == 0 || s.SlowConsumers() != 0 {
			t.Error("who is connected is not known while the door is busy")
		}
	}()
	select {
	case <-asked:
	case <-guarded(t).Done():
		t.Fatal("it waits for the door")
	}
}
