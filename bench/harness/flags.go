package harness

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/schema"
)

// Flags are those that every measured system has. Their names are those of the command line.
type Flags struct {
	JSON      bool // print one line of JSON and nothing else
	InProcess bool // members are goroutines
	// Way is that to a running ps, or to where several find each other; without an address (server), servers are started.
	Way  connect.Flags
	Here int // how many of the job's trainers run on this host; 0 is all
	// Hosts (hosts) are those that commands are printed for, in place of a run; empty runs.
	Hosts   []string
	Job     string // name of the job
	Seed    uint64
	Runs    int // figures are medians over them
	Profile string
}

// DefaultFlags are the flags of a system whose job has its name.
func DefaultFlags(system string) Flags { return Flags{Job: system, Seed: 1, Runs: 1} }

// AddTo gives a command these flags, with what is in f as their defaults.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	set.Uint64Var(&f.Seed, "seed", f.Seed, "`SEED`: determines initial values and data")
	set.IntVar(&f.Runs, "runs", f.Runs, "`N`: runs; figures are medians over them")
	f.Way.AddServer(set, f.Way.Server)
	set.Lookup("server").Usage = "`URL`: join a job at this ps, or at the NATS server that several ps share; starts no server"
	f.Way.AddData(set)
	set.IntVar(&f.Here, "here", f.Here, "`N`: trainers of the job on this host, with --server; 0 is all")
	set.StringSliceVar(&f.Hosts, "hosts", f.Hosts,
		"`LIST`: print the commands for these hosts (HOST or HOST:PORT of each ps) and exit")
	set.StringVar(&f.Job, "job", f.Job, "`NAME`: name of the job")
	set.BoolVar(&f.InProcess, "in-process", f.InProcess,
		"run servers and trainers as goroutines of this process, for debugging")
	set.BoolVar(&f.JSON, "json", f.JSON, "print one line of JSON and nothing else")
	set.StringVar(&f.Profile, "profile", f.Profile,
		"`DIR`: write CPU and allocation profiles of each process to this folder")
	_ = set.MarkHidden("profile") // it exists
}

// Validate says what is wrong with the flags of a system with so many trainers: the flag, its value and what would be
// right.
func (f *Flags) Validate(trainers int) error {
	if f.Runs < 1 {
		return fmt.Errorf("runs %d: want at least 1", f.Runs)
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

// Between is nil where low <= value <= high, and else says the flag, its value and what would be right.
func Between(flag string, value, low, high int) error {
	if value < low || value > high {
		return fmt.Errorf("%s %d: want %d to %d", flag, value, low, high)
	}
	return nil
}

// OneOf is nil where the value is one of the words, and else says the flag, its value and what would be right.
func OneOf(flag, value string, words ...string) error {
	if slices.Contains(words, value) {
		return nil
	}
	hint := ""
	if meant := config.Meant(value, words); meant != "" {
		hint = fmt.Sprintf(" (did you mean --%s %s?)", flag, meant)
	}
	return fmt.Errorf("%s %q: want %s%s", flag, value, strings.Join(words, " or "), hint)
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

// Address is that of the running server; empty where servers are started. What is wrong with the files of the way there
// is said here, once, before members find it out.
func (f *Flags) Address() (string, error) {
	if !f.Joined() {
		return "", nil
	}
	_, err := f.Way.Config(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	return f.Way.Server, err
}

// TrainersHere is how many of the job's trainers this process starts.
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
