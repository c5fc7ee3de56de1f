package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"gradbus/internal/config"
	"gradbus/schema"
)

// Flags are those that every measured system has. Their names are those of the command line.
type Flags struct {
	JSON      bool   // print one line of JSON and nothing else
	InProcess bool   // members are goroutines
	Join      string // (server) address of a running ps, or of a control server; empty starts servers
	TokenFile string // whose first line is its token
	Here      int    // how many of the job's trainers run on this host; 0 is all
	Job       string // name of the job
	Seed      uint64
	Runs      int // figures are medians over them
	Profile   string
}

// DefaultFlags are the flags of a system whose job has its name.
func DefaultFlags(system string) Flags { return Flags{Job: system, Seed: 1, Runs: 1} }

// AddTo gives a command these flags, with what is in f as their defaults.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	set.Uint64Var(&f.Seed, "seed", f.Seed, "`number` that initial values and data follow from")
	set.IntVar(&f.Runs, "runs", f.Runs, "`number` of runs; figures are medians over them")
	set.StringVar(&f.Join, "server", f.Join,
		"`address` of a running ps, as in nats://10.0.0.1:4222: no server is started, and the trainers join the job there")
	config.Addresses(set, "server")
	set.StringVar(&f.TokenFile, "token-file", f.TokenFile, "`file` whose first line is that server's token")
	set.IntVar(&f.Here, "here", f.Here, "`number` of the job's trainers that run on this host, with --server; 0 is all")
	set.StringVar(&f.Job, "job", f.Job, "`name` of the job")
	set.BoolVar(&f.InProcess, "in-process", f.InProcess,
		"run servers and trainers as goroutines of this process, for debugging")
	set.BoolVar(&f.JSON, "json", f.JSON, "print one line of JSON and nothing else")
	set.StringVar(&f.Profile, "profile", f.Profile,
		"write profiles of each process into this `folder`: of its processor time, and of what it allocates")
	_ = set.MarkHidden("profile") // it exists
}

// Validate says what is wrong with the flags of a system with so many trainers: the flag, its value and what would be
// right.
func (f *Flags) Validate(trainers int) error {
	switch u, err := url.Parse(f.Join); {
	case f.Runs < 1:
		return fmt.Errorf("runs %d: want at least 1", f.Runs)
	case f.Join != "" && (err != nil || u.Host == ""):
		return fmt.Errorf("server %q: want an address such as nats://127.0.0.1:4222", f.Join)
	case f.Join == "" && f.TokenFile != "":
		return fmt.Errorf("token-file %s: only with --server, whose token it holds", f.TokenFile)
	case f.Here != 0 && f.Join == "":
		return fmt.Errorf("here %d: only with --server, where other hosts run the other trainers", f.Here)
	case f.Here < 0 || f.Here > trainers:
		return fmt.Errorf("here %d: want 1 to %d, the number of trainers, or 0 for all", f.Here, trainers)
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
	if !slices.Contains(words, value) {
		return fmt.Errorf("%s %q: want %s", flag, value, strings.Join(words, " or "))
	}
	return nil
}

// Address is that of the running ps, with the token that the file holds; empty where servers are started. A token in it
// stays between this process and its members, to whom it goes by their standard input.
func (f *Flags) Address() (string, error) {
	if f.TokenFile == "" {
		return f.Join, nil
	}
	token, err := config.Secret(f.TokenFile, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return "", err
	}
	u, err := url.Parse(f.Join)
	if err != nil {
		return "", fmt.Errorf("server %q: %w", f.Join, err)
	}
	u.User = url.User(token)
	return u.String(), nil
}

// TrainersHere is how many of the job's trainers this process starts.
func (f *Flags) TrainersHere(trainers int) int {
	if f.Here == 0 {
		return trainers
	}
	return f.Here
}

// TrainerSpecs are the job's trainers that this process starts, t0, t1 and so on; settings gives those of one by the
// member id that it is to ask for, which is empty with --server: there the job gives the next that is free.
func (f *Flags) TrainerSpecs(role string, trainers int, settings func(member schema.Member) any) []Spec {
	specs := make([]Spec, f.TrainersHere(trainers))
	for i := range specs {
		name := schema.TrainerMember(i)
		member := name
		if f.Join != "" {
			member = ""
		}
		specs[i] = Spec{Role: role, Name: string(name), Settings: settings(member)}
	}
	return specs
}

// patience is time enough for a server to find out which trainer was killed, and to say so to the others.
const patience = 15 * time.Second

// Harness is one run as these flags say: what its members say goes to out, or to errs where out gets JSON only;
// progress is drawn on errs where that is a terminal.
func (f *Flags) Harness(title string, roles map[string]Role, out, errs io.Writer) *Harness {
	c := &Harness{Roles: roles, InProcess: f.InProcess, Title: title, Profile: f.Profile, Out: out}
	if f.JSON {
		c.Out = errs
	}
	if f.Join != "" { // whoever looks at that server sees how the job ends; elsewhere the server ends with it
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
