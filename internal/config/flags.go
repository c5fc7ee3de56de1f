package config

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"gradbus"
	"gradbus/internal/process"
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

// wanted describes the values of a type of pflag; empty for a type that describes them itself.
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

// meant are the flags that a word of PyTorch's programs stands for, or one that a flag of ours had before. Of several,
// those count that the command has. It is never written to.
var meant = map[string][]string{
	"learning-rate": {"lr"}, "alpha": {"lr"}, "eta": {"lr"}, "batch-size": {"batch", "trainer-batch"},
	"bs":         {"batch", "trainer-batch"},
	"mini-batch": {"batch", "trainer-batch"}, "batch": {"trainer-batch"}, "trainer-batch": {"batch"},
	"num-workers": {"trainers"}, "workers": {"trainers"}, "world-size": {"trainers"}, "nproc-per-node": {"trainers"},
	"num-trainers": {"trainers"}, "number-trainers": {"trainers"}, "ntrainer": {"trainers"}, "number-ps": {"servers"},
	"nserver": {"servers"}, "ncudatrainer": {"backend"}, "ncudaserver": {"server-backend"}, "ddp-hook": {"hook"},
	"torch-seed": {"seed"}, "cuda-seed": {"seed"}, "preprocess-data": {"preprocess"}, "create-criterion": {"criterion"},
	"data-config-path": {"input"}, "model-config-path": {"model"}, "number-embeddings": {"embeddings"},
	"warmup-cycles": {"warmup"},
	"num-servers":   {"servers", "shards"}, "num-shards": {"shards"}, "epoch": {"epochs"}, "num-epochs": {"epochs"},
	"max-epochs": {"epochs"},
	"steps":      {"batches"}, "max-steps": {"batches"}, "iterations": {"batches"}, "iters": {"batches"},
	"num-batches": {"batches"},
	"device":      {"backend"}, "cuda": {"backend"}, "gpu": {"backend"}, "use-cuda": {"backend"},
	"gpus": {"backend"}, "num-gpus": {"gpus", "backend"}, "server-device": {"server-backend"},
	"host": {"listen", "server"}, "port": {"listen", "server"}, "address": {"listen", "server"},
	"addr": {"listen", "server"}, "bind": {"listen"},
	"url": {"server", "ps"}, "master-addr": {"server"}, "master-port": {"server"}, "join": {"server"},
	"connect": {"server"},
	"data":    {"input", "route"}, "dataset": {"input"}, "data-path": {"input"}, "cluster": {"route"},
	"rank": {"id", "here"}, "name": {"job", "id"}, "job-name": {"job"}, "num-lanes": {"lanes"}, "random-seed": {"seed"},
	"manual-seed":   {"seed"},
	"embedding-dim": {"dim"}, "embedding-size": {"dim"}, "dense": {"library"}, "num-threads": {"threads"},
	"nthreads": {"threads"},
	"output":   {"save"}, "checkpoint": {"save", "load"}, "resume": {"load"}, "model-path": {"load", "save"},
	"log-dir": {"tensorboard"},
	"logdir":  {"tensorboard"}, "dtype": {"wire"}, "precision": {"wire"}, "amp": {"wire"}, "verbose": {"log-level"},
	"debug": {"log-level"},
	"token": {"token-file"}, "password": {"token-file"}, "ca": {"tls-ca", "http-ca"}, "cert": {"tls-cert"},
	"key":    {"tls-key"},
	"memory": {"memory-mib"}, "page": {"http"}, "dashboard": {"http"}, "web": {"http"}, "timeout": {"deadline"},
	"token-file": {"http-token-file"}, "kernels": {"kernel-library"}, "standby": {"replicas"}, "replica": {"replicas"},
}

// renamed has the new names of flags by the old ones, which are refused until 1.0: on a command line, in the
// environment and in a file of settings. It is never written to.
var renamed = map[string]string{
	"ahead": "staleness", "back-within": "reconnect-timeout", "gather": "start-timeout", "on-lost": "failure-policy",
	"standby": "peer", "standby-peers": "replicas",
}

// gone has the flags that were removed, each with a flag of the commands that had it and with what holds now. They are
// refused on a command line and in a file of settings. A variable of such a name is passed over, since it may be a
// setting of another command. It is never written to.
var gone = map[string]struct{ beside, now string }{
	"sparse":           {"placement", "gradients of rows travel as rows or as bags, whichever is smaller"},
	"checkpoint-dir":   {"tensorboard", "a trainer writes no checkpoints: give --checkpoint-dir to ps"},
	"checkpoint-every": {"tensorboard", "a trainer writes no checkpoints: give --checkpoint-every to ps"},
	"checkpoint-keep":  {"tensorboard", "a trainer writes no checkpoints: give --checkpoint-keep to ps"},
	"dtype":            {"rounds", "its measures are of float32 alone"},
	"nats-monitor":     {"control-token-file", "the page and /metrics show what its NATS server does"},
	"by-trainers":      {"hybrid", "a job whose shards add up nothing ends with a lost trainer"},
}

