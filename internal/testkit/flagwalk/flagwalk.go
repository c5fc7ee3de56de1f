// Package flagwalk tests commands: every flag of a command, set to each of its values, changes what the command does,
// or is refused by name. A flag that is accepted and ignored fails, and so does one that is not on the list.
//
// The effect of a command is its visible result: its output, except times and rates, its exit status, and the files
// that it leaves. Repeated runs of one command line must have the same effect, or changes could not be detected.
//
// It knows cobra and files. It must not know any command. Only tests import it.
package flagwalk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Flag is the value of one flag, and its expected effect. Without Refused and Test, the command does something else
// than without the flag.
type Flag struct {
	Value   string
	With    string // more of the command line, which the run that it is compared with has too
	Refused string // words of the error that refuses it, besides its name
	Fails   string // words of the error that a run ends with
	Test    string // that shows what it does where nothing is to be seen here, as in ps.TestRoundsAreTimed
}

// Set is a flag with a value that changes something.
func Set(value string) Flag { return Flag{Value: value} }

// Refused is a flag that is turned down, with these words and its name.
func Refused(value, words string) Flag { return Flag{Value: value, Refused: words} }

// Fails is a flag by which a run ends with an error of these words.
func Fails(value, words string) Flag { return Flag{Value: value, Fails: words} }

// Held is a flag whose effect a test shows that is named here.
func Held(test string) Flag { return Flag{Test: test} }

// Flags are those of a command, by name.
type Flags map[string]Flag

// And is f with those of more in their place.
func (f Flags) And(more Flags) Flags {
	all := maps.Clone(f)
	maps.Copy(all, more)
	return all
}

// Setting is a command in one of its modes: Line is how it is called, without the flag that is walked. DIR in it, and
// in what is given to flags, is a folder of the run's own.
type Setting struct {
	Line  string
	Flags Flags
	// Fails says that the command ends with an error in this setting, as the only sign of its life.
	Fails bool
	// Sees returns what else is visible of a run in progress, for its own process; nil: nothing.
	Sees func() string
}

// Walker runs a command line of a program: New makes its root.
type Walker struct {
	New func() *cobra.Command
	// Run executes the command; nil is Execute. It gets the folder of the run.
	Run func(ctx context.Context, c *cobra.Command, dir string) error
	// Exact says that times in what is printed are what the command was told, and not what it took.
	Exact bool
	// Echoes are fields of what is printed that repeat a flag, and prove nothing.
	Echoes []string
	// Root is the way from the folder of the test to that of the module.
	Root string
}

// Walk walks all flags of the command in a setting.
func (w *Walker) Walk(t *testing.T, s Setting) {
	t.Helper()
	if testing.Short() {
		t.Skip("all flags in all settings take half a minute; without -short they are walked")
	}
	leaf, _, err := w.New().Find(strings.Fields(s.Line))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	leaf.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Name == "version" {
			return
		}
		seen[f.Name] = true
		if _, there := s.Flags[f.Name]; !there {
			t.Errorf("%s: --%s is not walked: say what it changes in this setting, or refuse it", s.Line, f.Name)
		}
	})
	before := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Flags)) {
		if !seen[name] {
			t.Errorf("%s: there is no --%s", s.Line, name)
			continue
		}
		w.one(t, s, name, before)
	}
}

// one walks a flag. before are the outcomes without it, by what else is given.
func (w *Walker) one(t *testing.T, s Setting, name string, before map[string]string) {
	t.Helper()
	f := s.Flags[name]
	if f.Test != "" {
		if !w.exists(f.Test) {
			t.Errorf("%s: --%s is held by %s, which does not exist", s.Line, name, f.Test)
		}
		return
	}
	line := strings.TrimSpace(s.Line + " " + f.With)
	given := "--" + name + "=" + f.Value
	after, err := w.outcome(t, s, line, given)
	if f.Refused != "" || f.Fails != "" {
		if err == nil || f.Refused != "" && !strings.Contains(err.Error(), name) ||
			!strings.Contains(err.Error(), f.Refused+f.Fails) {
			t.Errorf("%s %s: %v, want an error with %q, and where the flag is refused its name", line, given, err,
				f.Refused+f.Fails)
		}
		return
	}
	if err != nil && !s.Fails {
		t.Errorf("%s %s: %v, want a run", line, given, err)
		return
	}
	if _, there := before[line]; !there {
		first, err := w.outcome(t, s, line, "")
		if err != nil && !s.Fails {
			t.Errorf("%s: %v", line, err)
			return
		}
		if again, _ := w.outcome(t, s, line, ""); again != first {
			t.Errorf("%s does one thing and then another:\n%s\n%s", line, first, again)
			return
		}
		before[line] = first
	}
	if after == before[line] {
		t.Errorf("%s %s: the flag is accepted and ignored:\n%s", line, given, after)
	}
}

