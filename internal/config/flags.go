package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// plain makes a command and its subcommands report wrong flags by FlagError, and print their help by flagUsages.
func plain(c *cobra.Command) {
	c.SetUsageTemplate(usageTemplate(c))
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return FlagError(c, err) })
}

// Sectioned has the help of one command, not of those below it, show its flags in sections: see Help. It is called when
// the command has all of them.
func Sectioned(c *cobra.Command, sections []Section) {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	plain := usageTemplate(c)
	c.SetUsageTemplate(strings.Replace(plain, allFlags, help(c.Flags(), sections), 1))
	for _, below := range c.Commands() {
		below.SetUsageTemplate(plain)
	}
}

// FlagError says what is wrong with the flags of a command as other errors do: the flag, the value and what would be
// right. The error is one that pflag gave; others are returned as they are.
func FlagError(c *cobra.Command, err error) error {
	var unheard *pflag.NotExistError
	var wrong *pflag.InvalidValueError
	var bare *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unheard):
		name := unheard.GetSpecifiedName()
		if unheard.GetSpecifiedShortnames() != "" {
			return fmt.Errorf("unknown flag -%s (%s --help lists them)", name, invokedPath(c))
		}
		return notAFlag(c, name)
	case errors.As(err, &wrong):
		f := wrong.GetFlag()
		if want := wanted(f.Value.Type()); want != "" {
			return fmt.Errorf("--%s %q: want %s", f.Name, wrong.GetValue(), want)
		}
		return fmt.Errorf("--%s %q: %w", f.Name, wrong.GetValue(), wrong.Unwrap())
	case errors.As(err, &bare):
		return fmt.Errorf("--%s: want a value after it (see %s --help)", bare.GetSpecifiedName(), invokedPath(c))
	}
	return err
}

// placeholder returns the word that stands for a flag's value, and the rest of its help. A usage has them as "`WORD`: help".
func placeholder(f *pflag.Flag) (what, help string) {
	what, help = pflag.UnquoteUsage(f)
	return what, strings.TrimPrefix(help, what+": ")
}

// flagUsages returns the help of flags as pflag prints it, with each placeholder once: behind the flag's name.
func flagUsages(flags *pflag.FlagSet) string {
	return repeated.ReplaceAllString(flags.FlagUsages(), "$1")
}

// repeated is the placeholder of a flag at the beginning of its help, as pflag prints it.
var repeated = regexp.MustCompile(`(?m)^( +(?:-\w, )?--[\w-]+ \S+ +)\S+: `)

// allFlags is where a command's own flags stand in the template of its help.
const allFlags = "Flags:\n{{flagUsages .LocalFlags | trimTrailingWhitespaces}}"

// usageTemplate returns cobra's template of a command's help, with flags by flagUsages.
func usageTemplate(c *cobra.Command) string {
	addFlagUsages()
	return strings.Replace(c.UsageTemplate(), "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}", allFlags, 1)
}

var addFlagUsages = sync.OnceFunc(func() { cobra.AddTemplateFunc("flagUsages", flagUsages) })

// GivenPairs leaves out of pairs of a flag and its value, for another process, those whose value is empty: see
// refuseEmpty.
func GivenPairs(pairs ...string) (args []string) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			args = append(args, pair...)
		}
	}
	return args
}

// emptyMeans is the word by which the help of a flag says that an empty value means something: "empty is none".
const emptyMeans = "empty"

// checkEmpty fails where a flag has an empty value, or a list of nothing else, whose help says nothing of one. A
// variable of a script that is not set gives such values: to take one for no value would train in place of predicting,
// or save nothing.
func checkEmpty(f *pflag.Flag) error {
	empty := f.Value.Type() == "string" && f.Value.String() == ""
	if list, ok := f.Value.(pflag.SliceValue); ok {
		empty = !slices.ContainsFunc(list.GetSlice(), func(one string) bool { return one != "" })
	}
	if !empty || strings.Contains(f.Usage, emptyMeans) {
		return nil
	}
	what, _ := placeholder(f)
	return fmt.Errorf("is empty: want a %s, or leave it out", what)
}

// refuseEmpty checks every flag of the command line.
func refuseEmpty(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if wrong := checkEmpty(f); wrong != nil && err == nil {
			err = fmt.Errorf("--%s %w", f.Name, wrong)
		}
	})
	return err
}

// wanted is what a value of a type of pflag looks like; empty of a type that says so itself.
func wanted(kind string) string {
	switch kind {
	case "int", "int64":
		return "a whole number"
	case "uint64":
		return "a whole number from 0 on"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "duration":
		return "a time with its unit, for example 30s or 5m"
	}
	return ""
}

// Section is a part of a command's help: a title, and the flag that it begins with.
type Section struct{ Title, First string }

// help is the help of a command's flags in sections, in the order in which they were added. A section whose first flag
// is not there is a defect of the program, and panics.
func help(flags *pflag.FlagSet, sections []Section) string {
	begins := map[string]string{}
	for _, s := range sections {
		if flags.Lookup(s.First) == nil {
			panic("section " + s.Title + ": no flag " + s.First)
		}
		begins[s.First] = s.Title
		_ = flags.SetAnnotation(s.First, sectionTitle, []string{s.Title}) // it is there
	}
	var b strings.Builder
	part := pflag.NewFlagSet("", pflag.ContinueOnError)
	part.SortFlags = false
	title := "Flags"
	write := func() {
		if usages := flagUsages(part); usages != "" {
			fmt.Fprintf(&b, "%s:\n%s\n", title, usages)
		}
		part = pflag.NewFlagSet("", pflag.ContinueOnError)
		part.SortFlags = false
	}
	sorted := flags.SortFlags
	flags.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		if next := begins[f.Name]; next != "" {
			write()
			title = next
		}
		part.AddFlag(f)
	})
	flags.SortFlags = sorted
	write()
	return strings.TrimRight(b.String(), "\n")
}
