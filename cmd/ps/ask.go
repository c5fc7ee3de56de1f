package main

import (
	"io"
	"time"

	"github.com/spf13/pflag"

	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/trainer"
)

// asking is the flags of commands that ask a running ps for something: drain, scale-lr, takeover.
type asking struct {
	way    connect.Flags
	within time.Duration
	log    config.Log
}

// addServer adds the flags of the way to the ps.
func (a *asking) addServer(set *pflag.FlagSet) {
	set.SortFlags = false
	a.way.AddServer(set, "nats://127.0.0.1:4222")
}

// addOthers adds the other flags, which the help shows last.
func (a *asking) addOthers(set *pflag.FlagSet) {
	a.log.Add(set)
	config.AddFileFlag(set)
}

// config returns how to reach the ps.
func (a *asking) config(logTo io.Writer) (trainer.Config, error) {
	log, err := a.log.Logger(logTo)
	if err != nil {
		return trainer.Config{}, err
	}
	c, err := a.way.Config(log)
	c.Log, c.AnswerWithin = log, a.within
	return c, err
}
