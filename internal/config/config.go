// Package config is how a command gets its settings and how it ends: it merges the environment and a YAML file under
// the flags, and turns interrupts and errors into one line and an exit status (run.go).
//
// A command's flags are its configuration: each has a name, a type and a default, and fills one field of the command's
// configuration struct. A configuration file is a YAML mapping from flag names to values, as config print writes one;
// what was given on the command line wins over GRADBUS_FLAG_NAME in the environment, that over the file, and the file
// over the default. The file is strict: a name that is no flag, a name given twice or a value of the wrong type is an
// error that says file and line.
//
// What is wrong with a flag is said, and help is laid out, by flags.go.
//
// The package knows cobra, pflag and YAML. It must not know any setting: commands and packages validate their own.
package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"gradbus/internal/regular"
)

// FileFlag is the name of the flag that names the file; it cannot be set within a file.
const FileFlag = "config"

// fileBytesMax bounds a configuration file; a larger one is a mistake in the name.
const fileBytesMax = 1 << 20

// AddFileFlag gives a command the flag --config.
func AddFileFlag(flags *pflag.FlagSet) {
	flags.String(FileFlag, "", "`PATH`: YAML file of settings (see config print); flags and GRADBUS_NAME variables override it")
}

// Load sets every flag that the command line does not name from the environment, and what that does not name from the
// file that --config names, if it names one. warn is told of a variable that looks like a slip of a setting, and of a
// file with a password that others may read. All that is wrong with either is reported at once, joined by "; ": each
// with file and line, or its variable. The flags are then in no defined state. Flags that are set here do not count as
// changed. Where an address that was given elsewhere than in the file has a password in it, that is an error: see
// Addresses. So is an empty value, unless the flag's help says what that means.
func Load(flags *pflag.FlagSet, warn func(text string)) error {
	if err := refuseEmpty(flags); err != nil {
		return err
	}
	given, err := fromEnvironment(flags, warn)
	if err != nil {
		return err
	}
	if err := refusePasswords(flags, given); err != nil {
		return err
	}
	for _, name := range given {
		_ = flags.SetAnnotation(name, givenFlag, []string{"true"}) // it is one of these flags
	}
	file := flags.Lookup(FileFlag)
	if file == nil || file.Value.String() == "" {
		return nil
	}
	path := file.Value.String()
	if err := loadFile(path, flags, given); err != nil {
		return err
	}
	if why := regular.Exposed(path); why != "" && anyPassword(flags) {
		warn(fmt.Sprintf("%s has a password in it and is open to other users: %s", path, why))
	}
	return nil
}

// loadFile sets every flag that the file names and neither the command line nor the environment, which gave those that
// are given.
func loadFile(path string, flags *pflag.FlagSet, given []string) error {
	all, err := linesOf(path)
	if err != nil {
		return err
	}
	var wrong []string
	for _, one := range all {
		err := one.twice
		if err == nil {
			err = set(flags, one.name, one.value, slices.Contains(given, one.name))
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s:%d: %v", path, one.line, err))
		}
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// fileLine is a line of a configuration file.
type fileLine struct {
	name  string
	value *yaml.Node
	line  int
	twice error // that the name was given before
}

// linesOf reads a configuration file.
func linesOf(path string) (all []fileLine, err error) {
	data, err := regular.Read(path, fileBytesMax)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("%s: not YAML: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(document.Content) == 0 || document.Content[0].Tag == "!!null" {
		return nil, nil // empty, or comments only
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want a mapping from names of flags to values, one `name: value` a line", path,
			root.Line)
	}
	seen := map[string]int{}
	for i := 0; i < len(root.Content); i += 2 {
		name := root.Content[i]
		one := fileLine{name: name.Value, value: root.Content[i+1], line: name.Line}
		if first, twice := seen[one.name]; twice {
			one.twice = fmt.Errorf("%s: already given in line %d", one.name, first)
		} else {
			seen[one.name] = one.line
		}
		all = append(all, one)
	}
	return all, nil
}

// set gives one flag its value from the file, unless the environment or the command line gave it one. The value is
// checked either way.
func set(flags *pflag.FlagSet, name string, value *yaml.Node, given bool) error {
	flag := flags.Lookup(name)
	if !settable(flag) {
		return unknown(flags, name)
	}
	text, err := scalar(value)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	changed := flag.Changed
	flag.Changed = changed || given
	err = setText(flag, text)
	flag.Changed = changed
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return flags.SetAnnotation(name, fileFlag, []string{text})
}

// setText gives a flag a value, unless the command line gave it one. The value is checked either way.
func setText(flag *pflag.Flag, text string) error {
	given := flag.Value.String()
	if err := flag.Value.Set(text); err != nil {
		if want := wanted(flag.Value.Type()); want != "" {
			return fmt.Errorf("%q: want %s", text, want)
		}
		return fmt.Errorf("%q is not a value of type %s", text, flag.Value.Type())
	}
	if err := checkEmpty(flag); err != nil {
		return err
	}
	if flag.Changed {
		if err := flag.Value.Set(given); err != nil {
			return fmt.Errorf("keep %q of the command line: %w", given, err)
		}
	}
	return nil
}

func scalar(value *yaml.Node) (string, error) {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch {
	case value.Kind != yaml.ScalarNode:
		return "", errors.New("want a single value, not a list or a mapping")
	case value.Tag == "!!null":
		return "", errors.New("has no value; leave the line out for the default")
	}
	return value.Value, nil
}

// unknown names the nearest setting, where one is near enough to be what was meant.
func unknown(flags *pflag.FlagSet, name string) error {
	if now := former(flags, name, strings.Clone); now != "" {
		return fmt.Errorf("%s %s", name, now)
	}
	if near := nearest(flags, name); len(near) > 0 {
		return fmt.Errorf("unknown setting %q (%s)", name, didYouMean("", near))
	}
	return fmt.Errorf("unknown setting %q (--help lists them)", name)
}

// distance is the Levenshtein distance of two short names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
