package config

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"gradbus"
)

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
