package trainer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/internal/safetensors"
	"gradbus/schema"
)

// A file of plain tensors, and one that Save wrote, begin a job with the same bits.
func TestOpenWeights(t *testing.T) {
	c := testConfig(t, startServer(t, 2))
	drawn := toyJob("drawn", 1, 4, schema.ApplyUpdate)
	m, want := savedToy(t, c, drawn, 3)
	plain, saved := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "saved")
	if err := errors.Join(safetensors.Save(plain, nil, m.tensors()), m.Save(saved)); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"plain": plain, "saved": saved} {
		job := startedToy(name, 2, 4, schema.ApplyUpdate)
		var err error
		if c.From, err = OpenWeights(path, job); err != nil {
			t.Fatal(err)
		}
		checkStarted(t, name, joinAll(t, c, job), m.digest, want, 3)
	}
}

// What does not fit is named: all names and shapes at once, and what is wrong with the file.
func TestOpenWeightsRefuses(t *testing.T) {
	job := toyJob("drawn", 1, 4, schema.ApplyUpdate)
	tensors := map[string]safetensors.Tensor{}
	for _, p := range job.Parameters {
		tensors[p.Name] = safetensors.Tensor{Name: p.Name, Shape: p.Shape, Values: make([]float32, p.Elements())}
	}
	for _, s := range job.Tables {
		tensors[s.Name] = safetensors.Tensor{Name: s.Name, Shape: []int{int(s.Rows), s.Dim},
			Values: make([]float32, int(s.Rows)*s.Dim)}
	}
	path := filepath.Join(t.TempDir(), "m")
	refused := func(change func(map[string]safetensors.Tensor), is error, wants ...string) {
		t.Helper()
		all := maps.Clone(tensors)
		change(all)
		var list []safetensors.Tensor
		for name, one := range all {
			one.Name = name
			list = append(list, one)
		}
		if err := safetensors.Save(path, nil, list); err != nil {
			t.Fatal(err)
		}
		_, err := OpenWeights(path, job)
		checkError(t, err, is, append(wants, path)...)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: want one line", err)
		}
	}
	refused(func(all map[string]safetensors.Tensor) {
		all["bias"] = safetensors.Tensor{Shape: []int{2, 2}, Values: make([]float32, 4)}
		all["more"] = safetensors.Tensor{Shape: []int{1}, Values: make([]float32, 1)}
		all["words"] = safetensors.Tensor{Shape: []int{3, 5}, Values: make([]float32, 15)}
	}, ErrModel, `parameter "bias": the model's has the shape [2 2]: want [4]`,
		`the model has a parameter more of shape [1]: the job has none`,
		`table "words": the model's has the shape [3 5]: want [97 5]`)
	refused(func(all map[string]safetensors.Tensor) { delete(all, "bias"); delete(all, "words") }, ErrModel,
		`parameter "bias": the model has none of that name: want one of shape [4]`,
		`table "words": the model has none of that name`)
	refused(func(all map[string]safetensors.Tensor) {
		all["words"] = safetensors.Tensor{Shape: []int{5}, Values: make([]float32, 5)}
	}, ErrModel, `tensor "words" has the shape [5]: want the [97 5] of the table`)
	if _, err := OpenWeights(filepath.Join(t.TempDir(), "none"), job); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	refused(func(all map[string]safetensors.Tensor) {
		all["bias"] = safetensors.Tensor{DType: "F16", Shape: []int{4}, Data: make([]byte, 8)}
	}, ErrModel, `bias has dtype "F16", want F32`)
}

// A file that claims more than the job has is refused by its header: its length is not allocated.
func TestOpenWeightsOfSparseFile(t *testing.T) {
	job := toyJob("drawn", 1, 4, schema.ApplyUpdate)
	text, err := job.Encode()
	if err != nil {
		t.Fatal(err)
	}
	const bytes = 1 << 40
	for name, metadata := range map[string]map[string]string{"plain": {},
		"saved": {manifestEntry: string(text), versionEntry: "3"}} {
		header, err := json.Marshal(map[string]any{"__metadata__": metadata,
			"huge": map[string]any{"dtype": "F32", "shape": []int{bytes / 4}, "data_offsets": []int{0, bytes}}})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "m")
		whole := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, int64(len(whole))+bytes); err != nil {
			t.Skip("no sparse files of a TiB here: ", err)
		}
		if _, err := OpenWeights(path, job); !errors.Is(err, ErrModel) || strings.Contains(err.Error(), "may take") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := OpenModel(path); !errors.Is(err, ErrModel) || strings.Contains(err.Error(), "may take") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
