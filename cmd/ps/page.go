package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/ps/ops"
	"gradbus/ps/ops/display"
)

// httpDefault is the address of the page unless another one is asked for; if it is taken, a free port is used.
const httpDefault = "127.0.0.1:8080"

// pageFlags are what may be said of the page, the API and the metrics.
type pageFlags struct {
	listen, hosts     string
	tokenFile         string
	metricsTokenFile  string
	certFile, keyFile string
	insecure          bool
	portFile, pprof   string
	anyPort           bool // the port is the default, not asked for
}

func (f *pageFlags) add(c *cobra.Command) {
	set := c.Flags()
	set.StringVar(&f.listen, "http", httpDefault,
		"`HOST:PORT`: address of page, API and metrics; off for none, port 0 picks a free port")
	set.StringVar(&f.hosts, "http-host", "",
		"`NAMES`: further host names of the page, separated by commas, for example a proxy's")
	set.StringVar(&f.tokenFile, "http-token-file", "",
		"`PATH`: file with the page's token (first line), to enter on the page or send as a bearer token")
	set.StringVar(&f.metricsTokenFile, "metrics-token-file", "",
		"`PATH`: file with a bearer token (first line) that opens /metrics alone")
	set.StringVar(&f.certFile, "http-tls-cert", "", "`PATH`: certificate (PEM) of the page")
	set.StringVar(&f.keyFile, "http-tls-key", "", "`PATH`: private key (PEM) of --http-tls-cert")
	set.BoolVar(&f.insecure, "http-insecure", false,
		"allow --http beyond loopback without token and TLS: any client sees all jobs")
	set.StringVar(&f.portFile, "http-port-file", "",
		"`PATH`: write the page's address to this file when the server is ready")
	set.StringVar(&f.pprof, "pprof", "", "`HOST:PORT`: loopback address of Go's profiles, for example 127.0.0.1:6060")
}

// open begins to serve before the ps is ready: requests until then are answered with that it starts. machine is the
// names of this machine, besides those that it gives itself.
func (f *pageFlags) open(ctx context.Context, log *slog.Logger, secrets secrets, machine []string) (*display.Display,
	error) {
	if f.listen == "off" {
		if f.portFile != "" {
			return nil, fmt.Errorf("http-port-file %s: there is no page with http off", f.portFile)
		}
		if f.pprof != "" {
			return nil, fmt.Errorf("pprof %s: it is served beside a page, and there is none with http off: want http "+
				"127.0.0.1:0, for example", f.pprof)
		}
		return nil, nil
	}
	return display.Open(ctx, ops.Config{Listen: f.listen, AnyPort: f.anyPort, Hosts: names(f.hosts), Machine: machine,
		Token: secrets.page, MetricsToken: secrets.metrics, CertFile: f.certFile, KeyFile: f.keyFile, Insecure: f.insecure,
		Pprof: f.pprof, Log: log})
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

// line says where the page is.
func (f *pageFlags) line(d *display.Display) string {
	if d == nil {
		return ""
	}
	at := fmt.Sprintf("The page, with all jobs:  %s", d.URL())
	if f.anyPort && !strings.Contains(at, httpDefault) {
		at += " (another program has " + httpDefault + "; --http chooses)"
	}
	return at + "\n"
}
