package hybrid

import (
	"context"
	"errors"
	"io"
	"runtime"

	"gradbus/bench/harness"
	"gradbus/internal/connect"
	"gradbus/schema"
)

// Run runs the system as often as c.Runs says. What members say goes to out or errs, as harness.Flags.Harness tells.
func Run(ctx context.Context, c Config, out, errs io.Writer) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := newResult(c)
	for range c.Runs {
		found, err := once(ctx, c, out, errs)
		if err != nil {
			return nil, err
		}
		if err := r.add(found); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// once is one run.
func once(ctx context.Context, c Config, out, errs io.Writer) (found []measured, err error) {
	all := c.Flags.Harness("hybrid", Roles(), out, errs)
	defer func() {
		if e := all.Close(); err == nil {
			err = e
		}
	}()
	var servers []*harness.Handle
	url, err := c.Address()
	if err != nil {
		return nil, err
	}
	if url == "" {
		settings := harness.ServerSettings{Procs: c.procs()}
		if servers, url, err = all.StartServers(ctx, c.Servers, settings); err != nil {
			return nil, err
		}
	}
	specs := c.TrainerSpecs(trainerRole, c.Trainers, url, func(way connect.Flags, member schema.Member) any {
		return settings{Config: c, Way: way, Member: member}
	})
	trainers, err := all.Start(ctx, specs...)
	if err != nil {
		return nil, err
	}
	for range waits {
		if err := all.Go(ctx, trainers...); err != nil {
			return nil, err
		}
	}
	found = make([]measured, len(trainers))
	for i, h := range trainers {
		if err := h.Result(ctx, &found[i]); err != nil {
			return nil, err
		}
	}
	if len(servers) > 0 {
		if _, err := all.StopServers(ctx, servers...); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// procs is for harness.Member.LimitProcs: where processes outnumber the cores of this host, one, since a second would
// be busy elsewhere.
func (c *Config) procs() int {
	if c.Servers+c.TrainersHere(c.Trainers) > runtime.NumCPU() {
		return 1
	}
	return 0
}

// waits is how often trainers wait for each other: before what is measured, after it, and after the weights were read.
const waits = 3

var errNothing = errors.New("no trainer ran here")