// formerName says what a flag that the command had under another name is called now, and its value where the old one
// does not do; empty if it had none of this name. write gives the text of a flag's name.
func formerName(flags *pflag.FlagSet, name string, write func(string) string) string {
	word := plainWord(name)
	now := renamed[word]
	switch {
	case now == "" || !settable(flags.Lookup(now)):
		return ""
	case word == "standby-peers":
		return "is " + write(now) + " 1 now"
	case word == "standby":
		return "is " + write("replicas") + " 1 and " + write(now) + " URL now"
	}
	return "is called " + write(now) + " now"
}

// former says what became of a flag that the command had, renamed or removed; empty if it had none of this name.
func former(flags *pflag.FlagSet, name string, write func(string) string) string {
	if now := formerName(flags, name, write); now != "" {
		return now
	}
	word := plainWord(name)
	if g := gone[word]; g.now != "" && settable(flags.Lookup(g.beside)) && flags.Lookup(word) == nil {
		return "is gone: " + g.now
	}
	return ""
}

// meantValues are the values of ours that a word of PyTorch's programs stands for, as plainWord has it. It is never
// written to.
var meantValues = map[string]string{
	"allreduce-hook": "allreduce", "hybrid-hook": "hybrid", "rpc-hook": "rpc", "sparse-rpc-hook": "sparse-rpc",
	"averageparameterserver": "average", "averagebatchparameterserver": "average-batch",
}

// Meant is the word that a value stands for, of those that a flag takes; empty where it is like none.
func Meant(value string, words []string) string {
	plain := plainWord(value)
	for _, one := range []string{plain, meantValues[plain]} {
		if slices.Contains(words, one) {
			return one
		}
	}
	return near(plain, words)
}

// plainWord is a name as flags have theirs.
func plainWord(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimLeft(name, "-"), "_", "-"))
}

// settable tells whether a flag is one that a person may be told of, and a file may set.
func settable(f *pflag.Flag) bool {
	return f != nil && !f.Hidden && f.Name != FileFlag && f.Name != "help" && f.Name != "version"
}

// synonyms are the flags of a command that a word stands for.
func synonyms(flags *pflag.FlagSet, name string) (found []string) {
	word := plainWord(name)
	for _, one := range append([]string{word, renamed[word]}, meant[word]...) {
		if settable(flags.Lookup(one)) {
			found = append(found, one)
		}
	}
	return found
}

// nearest are the flags that were meant, of those that a file may set: those that a word stands for, else the one whose
// name is near enough.
func nearest(flags *pflag.FlagSet, name string) []string {
	if found := synonyms(flags, name); len(found) > 0 {
		return found
	}
	var all []string
	flags.VisitAll(func(f *pflag.Flag) {
		if settable(f) {
			all = append(all, f.Name)
		}
	})
	if one := near(plainWord(name), all); one != "" {
		return []string{one}
	}
	return nil
}

// near is the name that is at most two letters away, and no more than half of it, rounded up; empty where none is.
func near(word string, names []string) (found string) {
	least := min(2, (len(word)+1)/2) + 1
	for _, name := range names {
		if d := distance(name, word); d < least {
			found, least = name, d
		}
	}
	return found
}

// didYouMean asks for one of the names, each written with what stands before it.
func didYouMean(before string, names []string) string {
	return "did you mean " + before + strings.Join(names, " or "+before) + "?"
}

// notAFlag says what a flag that a command does not have could be: one of its own under another name, or one of the
// commands below it.
func notAFlag(c *cobra.Command, name string) error {
	flags := c.Flags()
	if now := former(flags, name, func(flag string) string { return "--" + flag }); now != "" {
		return fmt.Errorf("--%s %s", name, now)
	}
	own := synonyms(flags, name)
	if len(own) == 0 {
		for _, exact := range []bool{true, false} {
			if err := below(c, name, exact); err != nil {
				return err
			}
			if near := nearest(flags, name); len(near) > 0 {
				own = near
				break
			}
		}
	}
	if len(own) == 0 {
		return fmt.Errorf("unknown flag --%s (%s --help lists them)", name, invokedPath(c))
	}
	return fmt.Errorf("unknown flag --%s (%s)", name, didYouMean("--", own))
}

// below says that a flag belongs to a command below this one, which has to be named first; nil where none has it.
func below(c *cobra.Command, name string, exact bool) error {
	var with []string
	flag := ""
	for _, sub := range c.Commands() {
		found := synonyms(sub.Flags(), name)
		if !exact {
			found = nearest(sub.Flags(), name)
		}
		if sub.Hidden || len(found) == 0 {
			continue
		}
		with = append(with, sub.Name())
		if flag == "" {
			flag = found[0]
		}
	}
	if len(with) == 0 {
		return nil
	}
	return fmt.Errorf("unknown flag --%s: name the %s first, as in %s %s --%s (known: %s)", name, kindOf(c),
		invokedPath(c), with[0], flag, strings.Join(with, ", "))
}

