package local_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gradbus/internal/testkit"
	"gradbus/local"
	"gradbus/philox"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func job(trainers int) *schema.Job {
	return &schema.Job{Name: "j", Trainers: trainers, Lanes: 4,
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{3}, Init: schema.Init{Kind: philox.Zeros}}}}
}

func start(t *testing.T, o local.Options) *local.Shards {
	t.Helper()
	o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := local.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Several trainers of one process join one job, see all its shards, and leave; the name is free then.
func TestTrainersJoin(t *testing.T) {
	s := start(t, local.Options{Shards: 3})
	for range 2 {
		err := s.Run(t.Context(), 3, func(ctx context.Context, _ int, c trainer.Config) error {
			session, err := trainer.Join(ctx, c, job(3))
			if err != nil {
				return err
			}
			if n := session.Shards(); n != 3 {
				t.Errorf("%d shards, want 3", n)
			}
			return session.Close()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The first trainer that fails ends the others, which wait for it otherwise, and its error is that of all.
func TestFailureEndsAll(t *testing.T) {
	s := start(t, local.Options{})
	broken := errors.New("no data")
	err := s.Run(t.Context(), 2, func(ctx context.Context, index int, c trainer.Config) error {
		if index == 1 {
			return broken
		}
		_, err := trainer.Join(ctx, c, job(2))
		return err
	})
	if !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]local.Options{
		"shards 65": {Shards: 65},
		"deadline":  {Adjust: func(c *ps.Config, _ *ps.Options) { c.Deadline = time.Nanosecond }},
	} {
		if _, err := local.Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %s", err, want)
		}
	}
}

// A refusal for want of memory names what the reader of the error can change, and nothing of a server.
func TestRefusalNamesTheSetting(t *testing.T) {
	for setting, want := range map[string]string{"": "raise MemoryBytesMax of local.Options by", "mine": "raise mine by"} {
		s := start(t, local.Options{MemoryBytesMax: 1 << 20, MemorySetting: setting})
		large := job(1)
		large.Parameters[0].Shape = []int{1 << 20}
		_, err := trainer.Join(t.Context(), s.Config(), large)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "server") {
			t.Errorf("%v: want %q, and no server", err, want)
		}
	}
}

// A program cannot choose a name of those that gradbus derives from another job's.
func TestDerivedNamesAreNotChosen(t *testing.T) {
	s := start(t, local.Options{})
	derived := job(1)
	derived.Name = "j--dense"
	if _, err := trainer.Join(t.Context(), s.Config(), derived); !errors.Is(err, trainer.ErrConfig) {
		t.Errorf("%v, want ErrConfig", err)
	}
	config := s.Config()
	config.Derived = true
	session, err := trainer.Join(t.Context(), config, derived)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
}

// A context that ends, ends the shards, whoever is in a job.
func TestEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := local.Start(ctx, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-s.Server().Done()
	s.Close()
	if _, err := trainer.Join(t.Context(), s.Config(), job(1)); err == nil {
		t.Error("joined a job of shards that have ended")
	}
}
