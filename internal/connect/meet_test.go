package connect

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// Trainers of two hosts go on together, and who waits for one that has failed is told.
func TestMeeting(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	c := ps.Default()
	c.Port, c.Shards = 0, 1
	server, err := ps.Start(ctx, c, ps.Options{Backend: backend})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	job := &schema.Job{Name: "apart", Trainers: 2, Policy: schema.PolicyFail, Optimizer: schema.Optimizer{LR: 1},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{4}, Init: schema.Init{Kind: schema.InitZeros}}}}
	var all [2]Meeting
	var joining sync.WaitGroup
	for i := range all {
		joining.Go(func() {
			config := trainer.Config{Server: server.URL(), Backend: backend}
			session, err := trainer.Join(ctx, config, job)
			if err != nil {
				t.Error(err)
			}
			all[i] = Meeting{Config: config, Session: session, Apart: true}
		})
	}
	joining.Wait()
	if t.Failed() {
		return
	}
	for _, occasion := range []string{"first", "second"} {
		met := make(chan error)
		go func() { met <- all[1].Wait(ctx, occasion) }()
		select {
		case err := <-met:
			t.Fatalf("%s: one has met nobody: %v", occasion, err)
		case <-time.After(50 * time.Millisecond): // a defect would have ended the wait; nothing depends on it
		}
		if err := errors.Join(all[0].Wait(ctx, occasion), <-met); err != nil {
			t.Fatal(err)
		}
	}
	if err := (&Meeting{}).Wait(ctx, "alone"); err != nil {
		t.Error(err)
	}
	waits := make(chan error)
	go func() { waits <- all[1].Wait(ctx, "third") }()
	_ = all[0].Session.Abort(errors.New("out of luck"))
	if err := <-waits; !errors.Is(err, trainer.ErrJobFailed) {
		t.Errorf("the other has failed: %v", err)
	}
	_ = all[1].Session.Abort(nil)
}