// kindOf returns the name of subcommands in a usage line: the workload of trainer WORKLOAD.
func kindOf(c *cobra.Command) string {
	if use := strings.Fields(c.Use); len(use) > 1 {
		return strings.ToLower(use[1])
	}
	return "command"
}

// NotACommand says what a word could be that names no command below c, of the kind that its usage line says.
func NotACommand(c *cobra.Command, word string) error {
	var names []string
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			names = append(names, sub.Name())
		}
	}
	kind := kindOf(c)
	if len(names) == 0 {
		return fmt.Errorf("unexpected argument %q: settings are flags (see %s --help)", word, invokedPath(c))
	}
	if one := near(strings.ToLower(word), names); one != "" {
		return fmt.Errorf("unknown %s %q (%s)", kind, word, didYouMean("", []string{one}))
	}
	slices.Sort(names)
	return fmt.Errorf("unknown %s %q (known: %s); settings are flags (see %s --help)", kind, word,
		strings.Join(names, ", "), invokedPath(c))
}

// invokedPath is the path of a command with its program as it was started.
func invokedPath(c *cobra.Command) string {
	program, rest, _ := strings.Cut(c.CommandPath(), " ")
	return strings.TrimSpace(process.Invoked(program) + " " + rest)
}

// sectionTitle annotates the flag that a section of the help begins with.
const sectionTitle = "gradbus-section"

// configCommand is the command that prints a file of settings: of the program itself, or of one of its commands, which
// is named.
func configCommand(program *cobra.Command) *cobra.Command {
	names := configurable(program)
	c := &cobra.Command{Use: "config", Short: "Print a settings file for --config", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return errors.New("config: want config print (see " + invokedPath(c) + " --help)")
		}}
	use := "print"
	example := "  " + invokedPath(program) + " config print >settings.yaml"
	itself := program.Flags().Lookup(FileFlag) != nil
	switch {
	case itself && len(names) > 0:
		use += " [COMMAND]"
	case len(names) > 0:
		use += " " + strings.ToUpper(kindOf(program))
		example = fmt.Sprintf("  %s config print %s >settings.yaml\n  %[1]s %[2]s --config settings.yaml",
			invokedPath(program), names[0])
	}
	c.AddCommand(&cobra.Command{
		Use:     use,
		Short:   "Print every setting with its default as a YAML file for --config",
		Example: example,
		RunE: func(c *cobra.Command, args []string) error {
			of := program
			switch {
			case len(names) == 0 && len(args) > 0 || len(args) > 1:
				return fmt.Errorf("unexpected argument %q", args[len(args)-1])
			case len(args) == 0 && !itself:
				return fmt.Errorf("config print: want a %s: one of %s", kindOf(program), strings.Join(names, ", "))
			case len(args) == 1:
				if of, _, _ = program.Find(args); of == program || of.Flags().Lookup(FileFlag) == nil {
					return NotACommand(program, args[0])
				}
			}
			return printSettings(c.OutOrStdout(), of)
		},
	})
	return c
}

// configurable are the commands below a program that take a file of settings.
func configurable(program *cobra.Command) (names []string) {
	for _, c := range program.Commands() {
		if c.Flags().Lookup(FileFlag) != nil {
			names = append(names, c.Name())
		}
	}
	return names
}

// printSettings writes every setting of a command with its default. One whose default is nothing is commented out.
func printSettings(to io.Writer, c *cobra.Command) (err error) {
	write := func(form string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(to, form, args...)
		}
	}
	write("# Settings of %s, gradbus %s, with their defaults, for --config. A flag wins over %sNAME in the environment, "+
		"and that over this file.\n",
		invokedPath(c), gradbus.Version, environmentPrefix)
	flags := c.LocalFlags()
	flags.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		if !settable(f) {
			return
		}
		if title := f.Annotations[sectionTitle]; title != nil {
			write("\n## %s\n", title[0])
		}
		what, help := placeholder(f)
		write("\n# %s\n", strings.ReplaceAll(help, "\n", "\n# "))
		value := f.DefValue
		if value == "" || value == "[]" {
			write("#%s: %s\n", f.Name, strings.ToUpper(what))
			return
		}
		if f.Value.Type() == "string" {
			text, wrong := yaml.Marshal(value)
			if wrong != nil {
				err = wrong
				return
			}
			value = strings.TrimSuffix(string(text), "\n")
		}
		write("%s: %s\n", f.Name, value)
	})
	return err
}
