// Package config is how a command gets its settings and how it ends: it merges the environment and a YAML file under
// the flags, and turns interrupts and errors into one line and an exit status (program.go).
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
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"gradbus/internal/certificate"
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

// secretBytesMax bounds a secret, and secretFileBytesMax its file: a larger one is a mistake in the name.
const (
	secretBytesMax     = 4096
	secretFileBytesMax = 1 << 16
)

// Secret reads a secret from the first line of a file, or of a pipe, so that it is never part of a command line. An
// empty path gives an empty secret; an empty first line is an error. log is warned of a file that other users of the
// machine may read, or write: they know the secret, or choose it.
func Secret(path string, log *slog.Logger) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := regular.Read(path, secretFileBytesMax)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	line = strings.TrimSpace(line)
	switch {
	case line == "":
		err = errors.New("its first line is empty, want the token")
	case len(line) > secretBytesMax:
		err = fmt.Errorf("its first line has %d bytes, want at most %d", len(line), secretBytesMax)
	default:
		regular.WarnExposed(path, log)
		return line, nil
	}
	return "", fmt.Errorf("token file %s: %w", path, err)
}

// TLS are the flags of encrypted connections: --tls-cert and --tls-key are what this process shows, as a server and to
// servers that ask; --tls-ca vouches for the others. Where none is given connections are plain, but to addresses that
// begin with tls://.
type TLS struct {
	Cert, Key, CA string

	loaded *loadedTLS // what Load has read; nil before
}

// loadedTLS is the contents of the flags' files when they were last read.
type loadedTLS struct {
	pair  *certificate.File // nil: none is shown
	roots *x509.CertPool    // nil: the system's
	serve atomic.Pointer[tls.Config]
}

// Add adds the flags. cert and ca are the help of --tls-cert and --tls-ca.
func (t *TLS) Add(set *pflag.FlagSet, cert, ca string) {
	set.StringVar(&t.Cert, "tls-cert", "", "`PATH`: "+cert)
	set.StringVar(&t.Key, "tls-key", "", "`PATH`: private key (PEM) of --tls-cert")
	set.StringVar(&t.CA, "tls-ca", "", "`PATH`: "+ca)
}

// Args are the flags for another process.
func (t *TLS) Args() []string {
	return GivenPairs("--tls-cert", t.Cert, "--tls-key", t.Key, "--tls-ca", t.CA)
}

// Load gives how to serve, nil for plain connections, and how to dial, nil where no flag was given. Reload changes how
// connections are served from then on.
func (t *TLS) Load(log *slog.Logger) (serve, dial *tls.Config, err error) {
	if (t.Cert == "") != (t.Key == "") {
		return nil, nil, errors.New("tls-cert and tls-key: want both or neither")
	}
	roots, err := RootCAs(t.CA)
	if err != nil {
		return nil, nil, err
	}
	t.loaded = &loadedTLS{}
	if t.Cert != "" {
		if t.loaded.pair, err = certificate.Load("tls", t.Cert, t.Key, log); err != nil {
			return nil, nil, err
		}
	}
	dial = t.loaded.trust(roots)
	if t.loaded.pair == nil {
		return nil, dial, nil
	}
	serve = t.loaded.serve.Load().Clone()
	serve.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.loaded.serve.Load(), nil }
	return serve, dial, nil
}

// Reload reads the files of the flags again, and names the flags whose files say something else. It gives how to dial
// from now on. After an error everything stays as it was.
func (t *TLS) Reload() (dial *tls.Config, changed []string, err error) {
	l := t.loaded
	if (t.Cert == "") != (l.pair == nil) || (t.Key == "") != (l.pair == nil) {
		return nil, nil, errors.New("tls-cert, tls-key: TLS begins and ends with a restart alone")
	}
	roots, err := RootCAs(t.CA)
	if err != nil {
		return nil, nil, err
	}
	if (roots == nil) != (l.roots == nil) { // a lost line of the settings must not open the server
		return nil, nil, errors.New("tls-ca: it begins and ends with a restart alone")
	}
	if l.pair != nil {
		renewed, err := l.pair.Reload(t.Cert, t.Key)
		if err != nil {
			return nil, nil, err
		}
		if renewed {
			changed = append(changed, "tls-cert")
		}
	}
	if roots != nil && !roots.RootCAs.Equal(l.roots) {
		changed = append(changed, "tls-ca")
	}
	return l.trust(roots), changed, nil
}

// trust takes the authorities whose certificates count from now on, and gives how to dial.
func (l *loadedTLS) trust(roots *tls.Config) (dial *tls.Config) {
	l.roots = nil
	if roots != nil {
		l.roots = roots.RootCAs
	}
	if l.pair == nil {
		return roots
	}
	serve := &tls.Config{MinVersion: tls.VersionTLS12}
	dial = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: l.roots}
	l.pair.Serve(serve)
	l.pair.Show(dial)
	if roots != nil {
		serve.ClientCAs, serve.ClientAuth = l.roots, tls.RequireAndVerifyClientCert
	}
	l.serve.Store(serve)
	return dial
}

// addressFlag marks flags of addresses, in which NATS takes a user and a password, or a token.
const addressFlag = "gradbus-address"

// Addresses marks flags as addresses of servers. A password in an address is accepted in the file of settings only:
// every user of a machine can list its processes with their command lines, and a unit or container shows its
// environment.
func Addresses(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		// panics on start-up would be worse than a flag without the check
		_ = flags.SetAnnotation(name, addressFlag, []string{"true"})
	}
}

// HasPassword tells whether one of the addresses, with commas between, has a user, a password or a token in it.
func HasPassword(addresses string) bool {
	for one := range strings.SplitSeq(addresses, ",") {
		if _, after, ok := strings.Cut(one, "://"); ok {
			one = after
		}
		if host, _, _ := strings.Cut(one, "/"); strings.Contains(host, "@") {
			return true
		}
	}
	return false
}

// anyPassword tells whether one of the addresses has a password.
func anyPassword(flags *pflag.FlagSet) (any bool) {
	flags.VisitAll(func(f *pflag.Flag) {
		any = any || f.Annotations[addressFlag] != nil && HasPassword(f.Value.String())
	})
	return any
}

// refusePasswords fails where an address of the command line, or of the environment, which gave those that are given,
// has a password.
func refusePasswords(flags *pflag.FlagSet, given []string) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[addressFlag] == nil || err != nil || !HasPassword(f.Value.String()) {
			return
		}
		where, who := "", ""
		switch {
		case f.Changed:
			where, who = "--"+f.Name, "on a command line every user of this machine sees it"
		case slices.Contains(given, f.Name):
			where, who = variable(f.Name), "in the environment all that this process starts may see it"
		default:
			return
		}
		instead := "put the address into a file for --config, as " + f.Name + ": ADDRESS"
		for _, name := range []string{"token-file", "nats-creds"} {
			if flags.Lookup(name) != nil {
				instead += ", or use --" + name
			}
		}
		err = fmt.Errorf("%s has a password or token in its address, and %s: %s", where, who, instead)
	})
	return err
}
