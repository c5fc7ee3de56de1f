// Command plants counts how many small changes of behavior the tests find.
//
//	go test -tags native -short -coverpkg ./... -coverprofile /tmp/cover ./...
//	go run ./e2e/plants -cover /tmp/cover -seed 1 -n 60 -out /tmp/plants.txt
//	go run ./e2e/plants -replay /tmp/plants.txt -out /tmp/after.txt     # the same changes in a later commit
//
// It draws functions by the seed from those that the profile covers, and in each one change: a condition negated, a
// comparison moved by one, + and - exchanged, a number changed, a statement left out. A change is compiled as an overlay,
// so no file of the checkout changes. Its package's tests run first, then those of the packages that import it, the
// nearest first, until one fails. Each change is one line of -out; a run that was interrupted continues behind the last.
//
// A replay finds a change by package, function, kind and the text that it replaces, wherever it has moved within the
// package. What is gone is said to be gone.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("plants: ")
	var r runner
	cover := flag.String("cover", "", "coverage profile that says which functions tests reach")
	replay := flag.String("replay", "", "an earlier -out whose changes are made again")
	seed := flag.Uint64("seed", 1, "determines the changes")
	n := flag.Int("n", 60, "changes")
	flag.StringVar(&r.out, "out", "plants.txt", "file with a line for each change")
	flag.StringVar(&r.tags, "tags", "native", "build tags")
	flag.DurationVar(&r.within, "timeout", 10*time.Minute, "longest run of one package's tests")
	flag.Parse()
	if err := r.run(*cover, *replay, *seed, *n); err != nil {
		log.Fatal(err)
	}
}

// runner makes changes one by one and runs tests on each.
type runner struct {
	out, tags string
	within    time.Duration
	packages  map[string]*pkg // by import path
}

// run draws n changes, or reads them from a file, and appends the outcome of each that -out does not have yet.
func (r *runner) run(cover, replay string, seed uint64, n int) error {
	if (cover == "") == (replay == "") {
		return errors.New("want -cover or -replay")
	}
	if err := r.list(); err != nil {
		return err
	}
	var sites []site
	for _, p := range r.packages {
		found, err := p.sites()
		if err != nil {
			return err
		}
		sites = append(sites, found...)
	}
	slices.SortFunc(sites, func(a, b site) int { return strings.Compare(a.key(), b.key()) })
	var chosen []site
	if replay != "" {
		lines, err := readLines(replay)
		if err != nil {
			return err
		}
		chosen = again(lines, sites)
	} else {
		covered, err := readProfile(cover)
		if err != nil {
			return err
		}
		chosen = draw(slices.DeleteFunc(sites, func(s site) bool { return !covered.has(s) }), seed)
	}
	return r.each(chosen, n)
}

// each tries changes in their order until n have an outcome. A change that does not compile is none.
func (r *runner) each(chosen []site, n int) error {
	done, err := readLines(r.out)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	to, err := os.OpenFile(r.out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer to.Close()
	found, count := 0, 0
	for _, s := range chosen {
		if count == n {
			break
		}
		outcome := done[s.key()]
		if outcome == "" {
			if outcome, err = r.try(s); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(to, "%s\t%s\n", s.key(), outcome); err != nil {
				return err
			}
		}
		if outcome == notCompiled {
			continue
		}
		count++
		if strings.HasPrefix(outcome, foundBy) {
			found++
		}
		log.Printf("%d of %d: %s: %s", count, n, strings.ReplaceAll(s.key(), "\t", " | "), outcome)
	}
	log.Printf("%d of %d found", found, count)
	return to.Close()
}

// Outcomes of a change.
const (
	foundBy     = "found by "
	missed      = "missed"
	gone        = "gone"
	notCompiled = "does not compile"
)

// try runs the tests of the packages that a change may break.
func (r *runner) try(s site) (string, error) {
	if s.p == nil {
		return gone, nil
	}
	dir, err := os.MkdirTemp("", "plants-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	changed := filepath.Join(dir, "changed.go")
	if err := os.WriteFile(changed, s.apply(), 0o644); err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{s.file: changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, text, 0o644); err != nil {
		return "", err
	}
	if out, err := r.goRun("build", "-overlay", overlay, s.p.ImportPath); err != nil {
		if len(out) == 0 {
			return "", err
		}
		return notCompiled, nil
	}
	for _, path := range r.testers(s.p.ImportPath) {
		out, err := r.goRun("test", "-overlay", overlay, "-vet=off", "-short", "-failfast", "-timeout", r.within.String(), path)
		if err != nil {
			return foundBy + path + " " + failed(out), nil
		}
	}
	return missed, nil
}

// goRun runs the go command in the checkout.
func (r *runner) goRun(command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.within+time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "go", append([]string{command, "-tags", r.tags}, args...)...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// failed returns the first test that an output names as failed, or else the panic that ended the run. A run that timed
// out has found the change only if it does so again by itself on a calm machine.
func failed(out string) string {
	ended := "(no test by name)"
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			return name
		}
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			ended = "(" + line + ")"
		}
	}
	return ended
}

// draw orders changes by the seed: one of each function, then further ones of the same functions.
func draw(sites []site, seed uint64) []site {
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(sites), func(i, j int) { sites[i], sites[j] = sites[j], sites[i] })
	seen := map[string]bool{}
	var first, rest []site
	for _, s := range sites {
		if seen[s.function()] {
			rest = append(rest, s)
			continue
		}
		seen[s.function()] = true
		first = append(first, s)
	}
	// Shuffled again: a function with many sites must not come earlier.
	random.Shuffle(len(first), func(i, j int) { first[i], first[j] = first[j], first[i] })
	return append(first, rest...)
}

// again finds the changes of an earlier run; what does not exist any more has no package.
func again(lines map[string]string, sites []site) []site {
	at := map[string]site{}
	for _, s := range sites {
		at[s.key()] = s
	}
	var found []site
	for key, outcome := range lines {
		if outcome == notCompiled {
			continue
		}
		s, ok := at[key]
		if !ok {
			s = site{was: key}
		}
		found = append(found, s)
	}
	slices.SortFunc(found, func(a, b site) int { return strings.Compare(a.key(), b.key()) })
	return found
}

// readLines returns the outcomes in a file by the keys of their changes.
func readLines(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := map[string]string{}
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		if at := strings.LastIndexByte(scan.Text(), '\t'); at > 0 {
			lines[scan.Text()[:at]] = scan.Text()[at+1:]
		}
	}
	return lines, scan.Err()
}
