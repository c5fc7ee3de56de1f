package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/config"
	"gradbus/schema"
	"gradbus/shard/state"
	"gradbus/trainer"
)

// saveCheckpoint writes a checkpoint of a job with one parameter, whose values are the version.
func saveCheckpoint(t *testing.T, dir string, version schema.Version) checkpoint.ID {
	t.Helper()
	return saveOver(t, dir, version, 0)
}

// saveOver writes an increment over another version, in which the last three values are the version; 0 is a full one.
func saveOver(t *testing.T, dir string, version, base schema.Version) checkpoint.ID {
	t.Helper()
	job := (&schema.Job{Name: "films", Optimizer: schema.Optimizer{LR: 0.1},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{2, 3}, Init: schema.Zeros()}}}).WithDefaults()
	id := checkpoint.ID{Epoch: 1, Run: 7, Version: version}
	p, err := checkpoint.NewPart(dir, job, id, 1, 0)
	manifest, first := &checkpoint.Manifest{ID: id, Job: job, Shards: 1}, 0
	if base > 0 {
		p.Discard()
		manifest.Base, first = &checkpoint.Base{ID: checkpoint.ID{Epoch: 1, Run: 7, Version: base}}, 3
		p, err = checkpoint.NewIncrement(dir, job, id, manifest.Base.ID, 1, 0,
			&state.Extent{Tensors: []state.Stretch{{Name: "w", From: first, Elements: 3}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Discard()
	v := float32(version)
	if err := p.Tensor(state.Tensor{Name: "w", From: first, Values: []float32{v, v, v, v, v, v}[first:], Version: version,
		Steps: uint64(version)}); err != nil {
		t.Fatal(err)
	}
	part, err := p.Commit()
	if err != nil {
		t.Fatal(err)
	}
	manifest.Parts = []checkpoint.PartInfo{part}
	if err := checkpoint.Complete(dir, manifest); err != nil {
		t.Fatal(err)
	}
	return id
}

// checkpoints runs the command.
func checkpoints(t *testing.T, args ...string) (out, notes string, err error) {
	t.Helper()
	c := command()
	var stdout, stderr bytes.Buffer
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	c.SetArgs(append([]string{"checkpoints"}, args...))
	err = c.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// damage turns a bit in the middle of a part.
func damage(t *testing.T, dir string, id checkpoint.ID) {
	t.Helper()
	path := filepath.Join(dir, "films", id.String(), "s0.safetensors")
	whole, err := os.ReadFile(path)
	if err == nil {
		whole[len(whole)/2] ^= 1
		err = os.WriteFile(path, whole, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheckpointsCommands(t *testing.T) {
	dir := t.TempDir()
	var ids []checkpoint.ID
	for v := range schema.Version(4) {
		ids = append(ids, saveCheckpoint(t, dir, v+1))
	}
	if err := os.Remove(filepath.Join(dir, "films", ids[0].String(), "complete.json")); err != nil {
		t.Fatal(err)
	}
	damage(t, dir, ids[3])

	out, _, err := checkpoints(t, "list", dir)
	lines := strings.Split(out, "\n")
	if err != nil || len(lines) != 6 || !slices.Equal(strings.Fields(lines[0]),
		[]string{"JOB", "ID", "VERSION", "STATE", "KIND", "BASE", "BYTES", "AGE"}) {
		t.Fatalf("list: %v\n%s", err, out)
	}
	for i, want := range []string{"films " + ids[3].String() + " 4 durable", "films " + ids[2].String() + " 3 durable",
		"films " + ids[1].String() + " 2 durable", "films " + ids[0].String() + " 1 incomplete"} {
		if got := strings.Join(strings.Fields(lines[i+1])[:4], " "); got != want {
			t.Errorf("list: %s, want %s", got, want)
		}
	}
	out, _, err = checkpoints(t, "verify", dir, "films", "--json")
	var exit config.Exit
	var shown []shownCheckpoint
	if !errors.As(err, &exit) || exit.Status != 1 || exit.Err != nil || json.Unmarshal([]byte(out), &shown) != nil {
		t.Fatalf("verify: %v, %s", err, out)
	}
	var states []string
	for _, s := range shown {
		states = append(states, fmt.Sprint(s.Version, " ", s.State))
	}
	if want := []string{"4 damaged", "3 whole", "2 whole", "1 incomplete"}; !slices.Equal(states, want) {
		t.Errorf("verify: %q, want %q", states, want)
	}
	if !strings.Contains(shown[0].Why, "checksum") || shown[1].Shards != 1 || shown[3].Created != nil {
		t.Errorf("verify: %s", out)
	}

	model := filepath.Join(t.TempDir(), "m.safetensors")
	out, notes, err := checkpoints(t, "export", dir, "films", model)
	if err != nil || !strings.Contains(out, "at version 3") || !strings.Contains(notes, "passed over: ") {
		t.Fatalf("export: %v, %s, %s", err, out, notes)
	}
	m, err := trainer.OpenModel(model)
	if err != nil || m.Version != 3 || !slices.Equal(m.Param("w"), []float32{3, 3, 3, 3, 3, 3}) {
		t.Errorf("model: %+v, %v", m, err)
	}
	if _, _, err = checkpoints(t, "export", dir, "films", model, "--id", ids[1].String()); err != nil {
		t.Error(err)
	}
	if m, err = trainer.OpenModel(model); err != nil || m.Version != 2 {
		t.Errorf("model: %+v, %v", m, err)
	}

	out, _, err = checkpoints(t, "prune", dir, "films", "--keep", "2")
	if want := fmt.Sprintf("removed %s\nremoved %s\n", ids[1], ids[0]); err != nil || out != want {
		t.Errorf("prune: %v, %s, want %s", err, out, want)
	}
}

// Increments are shown with what they go on from, are whole with that alone, and are one model with it.
func TestCheckpointsCommandsOfIncrements(t *testing.T) {
	dir := t.TempDir()
	full := saveCheckpoint(t, dir, 1)
	var ids []checkpoint.ID
	for v := schema.Version(2); v <= 4; v++ {
		ids = append(ids, saveOver(t, dir, v, v-1))
	}
	out, _, err := checkpoints(t, "list", dir)
	var rows []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 6 {
			rows = append(rows, strings.Join(f[2:6], " "))
		}
	}
	if want := []string{"VERSION STATE KIND BASE", "4 durable increment 3", "3 durable increment 2",
		"2 durable increment 1", "1 durable full -"}; err != nil || !slices.Equal(rows, want) {
		t.Errorf("list: %v, %q, want %q\n%s", err, rows, want, out)
	}
	model := filepath.Join(t.TempDir(), "m.safetensors")
	if out, _, err = checkpoints(t, "export", dir, "films", model); err != nil || !strings.Contains(out, "at version 4") {
		t.Fatalf("export: %v, %s", err, out)
	}
	m, err := trainer.OpenModel(model)
	if err != nil || m.Version != 4 || !slices.Equal(m.Param("w"), []float32{1, 1, 1, 4, 4, 4}) {
		t.Errorf("model: %+v, %v", m, err)
	}
	if out, _, err = checkpoints(t, "prune", dir, "films", "--keep", "2"); err != nil || out != "" {
		t.Errorf("prune removes what others go on from: %v, %s", err, out)
	}
	damage(t, dir, ids[1])
	out, _, err = checkpoints(t, "verify", dir, "--json")
	var shown []shownCheckpoint
	var exit config.Exit
	if !errors.As(err, &exit) || json.Unmarshal([]byte(out), &shown) != nil || len(shown) != 4 {
		t.Fatalf("verify: %v, %s", err, out)
	}
	for i, want := range []string{stateDamaged, stateDamaged, stateWhole, stateWhole} {
		if s := shown[i]; s.State != want || (s.Base == nil) != (i == 3) || want == stateDamaged &&
			!strings.Contains(s.Why, ids[1].String()) {
			t.Errorf("verify: %+v, want %s", s, want)
		}
	}
	if shown[2].Kind != kindIncrement || shown[3].Kind != kindFull || *shown[2].Base != full {
		t.Errorf("verify: %s", out)
	}
	out, notes, err := checkpoints(t, "export", dir, "films", model)
	if err != nil || !strings.Contains(out, "at version 2") || strings.Count(notes, "passed over: ") != 2 {
		t.Errorf("export: %v, %s, %s", err, out, notes)
	}
}

func TestCheckpointsCommandsRefuse(t *testing.T) {
	dir := t.TempDir()
	id := saveCheckpoint(t, dir, 1)
	damage(t, dir, id)
	empty := t.TempDir()
	for says, args := range map[string][]string{
		"want one of export, list, prune, verify":         {},
		`unknown command "lits" (did you mean list?)`:     {"lits"},
		"0 arguments: want them as in checkpoints list":   {"list"},
		"no such file or directory":                       {"list", filepath.Join(empty, "none")},
		"has no checkpoints: want the folder":             {"verify", empty},
		`has no checkpoints of job "other": it has those`: {"list", dir, "other"},
		"--keep 0: want how many stay, at least 2":        {"prune", dir, "films"},
		"--id: checkpoint id \"1\"":                       {"export", dir, "films", "m", "--id", "1"},
		"incomplete checkpoint": {"export", dir, "films", "m", "--id",
			"000002-0000000000000007-000000000001"},
		"no durable checkpoint": {"export", dir, "films", filepath.Join(empty, "m")},
		"damaged checkpoint":    {"export", dir, "films", filepath.Join(empty, "m"), "--id", id.String()},
	} {
		if _, _, err := checkpoints(t, args...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", args, err, says)
		}
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 40 * time.Second: "40s", 3 * time.Minute: "3m",
		47 * time.Hour: "47h", 49 * time.Hour: "2d"} {
		if got := ageOf(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
