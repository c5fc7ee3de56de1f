package trainer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gradbus/internal/liveness"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// poll waits until a condition holds.
func poll(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, testTimeout)
		}
		time.Sleep(time.Millisecond)
	}
}

// heardAt is when a session has heard the coordinator last.
func heardAt(s *connection) time.Time {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	return s.watch.coordinator.Since()
}

// ago is what has lasted for a time.
func ago(d time.Duration) (s liveness.Silence) {
	s.Begin(time.Now().Add(-d))
	return s
}

// waitForHeartbeats waits until a session has heard the coordinator so many times more.
func waitForHeartbeats(t *testing.T, s *Session, heartbeats int) {
	t.Helper()
	for range heartbeats {
		heard := heardAt(s.connection)
		poll(t, "a heartbeat of the coordinator", func() bool { return heardAt(s.connection).After(heard) })
	}
}

// A session hears the coordinator while nothing else happens, and is heard.
func TestSilentSessionStaysAlive(t *testing.T) { testkit.Waits(t, silentSessionStaysAlive) }

func silentSessionStaysAlive(t *testing.T) {
	server := startServer(t, 1)
	job := toyJob("silent", 1, 1, schema.ApplyUpdate)
	s := joinAll(t, testConfig(t, server), job)[0]
	seen := func() time.Time {
		for _, j := range server.Stats().Jobs {
			if j.Name == job.Name {
				return j.Members[0].Seen
			}
		}
		return time.Time{}
	}
	first := seen()
	waitForHeartbeats(t, s, 2)
	poll(t, "the server to hear the trainer", func() bool { return seen().After(first) })
	if err := s.Run(testContext(t), newToy(t, job), 3, nil); err != nil {
		t.Error(err)
	}
}

