package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// environmentPrefix begins the names of the variables that are settings: GRADBUS_TOKEN_FILE is --token-file.
const environmentPrefix = "GRADBUS_"

// variable is the name of a flag in the environment.
func variable(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets every flag that a variable names and the command line does not, and gives their names. A
// variable that is no flag of this command may be one of another of ours: where it looks like a slip, unknown is told.
// Settings belong to one process: the variables are taken out of the environment, so that what it starts has the
// settings that it is started with.
func fromEnvironment(flags *pflag.FlagSet, unknown func(text string)) (given []string, err error) {
	var wrong []string
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		word, ours := strings.CutPrefix(name, environmentPrefix)
		if !ours {
			continue
		}
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if now := formerName(flags, word, variable); now != "" && variable(plainWord(word)) == name {
			wrong = append(wrong, fmt.Sprintf("%s in the environment %s", name, now))
			continue
		}
		flag := flags.Lookup(plainWord(word))
		if flag == nil || variable(flag.Name) != name || !settable(flag) && flag.Name != FileFlag {
			if near := nearest(flags, word); len(near) > 0 {
				for i := range near {
					near[i] = variable(near[i])
				}
				unknown(name + " in the environment is no setting of this command (" + didYouMean("", near) + ")")
			}
			continue
		}
		if err := setText(flag, value); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s in the environment: %v", name, err))
			continue
		}
		if !flag.Changed {
			given = append(given, flag.Name)
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return nil, fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return given, nil
}
