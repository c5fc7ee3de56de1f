package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"gradbus"
	"gradbus/internal/atomicfile"
	"gradbus/internal/process"
	"gradbus/internal/regular"
	"gradbus/schema"
)

// Program gives the command of a program, which has all of its subcommands, what every program has: the version in
// full, scripts that complete its words in a shell, man pages, and one form of errors about flags. native says what the
// build has besides Go.
//
// A program that is installed as gradbus-ps, since a shell's ps is another, calls itself that: in its help, scripts and
// pages.
func Program(c *cobra.Command, native string) {
	if installed := "gradbus-" + c.Name(); filepath.Base(os.Args[0]) == installed {
		c.Use = installed
	}
	plain(c)
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo) // of a build without modules
	}
	c.Version = gradbus.Version
	c.SetVersionTemplate(version(c.Name(), native, info))
	c.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the build",
		Args:  cobra.NoArgs,
		RunE: func(below *cobra.Command, _ []string) error {
			_, err := io.WriteString(below.OutOrStdout(), version(c.Name(), native, info))
			return err
		},
	}, manCommand(c, info))
	if c.Flags().Lookup(FileFlag) != nil || len(configurable(c)) > 0 {
		c.AddCommand(configCommand(c))
	}
	c.PersistentPreRunE = load
	c.InitDefaultCompletionCmd()
	asInvoked(c)
	for _, below := range c.Commands() {
		if below.Name() == "completion" {
			completions(c, below)
		}
	}
}

// load gives a command that a person may start its settings from the environment and the file.
func load(c *cobra.Command, _ []string) error {
	if c.Hidden {
		return nil // it is told all that it has to know by who starts it
	}
	err := Load(c.Flags(), func(text string) { fmt.Fprintf(c.ErrOrStderr(), "%s: warning: %s\n", c.Root().Name(), text) })
	if err != nil {
		return c.FlagErrorFunc()(c, err)
	}
	return nil
}

// version is the text of --version.
func version(name, native string, info *debug.BuildInfo) string {
	return fmt.Sprintf("%s version %s\ncommit: %s\ngo: %s %s/%s\nnative: %s\nwire: %d, protocol %s\n",
		name, gradbus.Version, commit(info), runtime.Version(), runtime.GOOS, runtime.GOARCH, native, schema.WireVersion,
		schema.Fingerprint)
}

// commit returns the version of the sources of the build, if Go knew it.
func commit(info *debug.BuildInfo) string {
	revision := setting(info, "vcs.revision")
	switch {
	case revision == "":
		return "unknown (built outside a checkout, or with -buildvcs=false)"
	case setting(info, "vcs.modified") == "true":
		return revision + " (modified)"
	}
	return revision
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// asInvoked has the help of a command and those below it name programs as they were started.
func asInvoked(c *cobra.Command) {
	c.Long, c.Example = process.AsInvoked(c.Long), process.AsInvoked(c.Example)
	for _, below := range c.Commands() {
		asInvoked(below)
	}
}

// completions has the help of the command completion name the program as it was started: in a shell, ps is another.
func completions(program, c *cobra.Command) {
	c.Short = "Print a completion script for a shell"
	c.Long = c.Short + ". The help of each shell's says how to load it."
	for _, shell := range c.Commands() {
		shell.Short = "Print the script for " + shell.Name()
		shell.Long = strings.ReplaceAll(shell.Long, program.Name()+" completion ",
			process.Invoked(program.Name())+" completion ")
	}
}

func manCommand(program *cobra.Command, info *debug.BuildInfo) *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write the man pages of this program and its commands into a folder",
		Hidden: true, // for those who package
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var at *time.Time // of the commit, so that one commit gives the same pages; else SOURCE_DATE_EPOCH or today
			if committed, err := time.Parse(time.RFC3339, setting(info, "vcs.time")); err == nil {
				at = &committed
			}
			return manPages(program, at, args[0])
		},
	}
}

