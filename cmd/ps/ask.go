package main

import (
	"errors"
	"io"
	"time"

	"github.com/spf13/pflag"

	"gradbus/fabric"
	"gradbus/internal/client"
	"gradbus/internal/config"
	"gradbus/internal/connect"
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

// operator returns what asks the ps.
func (a *asking) operator(logTo io.Writer) (*client.Operator, error) {
	log, err := a.log.Logger(logTo)
	if err != nil {
		return nil, err
	}
	c, err := a.way.Config(log)
	if err == nil {
		err = c.Validate()
	}
	return &client.Operator{AnswerWithin: a.within, Server: fabric.Config{URL: c.Server, Token: c.Token, Key: c.Key,
		CredsFile: c.CredsFile, TLS: c.TLS, Log: log}}, err
}

// exit gives an error of a request its status: 1 where the ps refused it.
func exit(err error) error {
	if errors.Is(err, client.ErrRefused) {
		return config.Exit{Status: 1, Err: err}
	}
	return err
}
