// Package connect is the way from a trainer to the servers of its job, as a person says it on a command line: one set
// of flags, with one meaning in every command that has them.
//
//	var way connect.Flags
//	way.AddServer(set, "nats://127.0.0.1:4222")  // --server, --token-file, --credentials, --nats-creds, --tls-cert, --tls-key, --tls-ca
//	way.AddData(set)                             // --route, --data-host, --advertise
//	c, err := way.Config(log)                    // reads the files
//
// Flags hold names of files and no secrets, but for a password in an address. They travel as JSON to processes of this
// machine, which read the files for themselves.
//
// The package knows flags and trainer.Config. It must not know commands, jobs or workloads. A newcomer may add a flag
// here if every command that joins jobs is to have it.
package connect

import (
	"log/slog"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"gradbus/fabric"
	"gradbus/internal/config"
	"gradbus/internal/regular"
	"gradbus/schema"
	"gradbus/trainer"
)

// Flags are the way to the servers. Names in the comments are those of the flags. The zero value is a ps on this
// machine that asks for nothing.
type Flags struct {
	Server    string     `json:"server,omitempty"`     // (server) of a ps, or the NATS server where several ps find each other
	TokenFile string     `json:"token_file,omitempty"` // (token-file) whose first line is the token
	Key       string     `json:"key,omitempty"`        // (credentials) file with the seed of a member's key
	Creds     string     `json:"creds,omitempty"`      // (nats-creds) file of NATS credentials for Server
	TLS       config.TLS `json:"tls,omitzero"`         // (tls-cert, tls-key, tls-ca)
	Route     string     `json:"route,omitempty"`      // (route) to the shards: schema.DataDirect, also "", or DataCluster
	DataHost  string     `json:"data_host,omitempty"`  // (data-host) where the trainer's own data server listens
	Advertise string     `json:"advertise,omitempty"`  // (advertise) where the other trainers reach that
}

// Names of the flags, for those who refuse them.
var (
	// Serving are the flags that say how a server is reached, besides --server.
	Serving = []string{"token-file", "credentials", "nats-creds", "tls-cert", "tls-key", "tls-ca", "route"}
	// Between are the flags of the trainers' own data servers.
	Between = []string{"data-host", "advertise"}
)

// AddServer adds the flags of the server. server is the default of its address.
func (f *Flags) AddServer(set *pflag.FlagSet, server string) {
	set.StringVar(&f.Server, "server", server,
		"`URL`: address of a ps, or of the NATS server that several ps share")
	config.Addresses(set, "server")
	set.StringVar(&f.TokenFile, "token-file", f.TokenFile, "`PATH`: file with the server's token (first line)")
	set.StringVar(&f.Key, "credentials", f.Key,
		"`PATH`: file with this member's key, if the ps has --members (ps member new)")
	set.StringVar(&f.Creds, "nats-creds", f.Creds,
		"`PATH`: NATS credentials file, if --server is a NATS server that needs one")
	f.TLS.Add(set, "certificate (PEM) for servers that ask for one and of a trainer's own data server",
		"CA bundle (PEM) for servers and other trainers; empty is the system's")
}

// AddData adds the flags of the ways of gradients.
func (f *Flags) AddData(set *pflag.FlagSet) {
	set.StringVar(&f.Route, "route", schema.DataDirect,
		"`ROUTE`: direct connects to every ps; cluster uses --server alone and is slower")
	set.StringVar(&f.DataHost, "data-host", f.DataHost,
		"`HOST[:PORT]`: address where a trainer accepts others; empty is 127.0.0.1, with --token-file its own address")
	set.StringVar(&f.Advertise, "advertise", f.Advertise,
		"`HOST[:PORT]`: address at which other trainers reach this one; default is --data-host")
}

// Config reads the files and gives the part of a trainer's configuration that says how it reaches others. log is warned
// of files with secrets that others may read or change.
func (f *Flags) Config(log *slog.Logger) (c trainer.Config, err error) {
	c = trainer.Config{Server: f.Server, CredsFile: f.Creds, Route: f.Route, DataHost: f.DataHost, Advertise: f.Advertise}
	if c.Token, err = config.Secret(f.TokenFile, log); err != nil {
		return c, err
	}
	if c.Key, err = Key(f.Key, log); err != nil {
		return c, err
	}
	regular.WarnExposed(f.Creds, log)
	c.DataTLS, c.TLS, err = f.TLS.Load(log)
	return c, err
}

// Key reads a member's key; an empty path gives none. log is warned of a file that others may read or change.
func Key(path string, log *slog.Logger) (*fabric.Key, error) {
	if path == "" {
		return nil, nil
	}
	key, err := fabric.ReadKey(path)
	if err == nil {
		regular.WarnExposed(path, log)
	}
	return key, err
}

// Of are the flags of the i-th trainer that this host starts: where a port is chosen, each has its own.
func (f Flags) Of(i int) Flags {
	f.DataHost, f.Advertise = shifted(f.DataHost, i), shifted(f.Advertise, i)
	return f
}

// shifted is an address with a port that is higher by i; one without a port, or with port 0, is as it was.
func shifted(address string, i int) string {
	host, port, err := net.SplitHostPort(address)
	n, wrong := strconv.Atoi(port)
	if err != nil || wrong != nil || n == 0 {
		return address
	}
	return net.JoinHostPort(host, strconv.Itoa(n+i))
}

// Args are the flags for another process, but for --server, which may have a password in it.
func (f *Flags) Args() []string {
	return append(config.GivenPairs("--token-file", f.TokenFile, "--credentials", f.Key, "--nats-creds", f.Creds, "--route", f.Route,
		"--data-host", f.DataHost, "--advertise", f.Advertise), f.TLS.Args()...)
}

// Check says what is wrong without reading a file: the flag, its value and what would be right.
func (f *Flags) Check() error {
	return trainer.Config{Server: f.Server, Route: f.Route, DataHost: f.DataHost, Advertise: f.Advertise}.Validate()
}