// outcome is the visible result of a command line.
func (w *Walker) outcome(t *testing.T, s Setting, line, given string) (string, error) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(strings.ReplaceAll(line, "DIR", dir))
	if given != "" {
		args = append(args, strings.ReplaceAll(given, "DIR", dir))
	}
	c := w.New()
	c.SetArgs(args)
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	if w.Run != nil {
		err = w.Run(t.Context(), c, dir)
	} else {
		err = c.ExecuteContext(t.Context())
	}
	text := w.plain(out.String()) + w.plain(errs.String())
	if err != nil {
		text += "error: " + err.Error() + "\n"
	}
	if s.Sees != nil {
		text += s.Sees()
	}
	text += files(t, dir)
	return strings.ReplaceAll(text, dir, "DIR"), err
}

var (
	// timed are names of fields that say how long something took, or when it was, or how fast it went, and what was sent,
	// since that may be sent again.
	timed = regexp.MustCompile(`second|_ms$|_us$|per_|^p[0-9]+$|^time$|time_|_time|rate$|ratio|^began|^ended|^bytes_|^messages_`)
	// figures are the numbers of lines for people that differ from run to run: those with a unit of time or rate.
	figures = regexp.MustCompile(`[0-9][0-9.]*( ?(ms|s|us|µs|seconds|images/s|samples/s|updates/s|rounds/s|GB/s|MB/s)\b)`)
	ports   = regexp.MustCompile(`(127\.0\.0\.1|localhost):[0-9]+`)
	clock   = regexp.MustCompile(`[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?`)
)

// plain is a text without what differs from run to run, in an order of its own: goroutines take turns.
func (w *Walker) plain(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		var value any
		if json.Unmarshal([]byte(line), &value) == nil {
			data, _ := json.MarshalIndent(w.timeless(value), "", " ") // it came from JSON
			lines[i] = string(data)
			continue
		}
		if !w.Exact {
			line = figures.ReplaceAllString(line, "N$1")
		}
		lines[i] = clock.ReplaceAllString(ports.ReplaceAllString(line, "$1:PORT"), "CLOCK")
	}
	slices.Sort(lines)
	return strings.TrimLeft(strings.Join(lines, "\n")+"\n", "\n")
}

// timeless is a value of JSON without fields that are timed, or echoes.
func (w *Walker) timeless(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name := range v {
			if timed.MatchString(name) || slices.Contains(w.Echoes, name) {
				v[name] = "any"
			} else {
				v[name] = w.timeless(v[name])
			}
		}
	case string:
		return ports.ReplaceAllString(v, "$1:PORT")
	case []any:
		for i := range v {
			v[i] = w.timeless(v[i])
		}
	}
	return value
}

// manifest is a line of a job's manifest, which TensorBoard's files have.
var manifest = regexp.MustCompile(`(?m)^ +"[a-z_]+": .*$`)

// files are the names of those that a run has left, and what they say of its job.
func files(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := entry.Name()
		if strings.Contains(name, "tfevents") {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name = "tfevents\n" + string(bytes.Join(manifest.FindAll(data, -1), []byte("\n")))
		}
		all = append(all, "file "+name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// exists tells whether a test is there: a package of the module, a dot, and its name.
func (w *Walker) exists(test string) bool {
	at := strings.LastIndex(test, ".")
	found, err := filepath.Glob(filepath.Join(w.Root, filepath.FromSlash(test[:max(0, at)]), "*_test.go"))
	if err != nil || at < 0 {
		return false
	}
	return slices.ContainsFunc(found, func(path string) bool {
		data, err := os.ReadFile(path)
		return err == nil && bytes.Contains(data, fmt.Appendf(nil, "\nfunc %s(t ", test[at+1:]))
	})
}

// Empty gives every flag of every command that takes a text, or a list of them, an empty value: it is refused with the
// flag's name, unless the flag's help says what empty is.
func (w *Walker) Empty(t *testing.T) {
	t.Helper()
	refused := 0
	for _, path := range commandsBelow(w.New(), nil) {
		named := func() *cobra.Command {
			c, _, err := w.New().Find(path)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		named().LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, list := f.Value.(pflag.SliceValue); !list && f.Value.Type() != "string" || f.Hidden {
				return
			}
			c := named()
			if err := c.ParseFlags([]string{"--" + f.Name + "="}); err != nil {
				t.Errorf("%v --%s=: %v", path, f.Name, err)
				return
			}
			err := c.Root().PersistentPreRunE(c, nil)
			says, is := strings.Contains(f.Usage, "empty"), err != nil && strings.Contains(err.Error(), "--"+f.Name+" is empty")
			if says == is {
				t.Errorf("%v --%s=: %v; its help says what empty is: %v", path, f.Name, err, says)
			}
			refused++
		})
	}
	if refused == 0 {
		t.Error("no flag takes a text")
	}
}

// commandsBelow are the words of all commands of a program, its own first.
func commandsBelow(c *cobra.Command, path []string) (all [][]string) {
	if all = append(all, path); c.Name() == "help" || c.Name() == "completion" {
		return all
	}
	for _, below := range c.Commands() {
		if !below.Hidden {
			all = append(all, commandsBelow(below, append(slices.Clone(path), below.Name()))...)
		}
	}
	return all
}