// What each kind of silence becomes, without waiting for it.
func TestCheckSilence(t *testing.T) {
	quiet := func() *connection {
		s := &connection{job: toyJob("quiet", 1, 1, schema.ApplyUpdate), joined: schema.Joined{DeadlineMS: 30_000},
			config: Config{Server: "nats://there:1"}.withDefaults(), epoch: time.Now().Add(-time.Minute),
			servers: []*dataServer{{url: "nats://there:1"}, {id: "b", url: "nats://b:2"}}}
		s.watch.coordinator.Silence = ago(0)
		s.batch.Store(17)
		return s
	}
	for _, c := range []struct {
		name string
		make func(*connection)
		says []string
	}{
		{"all is well", func(*connection) {}, nil},
		{"control just lost", func(s *connection) { s.watch.control = ago(29 * time.Second) }, nil},
		{"control lost", func(s *connection) { s.watch.control = ago(31 * time.Second) },
			[]string{"control server nats://there:1", "out of reach for 31s", "deadline 30s", "batch 17"}},
		{"data server just lost", func(s *connection) { s.servers[1].lost = ago(29 * time.Second) }, nil},
		{"data server lost", func(s *connection) { s.servers[1].lost = ago(31 * time.Second) },
			[]string{"ps b at nats://b:2", "out of reach for 31s", "batch 17"}},
		{"coordinator late", func(s *connection) { s.watch.coordinator.Silence = ago(31 * time.Second) }, nil},
		{"coordinator silent", func(s *connection) { s.watch.coordinator.Silence = ago(33 * time.Second) },
			[]string{"coordinator of job quiet", "nats://there:1", "silent for 33s", "deadline 30s", "batch 17"}},
		{"silent because lost", func(s *connection) { s.watch.coordinator.Silence, s.watch.control = ago(time.Hour), ago(0) },
			nil},
		{"disowned behind a control server just lost", func(s *connection) {
			s.watch.control = ago(29 * time.Second)
			s.watch.disowned = ago(2 * time.Second)
		}, []string{"control server nats://there:1", "out of reach for 29s", "deadline 30s", "batch 17"}},
		{"just disowned", func(s *connection) { s.watch.disowned = ago(0) }, nil},
		{"disowned", func(s *connection) { s.watch.disowned = ago(2 * time.Second) },
			[]string{"does not know this run of job quiet", "batch 17"}},
	} {
		s := quiet()
		c.make(s)
		err := s.checkSilence(time.Now())
		if c.says == nil {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		checkError(t, err, ErrServerLost, c.says...)
	}
}

// A server that was started anew at the same address is there, but does not know the job.
func TestServerStartedAnew(t *testing.T) {
	server := startTCP(t, 1)
	p := startProxy(t, server.URL())
	c := testConfig(t, server)
	c.Server = p.url()
	job := toyJob("anew", 1, 1, schema.ApplyUpdate)
	s := joinAll(t, c, job)[0]
	if err := s.Run(testContext(t), newToy(t, job), 2, nil); err != nil {
		t.Fatal(err)
	}
	other := startTCP(t, 1)
	p.redirect(strings.TrimPrefix(other.URL(), "nats://"))
	checkError(t, s.Run(testContext(t), newToy(t, job), 1000, nil), ErrServerLost, p.url(),
		"does not know this run of job anew")
}

// Who leaves a job that the server knows no more, since it was started anew, does not wait for an answer.
func TestLeaveAServerStartedAnew(t *testing.T) {
	server, other := startTCP(t, 1), startTCP(t, 1)
	p := startProxy(t, server.URL())
	c := testConfig(t, server)
	c.Server, c.LeaveWithin = p.url(), testTimeout
	s := joinAll(t, c, toyJob("left", 1, 1, schema.ApplyUpdate))[0]
	p.redirect(strings.TrimPrefix(other.URL(), "nats://"))
	if err := s.Abort(errors.New("enough")); err != nil {
		t.Fatal(err)
	}
}

// A trainer that waits for others where the server is started anew has the place there that its question got it.
func TestServerStartedAnewWhileATrainerWaits(t *testing.T) {
	server, other := startTCP(t, 1), startTCP(t, 1)
	p := startProxy(t, server.URL())
	job := toyJob("waits", 2, 2, schema.ApplyUpdate)
	first, c := testConfig(t, server), testConfig(t, other)
	waits := make(chan int, 10)
	first.Server, first.OnWaiting = p.url(), func(missing int) { waits <- missing }
	sessions, errs := make([]*Session, 2), make([]error, 2)
	var all sync.WaitGroup
	all.Go(func() {
		sessions[0], errs[0] = Join(testContext(t), first, job)
		close(waits)
	})
	<-waits
	p.redirect(strings.TrimPrefix(other.URL(), "nats://"))
	if _, ok := <-waits; !ok {
		t.Fatal(errs[0])
	}
	all.Go(func() { sessions[1], errs[1] = Join(testContext(t), c, job) })
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(runAll(testContext(t), sessions, newToy(t, job), 2)...)
	if err := errors.Join(err, sessions[0].Close(), sessions[1].Close()); err != nil {
		t.Fatal(err)
	}
}

// A process that did not run blames nobody for what it did not hear, and says so where it ends for that all the same.
func TestOwnPauseIsNobodysSilence(t *testing.T) {
	t.Parallel()
	paused := func(by time.Duration) *connection {
		s := &connection{job: toyJob("paused", 1, 1, schema.ApplyUpdate), joined: schema.Joined{DeadlineMS: 30_000},
			config: Config{Server: "nats://there:1"}.withDefaults(), epoch: time.Now().Add(-10 * time.Minute),
			servers: []*dataServer{{id: "b", url: "nats://b:2"}, {}}}
		now := time.Now()
		s.watch.coordinator.Begin(now.Add(-by - time.Second))
		s.servers[0].lost.Begin(now.Add(-by - 2*time.Second))
		s.watch.ticks.Tick(now.Add(-by), s.deadline())
		s.excusePause(now)
		return s
	}
	s := paused(50 * time.Second)
	if err := s.checkSilence(time.Now()); err != nil {
		t.Errorf("after 50 s in which it did not run: %v", err)
	}
	if heard := time.Since(heardAt(s)); heard < time.Second || heard > 30*time.Second {
		t.Errorf("heard %v ago, want 1 s and what this test took", heard)
	}
	if s.servers[1].lost.Lasts() || s.watch.control.Lasts() || s.watch.disowned.Lasts() {
		t.Error("who was there is lost")
	}
	early := paused(0)
	early.watch.ticks = liveness.Ticks{}
	// a word of the coordinator is read before the tick
	early.watch.ticks.Tick(time.Now().Add(-50*time.Second), early.deadline())
	checkError(t, early.withPause(ErrJobFailed), ErrJobFailed, "did not run for 50")
	err := s.withPause(ErrJobFailed)
	checkError(t, err, ErrJobFailed, "did not run for 50s")
	if err := s.withPause(ErrLeft); err != ErrLeft {
		t.Error(err)
	}
	s.watch.paused = ago(2 * time.Minute)
	if err := s.withPause(ErrJobFailed); err != ErrJobFailed {
		t.Errorf("two minutes later: %v", err)
	}
	s = paused(4900 * time.Millisecond) // a busy machine
	if s.watch.paused.Lasts() {
		t.Error("a tick that is late by less than 5 s is a pause")
	}
	s.watch.coordinator.Silence = ago(33 * time.Second)
	s.servers[0].lost.End()
	checkError(t, s.checkSilence(time.Now()), ErrServerLost, "silent for 33s")
}

// A trainer that waits for others and is cut off until its place is free asks anew, also where the job has ended since
// nobody else was there.
func TestWaitingTrainerThatWasCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deadline = 10 * time.Second
		server := startOn(t, bus, ps.Config{Shards: 1, Deadline: deadline})
		c := testConfig(t, server)
		waits := make(chan int, 10)
		c.Bus, c.OnWaiting = bus.Host(), func(missing int) { waits <- missing }
		ctx, cancel := context.WithCancel(testContext(t))
		ended := make(chan error, 1)
		go func() {
			_, err := Join(ctx, c, toyJob("silent", 2, 2, schema.ApplyUpdate))
			ended <- err
		}()
		<-waits
		c.Bus.Cut(true)
		time.Sleep(deadline + 1500*time.Millisecond) // a server looks each second; a trainer waits two longer
		if bytes := server.Stats().Memory; bytes != 0 {
			t.Errorf("%d bytes are held, want that its place is free, and the job has ended", bytes)
		}
		c.Bus.Cut(false)
		select {
		case <-waits:
		case err := <-ended:
			t.Fatalf("%v, want that it waits again", err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it was canceled", err)
		}
	})
}
