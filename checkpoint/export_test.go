package checkpoint

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"gradbus/internal/safetensors"
	"gradbus/schema"
	"gradbus/shard/state"
)

// The model is the file that trainer.Session.Save writes, as its documentation says: tensors of the manifest under
// their names, rows by key; and format, manifest, digest and version in the metadata.
func TestExportIsTheModelsFile(t *testing.T) {
	dir, f := saved(t, at(1))
	m, err := Open(dir, "films", at(1))
	must(t, err)
	path, want := filepath.Join(t.TempDir(), "m"), filepath.Join(t.TempDir(), "want")
	must(t, m.Export(dir, path))

	values := f.weights(t)
	var tensors []safetensors.Tensor
	for _, p := range f.job.Parameters {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, Shape: p.Shape, Values: values[p.Name]})
	}
	for _, s := range f.job.Tables {
		tensors = append(tensors, safetensors.Tensor{Name: s.Name, Shape: []int{int(s.Rows), s.Dim}, Values: values[s.Name]})
	}
	d := schema.NewWeightsDigest(f.job)
	for x, ok := d.Next(); ok; x, ok = d.Next() {
		if x.IsTable {
			must(t, d.Table(values[x.Name]))
		} else {
			must(t, d.Values(values[x.Name]))
		}
	}
	digest, err := d.Sum()
	must(t, err)
	manifest, err := f.job.Encode()
	must(t, err)
	must(t, safetensors.Save(want, map[string]string{"format": "gradbus model 1", "gradbus.manifest": string(manifest),
		"gradbus.digest": hex.EncodeToString(digest[:]), "gradbus.version": "3"}, tensors))
	got, err := os.ReadFile(path)
	must(t, err)
	if whole, err := os.ReadFile(want); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%v: %d bytes, want %d, or others", err, len(got), len(whole))
	}
	flip(t, partPath(dir, "films", at(1), 0))
	must(t, os.Remove(path))
	wants(t, "damaged", m.Export(dir, path), ErrDamaged, "export checkpoint")
	if _, err := os.Stat(path); err == nil {
		t.Error("a damaged checkpoint is exported")
	}
}

// A table of more rows than are read at once is exported by blocks.
func TestExportOfALargeTable(t *testing.T) {
	job := (&schema.Job{Name: "films", Optimizer: schema.Optimizer{LR: 0.1}, Tables: []schema.TableSpec{
		{Name: "t", Rows: 2*valuesMax/100 + 17, Dim: 100, Partitions: 3, Init: schema.Normal(1)},
		{Name: "wide", Rows: 5, Dim: 1 << 16, Partitions: 64, Init: schema.Normal(1)}}}).WithDefaults()
	f, dir := newFleet(t, testBackend(t), job, 3), t.TempDir()
	m := f.save(t, dir, ID{Epoch: 1})
	must(t, Complete(dir, m))
	path := filepath.Join(t.TempDir(), "m")
	must(t, m.Export(dir, path))
	metadata, tensors, err := safetensors.Load(path,
		func(map[string]string, map[string]safetensors.Tensor) error { return nil })
	must(t, err)
	d := schema.NewWeightsDigest(job)
	for _, name := range []string{"t", "wide"} {
		must(t, d.Table(tensors[name].Values))
	}
	digest, err := d.Sum()
	if got := metadata["gradbus.digest"]; err != nil || got != hex.EncodeToString(digest[:]) {
		t.Errorf("digest %s, %v, want %x", got, err, digest)
	}
	for _, o := range f.owners {
		must(t, o.tables["t"].Snapshot(1000, func(r state.Rows) error {
			for i, key := range r.Keys {
				if got := tensors["t"].Values[key*100]; got != r.Values[i*100] {
					t.Errorf("row %d begins with %v, want %v", key, got, r.Values[i*100])
				}
			}
			return nil
		}))
	}
}
