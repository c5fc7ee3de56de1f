// Package display assembles the monitoring of a ps: hub, metrics and page, from the reports of the ps (ps.Options) to
// an HTTP server. The command has one, and so has a job in one process.
package display

import (
	"context"
	"sync/atomic"
	"time"

	"gradbus"
	"gradbus/docs"
	"gradbus/internal/process"
	"gradbus/ps"
	"gradbus/ps/ops"
	"gradbus/ps/ops/metrics"
	"gradbus/ps/ops/page"
	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Display is the monitoring of a ps; nil shows nothing. It is safe for concurrent use.
type Display struct {
	hub    *ops.Hub
	server *ops.Server
	of     atomic.Pointer[ps.Server] // nil until it has started
	config ops.Config
}

// Open begins to serve before the ps has started; until then requests are answered with 503. c has the address and the
// credentials; Open adds the rest.
func Open(ctx context.Context, c ops.Config) (*Display, error) {
	d := &Display{hub: ops.NewHub(c.Log)}
	var server atomic.Pointer[ops.Server] // scrapes may come before Start returns
	exporter := metrics.New(metrics.Config{Version: gradbus.Version, Status: d.hub.Status, Age: d.hub.Age, Alive: d.alive,
		Ops: func() (cost metrics.Ops) {
			if s := server.Load(); s != nil {
				stats := s.Stats()
				cost = metrics.Ops{StreamClients: stats.Streams, UpdatesDropped: stats.UpdatesMissed,
					ReportsDropped: d.reportsDropped(), Requests: stats.Requests}
			}
			return cost
		}})
	var err error
	c.Hub, c.Page, c.Runbooks, c.Metrics = d.hub, page.Files, process.AsInvoked(docs.Runbooks()), exporter
	c.Machine = append(c.Machine, process.HostNames()...)
	c.Alive, c.Checks = d.alive, d.checks
	d.config = c
	if d.server, err = ops.Start(ctx, c); err != nil {
		return nil, err
	}
	server.Store(d.server)
	return d, nil
}

// Options sets the options of the ps that monitoring needs.
func (d *Display) Options(o *ps.Options) {
	if d == nil {
		return
	}
	o.Page = d.server.Public()
	o.Telemetry = d.hub.Take
}

// Begin shows the ps, which has started.
func (d *Display) Begin(server *ps.Server) {
	if d != nil {
		d.of.Store(server)
		d.hub.Start(schema.ServerMember(server.ID()),
			status.New(status.Config{Server: server.ID(), URL: server.JoinURL(), Version: gradbus.Version,
				Registered: server.Announced, Words: process.AsInvoked}))
	}
}

// Reload takes the tokens and the files of the certificate from a configuration, as ops.Server.Reload does.
func (d *Display) Reload(c ops.Config) (changed []string, err error) {
	if d == nil {
		return nil, nil
	}
	now := d.config
	now.Token, now.MetricsToken, now.CertFile, now.KeyFile = c.Token, c.MetricsToken, c.CertFile, c.KeyFile
	return d.server.Reload(now)
}

// URL is where the page is.
func (d *Display) URL() string { return d.server.URL() }

// Close ends serving.
func (d *Display) Close() {
	if d != nil {
		d.server.Close()
		d.hub.Close()
	}
}

// reportsDropped counts the reports that came faster than the page took them.
func (d *Display) reportsDropped() uint64 {
	if server := d.of.Load(); server != nil {
		return server.ReportsDropped()
	}
	return 0
}

func (d *Display) alive() time.Time {
	if server := d.of.Load(); server != nil {
		return server.Alive()
	}
	return time.Time{}
}

func (d *Display) checks() (all []ops.Check) {
	server := d.of.Load()
	if server == nil {
		return []ops.Check{{Name: "server", Text: "starting"}}
	}
	for _, c := range server.Checks() {
		all = append(all, ops.Check(c))
	}
	return all
}
