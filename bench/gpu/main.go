// Command gpu keeps what scripts/gpu_run.sh measured on a machine with a GPU, and writes it into docs/benchmarks.md.
//
//	go run ./bench/gpu OUT     keeps the phases in OUT as bench/gpu/CARD-DATE.json, then writes the document
//	go run ./bench/gpu         writes the document from what is kept
//
// It knows the JSON of phases and nothing of how they were run.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
)

const (
	folder       = "bench/gpu"
	document     = "docs/benchmarks.md"
	fileBytesMax = 4 << 20
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

// run keeps the phases of a folder, if one is given, and writes the document. It runs at the root of the repository.
func run(args []string, out io.Writer) error {
	if len(args) > 1 {
		return errors.New("want at most one folder: go run ./bench/gpu [OUT]")
	}
	for _, from := range args {
		name, err := keep(from)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "kept", name)
	}
	all, err := load(folder)
	if err != nil {
		return err
	}
	text, err := regular.Read(document, fileBytesMax)
	if err != nil {
		return err
	}
	text, err = insert(text, all.render())
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	return write(document, text)
}

func write(path string, text []byte) error {
	return atomicfile.Write(path, 0o644, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// keep writes the phases in a folder to the file of their card and date. Phases that the file has besides stay in it.
func keep(from string) (string, error) {
	var found []phase
	for _, name := range phaseNames() {
		p, err := readPhase(filepath.Join(from, name+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return "", err
		}
		if p.Emulated {
			return "", fmt.Errorf("%s.json: of the emulated device, whose figures mean nothing", name)
		}
		found = append(found, p)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%s: none of %s.json", from, strings.Join(phaseNames(), ".json, "))
	}
	path := filepath.Join(folder, found[0].file())
	kept, err := readKept(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, p := range kept {
		if !slices.ContainsFunc(found, func(f phase) bool { return f.Phase == p.Phase }) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b phase) int {
		return cmp.Compare(slices.Index(phaseNames(), a.Phase), slices.Index(phaseNames(), b.Phase))
	})
	if err := sameRun(found); err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	text, err := json.MarshalIndent(found, "", " ")
	if err != nil {
		return "", err
	}
	return path, write(path, append(text, '\n'))
}
