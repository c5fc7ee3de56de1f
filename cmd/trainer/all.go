package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"gradbus/internal/config"
	"gradbus/schema"
	"gradbus/trainer/report"
	"gradbus/trainer/settings"
	"gradbus/trainer/spawn"
)

// What a started trainer writes, as the value of --events.
const (
	eventsAll    = "all"
	eventsResult = "result" // no progress: one trainer's is enough
)

// patience is time enough for the server to find out which trainer was killed, and for the others to hear of it: were they asked to end
// at once, one of them would be named in its place.
const patience = 15 * time.Second

// trainAll starts every trainer of the job of s as a process, the i-th with the flags args(i), and adds up their results.
func (o *common) trainAll(ctx context.Context, s *settings.Shared, args func(i int) []string) (report.Result, error) {
	if o.id != "" {
		return report.Result{}, fmt.Errorf("--id %s names one trainer, --spawn starts all: give one of the two", o.id)
	}
	self, err := os.Executable()
	if err != nil {
		return report.Result{}, fmt.Errorf("find this program: %w", err)
	}
	show := newShower(o)
	results := make([]report.Result, s.Trainers)
	trained := make([]bool, s.Trainers)
	processes := make([]spawn.Process, s.Trainers)
	for i := range processes {
		name := fmt.Sprintf("t%d", i)
		relay := config.Relay{To: o.log.With("member", name).Handler(), Least: slog.LevelWarn}
		processes[i] = spawn.Process{Name: name, Path: self, Args: args(i), OnLog: relay.Line, Alone: func() bool { return trained[i] }, OnLine: func(line []byte) {
			e, err := report.ParseEvent(line)
			switch {
			case err != nil:
				o.log.Warn("not an event", "member", name, "err", err)
			case e.Progress != nil:
				show.Show(*e.Progress)
			case e.Trained:
				trained[i] = true
			case e.Result != nil:
				results[i] = *e.Result
			}
		}}
	}
	err = spawn.Group{Patience: patience}.Run(ctx, processes)
	show.End()
	if err != nil {
		var failed *spawn.Error
		if errors.As(err, &failed) {
			failed.Said = strings.TrimPrefix(failed.Said, "trainer: ")
		}
		return report.Result{}, err
	}
	return report.Add(results, s.Consistency != schema.ConsistencyAsync)
}
