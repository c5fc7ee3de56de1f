package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"gradbus"
	"gradbus/docs/runbooks"
	"gradbus/internal/config"
	"gradbus/internal/process"
	"gradbus/ps"
	"gradbus/ps/ops"
	"gradbus/ps/ops/metrics"
	"gradbus/ps/ops/overview"
	"gradbus/ps/ops/page"
	"gradbus/schema"
)

// httpDefault is where the page is when nobody asks for another place; where that is taken, at any free port.
const httpDefault = "127.0.0.1:8080"

// pageFlags are what may be said of the page, the API and the metrics.
type pageFlags struct {
	listen, hosts     string
	tokenFile         string
	certFile, keyFile string
	insecure          bool
	portFile, pprof   string
	anyPort           bool          // nobody asked for the port
	notKept           func() string // why what is wrong with GPUs is not remembered
}

func (f *pageFlags) add(c *cobra.Command) {
	set := c.Flags()
	set.StringVar(&f.listen, "http", httpDefault, "`host:port` of the page, the API and the metrics, off for none; port 0 is any free one")
	set.StringVar(&f.hosts, "http-host", "", "`names`, with commas between, by which others ask for the page, besides its address: those of a proxy, for example; the first is shown to them")
	set.StringVar(&f.tokenFile, "http-token-file", "", "`file` whose first line whoever looks must show: at /login, or as a bearer token")
	set.StringVar(&f.certFile, "http-tls-cert", "", "`file` with the certificate of the page, in PEM")
	set.StringVar(&f.keyFile, "http-tls-key", "", "`file` with the key of that certificate")
	set.BoolVar(&f.insecure, "http-insecure", false, "serve the page beyond this machine without token and TLS: whoever reaches the port sees all jobs")
	set.StringVar(&f.portFile, "http-port-file", "", "`file` to write the page's address to when the server is ready")
	set.StringVar(&f.pprof, "pprof", "", "`host:port` of Go's profiles, on this machine only: 127.0.0.1:6060, for example")
}

// display is what a ps shows; nil is nothing.
type display struct {
	hub      *ops.Hub
	server   *ops.Server
	exporter *metrics.Exporter
	of       atomic.Pointer[ps.Server] // nil until it has started
	notKept  func() string
	anyPort  bool // nobody asked for the port
}

// open begins to serve, before the ps is there: who asks meanwhile is told that it starts.
func (f *pageFlags) open(ctx context.Context, log *slog.Logger) (*display, error) {
	if f.listen == "off" {
		if f.portFile != "" {
			return nil, fmt.Errorf("http-port-file %s: there is no page with http off", f.portFile)
		}
		if f.pprof != "" {
			return nil, fmt.Errorf("pprof %s: profiles are served beside a page, and there is none with http off: want http 127.0.0.1:0, for example", f.pprof)
		}
		return nil, nil
	}
	token, err := config.Secret(f.tokenFile, log)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	d := &display{hub: ops.NewHub(log), notKept: f.notKept, anyPort: f.anyPort}
	var server atomic.Pointer[ops.Server] // scrapes may come before Start returns
	d.exporter = metrics.New(metrics.Config{Version: gradbus.Version, Own: d.hub.Own, Status: d.hub.Status, Ops: func() (cost metrics.Ops) {
		if s := server.Load(); s != nil {
			stats := s.Stats()
			cost = metrics.Ops{StreamClients: stats.Streams, UpdatesDropped: stats.UpdatesMissed, PulsesDropped: d.hub.Dropped(), Requests: stats.Requests}
		}
		return cost
	}})
	d.server, err = ops.Start(ctx, ops.Config{
		Listen: f.listen, AnyPort: f.anyPort, Hosts: names(f.hosts), Token: token, CertFile: f.certFile, KeyFile: f.keyFile, Insecure: f.insecure, Pprof: f.pprof,
		Hub: d.hub, Page: page.Files, Runbooks: runbooks.Files(), Words: process.AsInvoked, Metrics: d.exporter, Alive: d.alive, Checks: d.checks, Log: log,
	})
	if err != nil {
		return nil, err
	}
	server.Store(d.server)
	return d, nil
}

// names are those in a list with commas.
func names(list string) (all []string) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			all = append(all, name)
		}
	}
	return all
}

// options are what the ps is given so that something can be shown.
func (d *display) options(o *ps.Options) {
	if d == nil {
		return
	}
	o.Page = d.server.Public()
	o.Pulses = func(job schema.JobName, from schema.Member, p *schema.Pulse) {
		d.hub.Take(job, from, p)
		d.exporter.Take(job, from, p)
	}
}

// begin shows the ps, which has started.
func (d *display) begin(server *ps.Server) {
	if d != nil {
		d.of.Store(server)
		d.hub.Start(schema.ServerMember(server.ID()), overview.New(overview.Config{Server: server.ID(), URL: server.URL(), Version: gradbus.Version, Announced: server.Announced, Words: process.AsInvoked}))
	}
}

// line says where the page is.
func (d *display) line() string {
	if d == nil {
		return ""
	}
	at := fmt.Sprintf("The page, with all jobs:  %s", d.server.URL())
	if d.anyPort && !strings.Contains(at, httpDefault) {
		at += " (another program has " + httpDefault + "; --http chooses)"
	}
	return at + "\n"
}

func (d *display) close() {
	if d != nil {
		d.server.Close()
		d.hub.Close()
	}
}

func (d *display) alive() time.Time {
	if server := d.of.Load(); server != nil {
		return server.Alive()
	}
	return time.Time{}
}

func (d *display) checks() (all []ops.Check) {
	server := d.of.Load()
	if server == nil {
		return []ops.Check{{Name: "server", Text: "starting"}}
	}
	for _, c := range server.Checks() {
		all = append(all, ops.Check(c))
	}
	if text := d.notKept(); text != "" { // which keeps nobody from working
		all = append(all, ops.Check{Name: "gpu-state", OK: true, Text: text})
	}
	return all
}
