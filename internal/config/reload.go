package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

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
