package average

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"gradbus/bench/harness"
	"gradbus/internal/atomicfile"
	"gradbus/internal/connect"
	"gradbus/schema"
)

// Names of the roles.
const (
	trainerRoleName = "average-trainer"
	serverRoleName  = "average-server"
)

// Roles are what the members of this system can be.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{trainerRoleName: trainerRole, serverRoleName: serverRole}
}

// Run runs the benchmark: servers and trainers, a whole run to warm up, and the runs that count. It prints the tables
// to out, or the result as one line of JSON, and saves what was asked for. What is for people goes to errs where out
// gets JSON.
func Run(ctx context.Context, c Config, out, errs io.Writer) error {
	found, err := Measure(ctx, c, out, errs)
	if found == nil {
		return err
	}
	return errors.Join(err, found.save(&c), c.Show(out, found))
}

// Measure is Run without what it prints and saves in the end. It gives a result and an error where only the figures of
// servers are missing.
func Measure(ctx context.Context, c Config, out, errs io.Writer) (found *Result, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s, err := c.system()
	if err != nil {
		return nil, err
	}
	if _, err := s.job(c.jobs()[0], ""); err != nil {
		return nil, err
	}
	if err := c.checkDevices(); err != nil {
		return nil, err
	}
	if err := c.checkOutputs(); err != nil {
		return nil, err
	}
	members := c.Flags.Harness("average", Roles(), out, errs)
	defer func() {
		if e := members.Close(); err == nil {
			err = e
		}
	}()
	d := &driver{config: &c, system: s, members: members}
	return d.run(ctx)
}

// checkOutputs finds out that results could not be written before they are there.
func (c *Config) checkOutputs() error {
	if c.CSV != "" {
		if err := os.MkdirAll(c.CSV, 0o755); err != nil {
			return fmt.Errorf("csv %q: want a folder that can be written: %w", c.CSV, reason(err))
		}
	}
	if c.Trace != "" {
		if err := atomicfile.Check(c.Trace); err != nil {
			return fmt.Errorf("trace %q: want a file that can be written: %w", c.Trace, reason(err))
		}
	}
	return nil
}

// jobs are the names of the jobs that a run of the benchmark has: one to warm up, and those that count.
func (c *Config) jobs() []string {
	names := []string{c.Job + "-warmup", c.Job}
	for i := 2; i <= c.Runs; i++ {
		names = append(names, fmt.Sprintf("%s-%d", c.Job, i))
	}
	return names
}

type driver struct {
	config  *Config
	system  system
	members *harness.Harness
}

func (d *driver) run(ctx context.Context) (*Result, error) {
	var servers []*harness.Handle
	url, err := d.config.Address()
	if err != nil {
		return nil, err
	}
	if url == "" {
		if servers, url, err = d.startServers(ctx); err != nil {
			return nil, err
		}
	}
	trainers, err := d.members.Start(ctx, d.trainerSpecs(url)...)
	if err != nil {
		return nil, err
	}
	var trained []trainerResult
	for _, h := range trainers {
		var r trainerResult
		if err := h.Result(ctx, &r); err != nil {
			return nil, err
		}
		trained = append(trained, r)
	}
	served := make([]serverResult, len(servers))
	if err := d.members.StopServersAs(ctx, servers, func(i int) any { return &served[i] }); err != nil {
		return nil, err
	}
	found, err := newResult(d.config, &d.system, trained, served[:min(len(served), d.config.Servers)])
	if err != nil || !d.config.Joined() || !found.served {
		return found, err
	}
	var runs []run
	for i := range trained[0].Runs {
		runs = append(runs, trained[0].Runs[i].Run)
	}
	all, err := d.config.askServers(ctx, runs)
	found.meansOf(all)
	return found, err
}

func (d *driver) startServers(ctx context.Context) ([]*harness.Handle, string, error) {
	device, err := devices.find("server-backend", d.config.ServerDevice)
	if err != nil {
		return nil, "", err
	}
	processes := max(1, d.config.Servers) // with none there is a ps all the same, at which the trainers meet
	return d.members.StartServersAs(ctx, serverRoleName, processes, func(i int, its harness.ServerSettings) any {
		its.Backend, its.Deadline = device, d.config.Timeout
		return serverSettings{Server: its, Rank: i,
			Jobs: d.config.jobs()[1:], Timeline: d.config.Trace != ""}
	})
}

// trainerSpecs are the trainers that run here.
func (d *driver) trainerSpecs(url string) []harness.Spec {
	c := d.config
	return c.TrainerSpecs(trainerRoleName, c.Trainers, url, func(way connect.Flags, member schema.Member) any {
		return trainerSettings{System: d.system, Way: way, Member: member, Jobs: c.jobs(), Device: c.Device,
			Timeout: c.Timeout, Timeline: c.Trace != ""}
	})
}
