package harness

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/internal/process"
	"gradbus/schema"
)

// Flags are the settings that every measured system has.
type Flags struct {
	Seed uint64 `flag:"seed" default:"1" help:"SEED: determines initial values and data"`
	Runs int    `flag:"runs" default:"1" range:"1 1000" help:"N: runs; figures are medians over them"`
	// Way is the way to a running ps, or to where several ps find each other. Without an address, servers are started.
	Way connect.Flags `flag:"server" help:"URL: join a job at this ps, or at the NATS server that several ps share; starts no server"`

	Here      int      `flag:"here" help:"N: trainers of the job on this host, with --server; 0 is all"`
	Hosts     []string `flag:"hosts" help:"LIST: print the commands for these hosts (HOST or HOST:PORT of each ps) and exit"`
	Job       string   `flag:"job" help:"NAME: name of the job"`
	InProcess bool     `flag:"in-process" help:"run servers and trainers as goroutines of this process, for debugging"`
	JSON      bool     `flag:"json" help:"print one line of JSON and nothing else"`

	Profile string `flag:"profile" hidden:"yes" help:"DIR: write CPU and allocation profiles of each process to this folder"`
}

// Validate returns an error for the first wrong setting of a system with so many trainers: the flag, its value and what
// would be right. The configuration is a pointer to the one that these flags belong to.
func (f *Flags) Validate(configuration any, trainers int) error {
	if err := CheckSettings(configuration); err != nil {
		return err
	}
	if f.Here != 0 && !f.Joined() {
		return fmt.Errorf("here %d: only with --server, where other hosts run the other trainers", f.Here)
	}
	if f.Here < 0 || f.Here > trainers {
		return fmt.Errorf("here %d: want 1 to %d, the number of trainers, or 0 for all", f.Here, trainers)
	}
	if err := cmp.Or(f.Way.Check(), f.checkHosts()); err != nil {
		return err
	}
	return schema.CheckName("job", f.Job)
}

// Idle are the flags of this kind that change nothing as these flags are. reduces says whether trainers listen to each
// other.
func (f *Flags) Idle(reduces bool) []config.Idle {
	const started = "servers are started here: want --server with it, the address of those that run"
	return []config.Idle{
		{When: !f.Joined() && len(f.Hosts) == 0, Flags: slices.Concat(connect.Serving, connect.Between), Why: started},
		{When: !reduces, Flags: connect.Between, Why: "these trainers send to servers alone: leave it out"},
		{When: len(f.Hosts) > 0, Flags: append([]string{"here", "in-process"}, connect.Between...),
			Why: "what is printed for --hosts says it for each host: leave it out"},
	}
}

// Joined tells whether servers run already.
func (f *Flags) Joined() bool { return f.Way.Server != "" }

// Address returns the address of the running server; empty if servers are started. It reports errors in the files for
// reaching it once, before members find them.
func (f *Flags) Address() (string, error) {
	if !f.Joined() {
		return "", nil
	}
	_, err := f.Way.Config(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	return f.Way.Server, err
}

// TrainersHere returns the number of the job's trainers that this process starts.
func (f *Flags) TrainersHere(trainers int) int {
	if f.Here == 0 {
		return trainers
	}
	return f.Here
}

// TrainerSpecs are the job's trainers that this process starts, t0, t1 and so on, at servers that run or at url, where
// they were started; settings gives those of one by the way that it goes and the member id that it is to ask for, which
// is empty with --server: there the job gives the next that is free.
func (f *Flags) TrainerSpecs(role string, trainers int, url string, settings func(connect.Flags,
	schema.Member) any) []Spec {
	specs := make([]Spec, f.TrainersHere(trainers))
	for i := range specs {
		name := schema.TrainerMember(i)
		way, member := connect.Flags{Server: url}, name
		if f.Joined() {
			way, member = f.Way.Of(i), ""
		}
		specs[i] = Spec{Role: role, Name: string(name), Settings: settings(way, member)}
	}
	return specs
}

// Apart tells whether other hosts run some of the job's trainers.
func (f *Flags) Apart(trainers int) bool { return f.TrainersHere(trainers) < trainers }

// patience is time enough for a server to find out which trainer was killed, and to say so to the others.
const patience = 15 * time.Second

// Harness is one run as these flags say: what its members say goes to out, or to errs where out gets JSON only;
// progress is drawn on errs where that is a terminal.
func (f *Flags) Harness(title string, roles map[string]Role, out, errs io.Writer) *Harness {
	c := &Harness{Roles: roles, InProcess: f.InProcess, Title: title, Profile: f.Profile, Out: out}
	if f.JSON {
		c.Out = errs
	}
	if f.Joined() { // viewers of that server see how the job ends; otherwise the server ends with it
		c.Patience = patience
	}
	if file, ok := errs.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		c.Bar = errs
	}
	return c
}

// Show writes a result as these flags say: one line of JSON, or for people.
func (f *Flags) Show(to io.Writer, found interface{ Print(io.Writer) error }) error {
	if f.JSON {
		return PrintJSON(to, found)
	}
	return found.Print(to)
}

// PrintJSON writes a result as exactly one line.
func PrintJSON(to io.Writer, result any) error {
	line, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	_, err = to.Write(append(line, '\n'))
	return err
}

// Layout is the processes of a system, for spreading it over hosts.
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

// Elsewhere reports whether commands for other hosts are printed in place of a run.
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

// Device is where the model of a system is computed. Systems whose layers have a GPU path have settings of their own.
type Device struct {
	GPUs   int    `flag:"gpus" help:"N: GPUs that compute the model; only 0 is supported"`
	Device string `flag:"device" default:"cpu" help:"NAME: device that computes the model; only cpu is supported"`
}

// Validate refuses whatever would leave a part of the model on the CPU, before anything is started.
func (d *Device) Validate() error {
	const noGPUPath = "its layers have no GPU path yet, and would stay on the CPU"
	if d.GPUs != 0 {
		return fmt.Errorf("gpus %d: want 0: %s", d.GPUs, noGPUPath)
	}
	if d.Device != "cpu" {
		return fmt.Errorf("device %q: want cpu: %s", d.Device, noGPUPath)
	}
	return nil
}