// manPages writes one page for a command, and one for each below it. at is their date.
func manPages(c *cobra.Command, at *time.Time, folder string) error {
	c.DisableAutoGenTag = true
	header := doc.GenManHeader{Section: "1", Date: at, Source: "gradbus " + gradbus.Version, Manual: "gradbus"}
	path := filepath.Join(folder, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
	err := atomicfile.Write(path, 0o666, func(w io.Writer) error { return doc.GenMan(c, &header, w) })
	if err != nil {
		return fmt.Errorf("man page: %w", err)
	}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() && !below.IsAdditionalHelpTopicCommand() {
			if err := manPages(below, at, folder); err != nil {
				return err
			}
		}
	}
	return nil
}

// Exit is an error that asks for an exit status of its own. Without an error in it nothing is written: all was said.
type Exit struct {
	Status int
	Err    error
}

func (e Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Status)
	}
	return e.Err.Error()
}

func (e Exit) Unwrap() error { return e.Err }

// Run runs a command until it ends or is interrupted, and returns the process's exit status: 0, 1 after an error or
// what an Exit says, or 130 after an interrupt. What went wrong goes to errs as one line that begins with the command's
// name, with nothing in it that a terminal acts upon: errors hold names and texts of others. The first interrupt
// (Ctrl-C, SIGTERM or one of more) ends the context; a second Ctrl-C or SIGTERM ends the process at once, and one of
// more does nothing: a terminal that is closed and its shell both send SIGHUP. What was ignored when the process
// started, as nohup has it, stays ignored.
func Run(name string, errs io.Writer, execute func(context.Context) error, more ...os.Signal) (status int) {
	more = slices.DeleteFunc(slices.Clone(more), signal.Ignored)
	ctx, stop := signal.NotifyContext(context.Background(), append(more, os.Interrupt, syscall.SIGTERM)...)
	defer stop()
	interrupted := context.AfterFunc(ctx, func() {
		if len(more) > 0 { // of none, Ignore would ignore all
			signal.Ignore(more...)
		}
		stop()
	})
	defer interrupted() // which is not the end of execute
	err := execute(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintf(errs, "%s: interrupted\n", name)
		return 130
	}
	status = 1
	var exit Exit
	asked := errors.As(err, &exit)
	if asked {
		status = exit.Status
	}
	if !asked || exit.Err != nil {
		fmt.Fprintf(errs, "%s: %s\n", name, schema.Printable(strings.ReplaceAll(process.AsInvoked(err.Error()), "\n", "; ")))
	}
	return status
}

// processorsMin is the least number of goroutines that a server may run at once. Go polls sockets when a processor of
// its scheduler has nothing else to do, or 10 ms after the last time. If gradients keep all of them busy, a request
// waits for that long; with more of them than the machine has, one always waits for sockets, and the kernel runs it at
// once. Measured on two cores with other load, 99 of 100 lookups under full load took less than 8.8 ms instead of 13,
// for 0.1 to 0.2 more processor seconds per gigabyte.
const processorsMin = 4

// PaceScheduler lets a server on a small machine answer requests while gradients keep it busy, unless GOMAXPROCS
// already says something else than the number of processors.
func PaceScheduler() {
	if n := runtime.GOMAXPROCS(0); n == runtime.NumCPU() && n < processorsMin {
		runtime.GOMAXPROCS(processorsMin)
	}
}

// Share returns the number of goroutines that each of a number of processes on this host should run at once, at least
// one. With more of them than cores, every message wakes a thread that finds no core: on two cores 16 trainers that
// exchange small batches did a quarter more of them with one each than with two.
func Share(processes int) int { return max(1, runtime.NumCPU()/max(1, processes)) }

// ShareScheduler gives this process its share of the host's processors, unless GOMAXPROCS already says something else
// than their number.
func ShareScheduler(processes int) {
	if runtime.GOMAXPROCS(0) == runtime.NumCPU() {
		runtime.GOMAXPROCS(Share(processes))
	}
}

// gcPercent makes garbage collections rarer than Go's default of 100 does. Tables lie outside the Go heap, which holds
// little besides messages under way, so the default would collect every few MiB: measured on two cores, two trainers
// and two shards do 10 to 15 % more samples per second with 400.
const gcPercent = 400

