package trainer

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"gradbus/philox"
	"gradbus/ps"
	"gradbus/schema"
)

// A model that was saved is the one that was trained, without any server; a file that was changed is none.
func TestSavedModel(t *testing.T) {
	t.Parallel()
	job := ratingJob("saved", 1)
	job.Dense("mu", 2, 3).Normal(1)
	s, err := Train(testContext(t), testConfig(t, startServer(t, 2)), job, Samples(ratings(200), 50, 1, ratingKeys),
		factors)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mf.safetensors")
	if err := s.Save(testContext(t), path); err != nil {
		t.Fatal(err)
	}
	asks := []Query{{Table: 1, Keys: []uint64{7, 3, 7}}, {Table: 0, Keys: []uint64{59}}}
	rows, err := s.Lookup(testContext(t), asks)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := s.Digest(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	of, err := m.Lookup(testContext(t), asks)
	if err != nil || !slices.Equal(of[0], rows[0]) || !slices.Equal(of[1], rows[1]) ||
		!slices.Equal(m.Row("items", 3), rows[0][ratingDim:2*ratingDim]) {
		t.Errorf("rows %v, want %v: %v", of, rows, err)
	}
	if m.Digest() != digest || m.Version != 4 || m.Version != s.Version() || !slices.Equal(m.Param("mu"), s.Param("mu")) ||
		encoded(t, m.Job()) != encoded(t, s.Job()) {
		t.Errorf("a model of version %d with the digest %x, want version %d with %x", m.Version, m.Digest(),
			s.Version(), digest)
	}
	if m.Row("item", 3) != nil || m.Row("items", ratingItems) != nil || m.Param("nu") != nil || m.Table("item") != nil ||
		len(m.Table("items")) != ratingItems*ratingDim {
		t.Error("a name or a key that the model lacks gives something")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func([]byte) []byte{
		"a bit":  func(b []byte) []byte { b[len(b)-3] ^= 1; return b },
		"a size": func(b []byte) []byte { return b[:len(b)-4] },
		"a manifest": func(b []byte) []byte {
			return bytes.Replace(b, []byte("gradbus.manifest"), []byte("gradbus.nanifest"), 1)
		},
		"a table": func(b []byte) []byte { return bytes.Replace(b, []byte(`"items":`), []byte(`"itemz":`), 1) },
	} {
		other := filepath.Join(t.TempDir(), "other.safetensors")
		if err := os.WriteFile(other, change(bytes.Clone(file)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenModel(other); !errors.Is(err, ErrModel) {
			t.Errorf("%s was changed: %v", name, err)
		}
	}
	if _, err := OpenModel(path + ".not"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := m.Lookup(testContext(t), []Query{{Table: schema.Table(0), Keys: []uint64{ratingUsers}}}); err == nil {
		t.Error("a key outside the table")
	}
}

// A job whose shards add up nothing saves its model between two batches. The loss of a trainer, or of the ps, ends it, and
// a new job begins with exactly the values that were saved.
func TestSavedWhileItRuns(t *testing.T) {
	const lanes, every, batches = 4, 3, 7
	for name, lose := range map[string]func(*ps.Server, *Session){
		"a trainer": func(_ *ps.Server, s *Session) { _ = s.Abort(errors.New("it has failed")) },
		"the ps":    func(s *ps.Server, _ *Session) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := func(name string) *schema.Job {
				j := toyJob(name, 2, lanes, schema.ApplyMean)
				j.Reduce = schema.ReduceTrainers
				replicateAll(j)
				return j
			}
			server := startServer(t, 1)
			config := testConfig(t, server)
			path := filepath.Join(t.TempDir(), "model.safetensors")
			sessions := joinAll(t, config, job("saving"))
			w := newToy(t, sessions[0].Job())
			var all sync.WaitGroup
			for i, s := range sessions {
				all.Go(func() {
					err := s.Run(testContext(t), w, batches, func(p Progress) {
						if first, _ := s.Lanes(); first == 0 && p.Version%every == 0 {
							if err := s.Save(testContext(t), path); err != nil {
								t.Error(err)
							}
						}
					})
					if err != nil {
						t.Errorf("trainer %d: %v", i, err)
					}
				})
			}
			all.Wait()
			lose(server, sessions[1])
			if err := sessions[0].Run(testContext(t), w, 1, nil); err == nil || !strings.Contains(err.Error(),
				"shards keep nothing of this job: begin a new one with a saved model") {
				t.Errorf("%v, want that it says how to begin a new job", err)
			}
			m, err := OpenModel(path)
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := toyOutcome(t, lanes, 6); m.Version != 6 || m.Digest() != want {
				t.Errorf("version %d with weights %x is saved, want version 6 with %x", m.Version, m.Digest(), want)
			}
			config = testConfig(t, startServer(t, 1))
			config.From = m
			for i, s := range joinAll(t, config, job("loaded")) {
				if got, err := s.Digest(testContext(t)); err != nil || got != m.Digest() || s.Version() != 0 {
					t.Errorf("trainer %d begins at version %d with weights %x, want 0 with %x: %v", i, s.Version(), got,
						m.Digest(), err)
				}
			}
		})
	}
}

// A file of gradbus 0.1.0, whose digest is over rows in another order, is read; not where it was changed.
func TestOlderModel(t *testing.T) {
	const path = "testdata/model-0.1.0.golden"
	m, err := OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	for key := range uint64(40) {
		row := make([]float32, 2)
		if err := philox.FillRow(row, schema.InitNormal, 1, 3, "rows", key); err != nil ||
			!slices.Equal(m.Row("rows", key), row) {
			t.Errorf("row %d is %v, want %v: %v", key, m.Row("rows", key), row, err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file[len(file)-3] ^= 1
	other := filepath.Join(t.TempDir(), "other.safetensors")
	if err := os.WriteFile(other, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenModel(other); !errors.Is(err, ErrModel) {
		t.Errorf("a bit was changed: %v", err)
	}
}

// What a session saves is the file of a model that was held whole, in whatever pieces it came; and the session holds no
// more than a piece.
func TestSaveStreams(t *testing.T) {
	for _, shards := range []int{1, 2} {
		job := &schema.Job{Name: "streams", Lanes: 1, ChunkBytes: 4096, Optimizer: schema.Optimizer{LR: 1},
			Parameters: []schema.Parameter{{Name: "w", Shape: []int{5}, Init: schema.Normal(1)}},
			Tables: []schema.TableSpec{{Name: "large", Rows: 20000, Dim: 16, Init: schema.Normal(1)},
				{Name: "a", Rows: 7, Dim: 3, Init: schema.Normal(1)}}}
		s, err := Join(testContext(t), testConfig(t, startServer(t, shards)), job)
		if err != nil {
			t.Fatal(err)
		}
		whole, pieces := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "pieces")
		m, err := s.Weights(testContext(t))
		if err = errors.Join(err, m.Save(whole), s.Save(testContext(t), pieces)); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(whole)
		got, err2 := os.ReadFile(pieces)
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%v, %v: %d bytes, want the same %d", err, err2, len(got), len(want))
		}
		var before, now runtime.MemStats
		most, puts := uint64(0), 0
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err = s.reader.stream(testContext(t), func(_ string, _ int64, values []float32) error {
			if len(values) > job.ChunkBytes/4 {
				t.Errorf("%d values at once, want at most %d", len(values), job.ChunkBytes/4)
			}
			if puts++; puts%5000 == 0 {
				runtime.GC()
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc-min(now.HeapAlloc, before.HeapAlloc))
			}
			return nil
		})
		if table := uint64(20000 * 16 * 4); err != nil || puts < 5000 || most > table/2 {
			t.Errorf("%v: %d bytes more than before in memory after one of %d pieces, of a table of %d", err, most, puts, table)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A table with more rows than can be held is refused with its name, before anything is read or allocated.
func TestModelThatCannotBeHeld(t *testing.T) {
	r := &reader{connection: &connection{
		job: &schema.Job{Tables: []schema.TableSpec{{Name: "small", Rows: 1, Dim: 1},
			{Name: "large", Rows: modelRowsMax + 1, Dim: 1}}},
	}}
	if m, err := r.Weights(t.Context()); m != nil || err == nil ||
		!strings.Contains(err.Error(), `table "large" has 4294967296 rows: want at most 4294967295`) {
		t.Errorf("%v, %v", m, err)
	}
}
