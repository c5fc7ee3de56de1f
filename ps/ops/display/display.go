// Package display puts together what a ps shows: hub, metrics and page, from what the ps tells (ps.Options) to an HTTP server. Whoever runs a
// ps has one of it: the command, and jobs that live in one process.
package display

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"gradbus"
	"gradbus/docs/runbooks"
	"gradbus/internal/process"
	"gradbus/ps"
	"gradbus/ps/ops"
	"gradbus/ps/ops/metrics"
	"gradbus/ps/ops/overview"
	"gradbus/ps/ops/page"
	"gradbus/schema"
)

// Config is what may be said of the page, the API and the metrics.
type Config struct {
	Listen            string        // host:port; port 0 is any free one
	AnyPort           bool          // where the port is taken, any free one does
	Hosts             []string      // names by which others ask for the page, besides its address
	Token             string        // that whoever looks must show; empty is none
	CertFile, KeyFile string        // of the page; empty is plain HTTP
	Insecure          bool          // serve beyond this machine without token and TLS
	Pprof             string        // host:port of Go's profiles, on this machine; empty is none
	NotKept           func() string // why what is wrong with GPUs is not remembered, empty where it is; nil is that
	Log               *slog.Logger
}

// Display is what a ps shows; nil is nothing. It is safe for concurrent use.
type Display struct {
	hub      *ops.Hub
	server   *ops.Server
	exporter *metrics.Exporter
	of       atomic.Pointer[ps.Server] // nil until it has started
	notKept  func() string
}

// Open begins to serve, before the ps is there: who asks meanwhile is told that it starts.
func Open(ctx context.Context, c Config) (*Display, error) {
	d := &Display{hub: ops.NewHub(c.Log), notKept: c.NotKept}
	var server atomic.Pointer[ops.Server] // scrapes may come before Start returns
	d.exporter = metrics.New(metrics.Config{Version: gradbus.Version, Own: d.hub.Own, Status: d.hub.Status, Ops: func() (cost metrics.Ops) {
		if s := server.Load(); s != nil {
			stats := s.Stats()
			cost = metrics.Ops{StreamClients: stats.Streams, UpdatesDropped: stats.UpdatesMissed, PulsesDropped: d.hub.Dropped(), Requests: stats.Requests}
		}
		return cost
	}})
	var err error
	d.server, err = ops.Start(ctx, ops.Config{
		Listen: c.Listen, AnyPort: c.AnyPort, Hosts: c.Hosts, Token: c.Token, CertFile: c.CertFile, KeyFile: c.KeyFile, Insecure: c.Insecure, Pprof: c.Pprof,
		Hub: d.hub, Page: page.Files, Runbooks: runbooks.Files(), Words: process.AsInvoked, Metrics: d.exporter, Alive: d.alive, Checks: d.checks, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	server.Store(d.server)
	return d, nil
}

// Options are what the ps is given so that something can be shown.
func (d *Display) Options(o *ps.Options) {
	if d == nil {
		return
	}
	o.Page = d.server.Public()
	o.Pulses = func(job schema.JobName, from schema.Member, p *schema.Pulse) {
		d.hub.Take(job, from, p)
		d.exporter.Take(job, from, p)
	}
}

// Begin shows the ps, which has started.
func (d *Display) Begin(server *ps.Server) {
	if d != nil {
		d.of.Store(server)
		d.hub.Start(schema.ServerMember(server.ID()), overview.New(overview.Config{Server: server.ID(), URL: server.URL(), Version: gradbus.Version, Announced: server.Announced, Words: process.AsInvoked}))
	}
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
	if d.notKept == nil {
		return all
	}
	if text := d.notKept(); text != "" { // which keeps nobody from working
		all = append(all, ops.Check{Name: "gpu-state", OK: true, Text: text})
	}
	return all
}