// PaceCollector sets how often this process collects garbage, unless GOGC already says it. GOMEMLIMIT holds as ever.
func PaceCollector() {
	if before := debug.SetGCPercent(gcPercent); before != 100 {
		debug.SetGCPercent(before)
	}
}

// HeapLimiter gives a function that limits what the Go runtime holds, so that garbage does not grow with what lives, as
// gcPercent alone would have it. Where GOMEMLIMIT says a limit that one holds, and the function does nothing.
func HeapLimiter() func(bytes int64) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return func(int64) {}
	}
	return func(bytes int64) { debug.SetMemoryLimit(bytes) }
}

// rootsBytesMax bounds a file of certificates; those of all public authorities take 220 KB.
const rootsBytesMax = 4 << 20

// RootCAs reads certificates, in PEM, that vouch for a server. An empty path gives nil: the system's are to do.
func RootCAs(path string) (*tls.Config, error) {
	if path == "" {
		return nil, nil
	}
	data, err := regular.Read(path, rootsBytesMax)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("certificates: %s holds none: want PEM, that begins with -----BEGIN CERTIFICATE-----", path)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// Idle is a rule of a command: flags that would change nothing in some setting. They are refused there rather than
// ignored, since who gives one expects something of it.
type Idle struct {
	When  bool // the setting is there
	Flags []string
	Why   string // they change nothing, and what would be right
}

// RefuseIdle fails where a flag was given that changes nothing: on the command line, or by environment or file with
// another value than its default. The error says flag, value, and what would be right. A rule about a flag that the
// command does not have is a defect of the program, and panics.
func RefuseIdle(set *pflag.FlagSet, rules []Idle) error {
	var refused error
	for _, rule := range rules {
		for _, name := range rule.Flags {
			f := set.Lookup(name)
			if f == nil {
				panic("a rule about --" + name + ", which there is not")
			}
			if rule.When && Given(f) && refused == nil {
				refused = fmt.Errorf("--%s %s: %s", name, f.Value, rule.Why)
			}
		}
	}
	return refused
}

// Given tells whether a flag stands on the command line, or has another value than its default from elsewhere.
func Given(f *pflag.Flag) bool { return f.Changed || f.Value.String() != f.DefValue }

// What is remembered of a flag for ReloadFile: that the environment gave it, and what the file said.
const (
	givenFlag = "gradbus-given"
	fileFlag  = "gradbus-file"
)

// ReloadFile reads the file of --config again, if there is one, and gives the flags of these names what it says by now,
// or their defaults; those of the command line and the environment stay. It names the other settings of the file that
// say something else than at the start: these need a restart. After an error no flag has changed.
func ReloadFile(flags *pflag.FlagSet, names []string) (ignored []string, err error) {
	file := flags.Lookup(FileFlag)
	if file == nil || file.Value.String() == "" {
		return nil, nil
	}
	path := file.Value.String()
	lines, err := linesOf(path)
	if err != nil {
		return nil, err
	}
	said := map[string]string{}
	var wrong []string
	for _, one := range lines {
		text, err := scalar(one.value)
		switch {
		case one.twice != nil:
			err = one.twice
		case !settable(flags.Lookup(one.name)):
			err = unknown(flags, one.name)
		case err != nil:
			err = fmt.Errorf("%s: %w", one.name, err)
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s:%d: %v", path, one.line, err))
		}
		said[one.name] = text
	}
	if len(wrong) > 0 {
		return nil, errors.New(strings.Join(wrong, "; "))
	}
	flags.VisitAll(func(f *pflag.Flag) {
		text, there := said[f.Name]
		before, was := f.Annotations[fileFlag]
		switch {
		case f.Changed || f.Annotations[givenFlag] != nil:
		case slices.Contains(names, f.Name):
			if !there {
				text = f.DefValue
			}
			if text != f.Value.String() {
				err = errors.Join(err, f.Value.Set(text)) // these are texts, which take any
			}
		case there != was || there && text != before[0]:
			ignored = append(ignored, f.Name)
		}
	})
	return ignored, err
}
