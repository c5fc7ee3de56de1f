package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"gradbus/internal/regular"
)

// phase is the record of one phase of scripts/gpu_run.sh.
type phase struct {
	Phase        string             `json:"phase"`
	Emulated     bool               `json:"emulated"`
	Card         string             `json:"card"`
	Driver       string             `json:"driver"`
	Capability   string             `json:"capability"`
	Commit       string             `json:"commit"`
	Date         time.Time          `json:"date"`
	LimitSeconds float64            `json:"limit_seconds"`
	Seconds      float64            `json:"seconds"`
	ClocksBefore map[string]float64 `json:"clocks_before"`
	ClocksAfter  map[string]float64 `json:"clocks_after"`
	Steps        []step             `json:"steps"`
}

type step struct {
	Name         string   `json:"name"`
	Status       string   `json:"status"` // one of statuses
	Reason       string   `json:"reason"` // empty where the status is ok
	Seconds      float64  `json:"seconds"`
	LimitSeconds float64  `json:"limit_seconds"`
	Figures      []figure `json:"figures"`
}

// figure is one measured value. Low and High are those of the runs that it is the median of.
type figure struct {
	Name  string   `json:"name"`
	Unit  string   `json:"unit"`
	Value float64  `json:"value"`
	Low   *float64 `json:"low,omitempty"`
	High  *float64 `json:"high,omitempty"`
}

const (
	statusOK      = "ok"
	statusFailed  = "failed"
	statusSkipped = "skipped"
	cellMax       = 60 // characters of a name, which is a cell of a table
)

func phaseNames() []string { return []string{"right", "fast", "whole"} }

func statuses() []string { return []string{statusOK, statusFailed, statusSkipped} }

// predicted has figures that are expected, by card and "PHASE/STEP/NAME".
type predicted map[string]map[string]float64

func (p predicted) validate() error {
	for card, figures := range p {
		for key := range figures {
			if parts := strings.SplitN(key, "/", 3); len(parts) != 3 || !slices.Contains(phaseNames(), parts[0]) {
				return fmt.Errorf("card %s, figure %q: want PHASE/STEP/NAME", card, key)
			}
		}
	}
	return nil
}

// records are the kept files, oldest first, and what was predicted.
type records struct {
	files     [][]phase
	predicted predicted
}

// load reads all that is kept in a folder.
func load(folder string) (records, error) {
	var all records
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return all, err
	}
	for _, path := range paths {
		if filepath.Base(path) == "predicted.json" {
			if err := decode(path, &all.predicted); err != nil {
				return all, err
			}
			if err := all.predicted.validate(); err != nil {
				return all, fmt.Errorf("%s: %w", path, err)
			}
			continue
		}
		phases, err := readKept(path)
		if err != nil {
			return all, err
		}
		all.files = append(all.files, phases)
	}
	slices.SortStableFunc(all.files, func(a, b []phase) int { return a[0].Date.Compare(b[0].Date) })
	return all, nil
}

// decode reads a file of exactly one JSON value without fields that are not known.
func decode(path string, to any) error {
	text, err := regular.Read(path, fileBytesMax)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one JSON value", path)
	}
	return nil
}

func readPhase(path string) (phase, error) {
	var p phase
	if err := decode(path, &p); err != nil {
		return p, err
	}
	if err := p.validate(); err != nil {
		return p, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// readKept reads the phases of one card and date.
func readKept(path string) ([]phase, error) {
	var all []phase
	if err := decode(path, &all); err != nil {
		return nil, err
	}
	for i := range all {
		if err := all[i].validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := sameRun(all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if want := all[0].file(); filepath.Base(path) != want {
		return nil, fmt.Errorf("%s: its card and date belong into %s", path, want)
	}
	return all, nil
}

// sameRun refuses phases that do not belong together.
func sameRun(all []phase) error {
	if len(all) == 0 {
		return errors.New("no phase")
	}
	seen := map[string]bool{}
	for _, p := range all {
		if p.file() != all[0].file() {
			return fmt.Errorf("phases of %s and of %s: want one card and one date", all[0].file(), p.file())
		}
		if seen[p.Phase] {
			return fmt.Errorf("phase %s twice", p.Phase)
		}
		seen[p.Phase] = true
	}
	return nil
}

// file is the name of the file that keeps the phase: card and date.
func (p *phase) file() string {
	between := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	words := append(strings.FieldsFunc(strings.ToLower(p.Card), between), p.Date.UTC().Format(time.DateOnly))
	return strings.Join(words, "-") + ".json"
}

// validate gives one error that names the place.
func (p *phase) validate() error {
	switch {
	case !slices.Contains(phaseNames(), p.Phase):
		return fmt.Errorf("phase %q: want %s", p.Phase, strings.Join(phaseNames(), ", "))
	case p.Card == "":
		return fmt.Errorf("phase %s: card is empty: no GPU was found", p.Phase)
	case p.Commit == "":
		return fmt.Errorf("phase %s: commit is empty", p.Phase)
	case p.Date.IsZero():
		return fmt.Errorf("phase %s: date is empty", p.Phase)
	case len(p.Steps) == 0:
		return fmt.Errorf("phase %s: no steps", p.Phase)
	}
	seen := map[string]bool{}
	for _, s := range p.Steps {
		if err := s.validate(); err != nil {
			return fmt.Errorf("phase %s, step %q: %w", p.Phase, s.Name, err)
		}
		if seen[s.Name] {
			return fmt.Errorf("phase %s, step %q: it is there twice", p.Phase, s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

func (s *step) validate() error {
	switch {
	case s.Name == "":
		return errors.New("name is empty")
	case !slices.Contains(statuses(), s.Status):
		return fmt.Errorf("status %q: want %s", s.Status, strings.Join(statuses(), ", "))
	case (s.Status == statusOK) != (s.Reason == ""):
		return fmt.Errorf("status %s with reason %q: want a reason, but where it is ok none", s.Status, s.Reason)
	}
	seen := map[string]bool{}
	for _, f := range s.Figures {
		switch {
		case f.Name == "" || len([]rune(f.Name)) > cellMax || strings.ContainsAny(f.Name, "|\n"):
			return fmt.Errorf("figure %q: want a name of 1 to %d characters without | and line ends", f.Name, cellMax)
		case seen[f.Name]:
			return fmt.Errorf("figure %q: it is there twice", f.Name)
		case f.Unit == "":
			return fmt.Errorf("figure %q: unit is empty", f.Name)
		case (f.Low == nil) != (f.High == nil) || f.Low != nil && (*f.Low > f.Value || f.Value > *f.High):
			return fmt.Errorf("figure %q: want low and high on both sides of its value, or neither", f.Name)
		case math.IsInf(f.Value, 0) || math.IsNaN(f.Value):
			return fmt.Errorf("figure %q: value %v is not finite", f.Name, f.Value)
		}
		seen[f.Name] = true
	}
	return nil
}
