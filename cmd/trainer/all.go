package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
	"gradbus/internal/report"
	"gradbus/internal/spawn"
	"gradbus/internal/temporary"
	"gradbus/schema"
)

// What a started trainer writes, as the value of --events.
const (
	eventsAll    = "all"
	eventsResult = "result" // no progress: one trainer's is enough
)

// patience is time enough for the server to find out which trainer was killed, and for the others to hear of it: were
// they asked to end at once, one of them would be named in its place.
const patience = 15 * time.Second

// trainAll starts every trainer of the job as a process, and adds up their results.
func (o *common) trainAll(ctx context.Context) (report.Result, error) {
	s := o.shared
	if o.id != "" {
		return report.Result{}, fmt.Errorf("--id %s names one trainer, --spawn starts all: give one of the two", o.id)
	}
	self, err := os.Executable()
	if err != nil {
		return report.Result{}, fmt.Errorf("find this program: %w", err)
	}
	server, forget, err := o.serverArgs()
	if err != nil {
		return report.Result{}, err
	}
	defer forget()
	show := newShower(o)
	results := make([]report.Result, s.Trainers)
	trained := make([]bool, s.Trainers)
	processes := make([]spawn.Process, s.Trainers)
	for i := range processes {
		name := fmt.Sprintf("t%d", i)
		relay := config.Relay{To: o.log.With("member", name).Handler(), Least: slog.LevelWarn}
		processes[i] = spawn.Process{Name: name, Path: self, Args: append(o.childArgs(i), server...), OnLog: relay.Line,
			Alone: func() bool { return trained[i] }, OnLine: func(line []byte) {
				e, err := report.ParseEvent(line)
				switch {
				case err != nil:
					o.log.Warn("not an event", "member", name, "err", err)
				case e.Progress != nil:
					show.Show(*e.Progress)
				case e.Note != "":
					show.Note(e.Note)
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
	return report.Add(results, schema.ClockOf(s.Consistency).Common())
}

// serverArgs returns the flags by which started trainers find the server. An address with a password is passed in a
// private file of settings, which forget removes: it must not appear on a command line.
func (o *common) serverArgs() (args []string, forget func(), err error) {
	if !config.HasPassword(o.way.Server) {
		return []string{"--server", o.way.Server}, func() {}, nil
	}
	folder, err := temporary.Folder("hand on the address of the server")
	if err != nil {
		return nil, nil, err
	}
	forget = func() { os.RemoveAll(folder) }
	path := filepath.Join(folder, "server.yaml")
	err = atomicfile.Write(path, 0o600,
		func(w io.Writer) error { return json.NewEncoder(w).Encode(map[string]string{"server": o.way.Server}) })
	if err != nil {
		forget()
		return nil, nil, fmt.Errorf("hand on the address of the server: %w", temporary.Advise(err))
	}
	return []string{"--" + config.FileFlag, path}, forget, nil
}
