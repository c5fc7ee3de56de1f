package harness

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/internal/process"
)

// Layout is what a system runs, for spreading it over hosts.
type Layout struct {
	Trainers int
	Shards   int      // of all servers
	Server   []string // flags of the ps besides those of any
	Serving  []string // flags of the system that say what its servers are, and nothing to its trainers
	Reduces  bool     // trainers listen to each other
}

// portDefault is where the ps of a host listens that has no port.
const portDefault = "4222"

// hostOf is a host and the port of its ps, which may be left out.
func hostOf(text string) (host, port string, err error) {
	if host, port, err = net.SplitHostPort(text); err != nil {
		host, port = strings.Trim(text, "[]"), portDefault
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" || strings.ContainsAny(host, "/@ ") {
		return "", "", fmt.Errorf("hosts %q: want names or IPs, each maybe with a port, as in 10.0.0.1,10.0.0.2:4300", text)
	}
	return host, port, nil
}

// Elsewhere tells whether nothing is to run here, and commands for other hosts are to be printed.
func (f *Flags) Elsewhere() bool { return len(f.Hosts) > 0 }

// checkHosts says what is wrong with the hosts.
func (f *Flags) checkHosts() error {
	for i, text := range f.Hosts {
		if _, _, err := hostOf(text); err != nil {
			return err
		}
		if slices.Contains(f.Hosts[:i], text) {
			return fmt.Errorf("hosts %q: want each host once", text)
		}
	}
	if len(f.Hosts) > 0 && config.HasPassword(f.Way.Server) {
		return fmt.Errorf("hosts: the commands would show the password in the address of --server: want --nats-creds")
	}
	return nil
}

// spread is the i-th of n parts of count, the first ones larger by one where it does not divide.
func spread(count, n, i int) int {
	part := count / n
	if i < count%n {
		part++
	}
	return part
}

// PrintHosts writes the commands that run a system over the hosts, a line each behind the name of its host: its ps, as
// many as there are shards for, and its trainers. set has the flags of the system's command, of which those that were
// given go into the commands.
func (f *Flags) PrintHosts(to io.Writer, set *pflag.FlagSet, name string, l Layout) error {
	way, ps := f.Way, min(len(f.Hosts), max(1, l.Shards))
	meet := way.Server // where several ps find each other
	var secrets []string
	if way.TokenFile == "" {
		way.TokenFile = "token"
		secrets = append(secrets, "openssl rand -hex 16 >token")
	}
	peers := ""
	if meet == "" && ps > 1 {
		peers = "control-token"
		secrets = append(secrets, "openssl rand -hex 16 >control-token")
	}
	p := printer{to: to}
	p.line("# psbench %s on %d hosts, which reach each other by these names. Files that the commands name are on all of "+
		"them.", name, len(f.Hosts))
	if len(secrets) > 0 {
		p.line("\n# Secrets: make them once, and copy them to every host.\n%s", strings.Join(secrets, "\n"))
	}
	p.line("\n# Servers: first of all, each until it says that it is ready.")
	for i, text := range f.Hosts[:ps] {
		host, port, err := hostOf(text)
		if err != nil {
			return err
		}
		args := []string{"--listen", "0.0.0.0:" + port, "--shards", strconv.Itoa(spread(max(1, l.Shards), ps, i)),
			"--id", fmt.Sprintf("ps%02d", i), "--token-file", way.TokenFile}
		if peers != "" {
			args = append(args, "--control-token-file", peers)
		}
		if meet != "" {
			args = append(args, "--nats", meet, "--advertise", net.JoinHostPort(host, port))
		}
		if way.Creds != "" {
			args = append(args, "--nats-creds", way.Creds)
		}
		p.command(text, process.Invoked("ps"), slices.Concat(args, way.TLS.Args(), l.Server))
		if meet == "" {
			meet = f.scheme() + net.JoinHostPort(host, port)
		}
	}
	p.line("\n# Trainers: they begin when all have come.")
	way.Server = meet
	for i, text := range f.Hosts {
		here := spread(l.Trainers, len(f.Hosts), len(f.Hosts)-1-i) // more where there are fewer shards
		if here == 0 {
			continue
		}
		way := way
		way.Route = "" // which settingsGiven has
		if l.Reduces {
			way.DataHost, way.Advertise = "0.0.0.0", ""
			way.Advertise, _, _ = hostOf(text) // it was read above
		}
		args := []string{name, "--server", way.Server, "--here", strconv.Itoa(here)}
		p.command(text, process.Invoked("psbench"), slices.Concat(args, way.Args(), settingsGiven(set, l.Serving)))
	}
	return p.err
}

// scheme begins addresses of the ps that are to be started.
func (f *Flags) scheme() string {
	if f.Way.TLS.Cert != "" {
		return "tls://"
	}
	return "nats://"
}

// settingsGiven are the flags that were given, but for those of the servers, of the way there and of hosts.
func settingsGiven(set *pflag.FlagSet, serving []string) (args []string) {
	own := slices.Concat(serving, connect.Serving, connect.Between, []string{"server", "hosts", "here", config.FileFlag})
	own = slices.DeleteFunc(own, func(name string) bool { return name == "route" })
	set.VisitAll(func(f *pflag.Flag) {
		if config.Given(f) && !slices.Contains(own, f.Name) {
			args = append(args, argument(f))
		}
	})
	return args
}

// argument is a flag with its value.
func argument(f *pflag.Flag) string {
	value := f.Value.String()
	if list, ok := f.Value.(pflag.SliceValue); ok {
		value = strings.Join(list.GetSlice(), ",")
	}
	if value == f.NoOptDefVal {
		return "--" + f.Name
	}
	return "--" + f.Name + "=" + value
}

// printer writes lines until one cannot be written.
type printer struct {
	to  io.Writer
	err error
}

func (p *printer) line(form string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.to, form+"\n", args...)
	}
}

// command writes a command as a shell takes it.
func (p *printer) command(host, program string, args []string) {
	for i, a := range args {
		if a == "" || strings.ContainsFunc(a, special) {
			args[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	p.line("# on %s\n%s %s", host, program, strings.Join(args, " "))
}

// special tells of what means something to a shell.
func special(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune("-_=+:,./@%", r)
}
