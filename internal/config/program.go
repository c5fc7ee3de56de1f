package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"gradbus"
	"gradbus/internal/atomicfile"
	"gradbus/internal/process"
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

// commit is what the sources were when they were built, as far as Go was told.
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
