package checkpoint

import (
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

// benchJob has a table of 512 MiB whose optimizer keeps as much: 1 GiB, with marks of rows.
func benchJob() *schema.Job {
	return (&schema.Job{Name: "films", Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9},
		Tables: []schema.TableSpec{{Name: "t", Rows: 1 << 22, Dim: 32, Init: schema.Zeros()}},
	}).WithDefaults()
}

// touch steps rows that nobody else has, keys from one on at a distance.
func (f *fleet) touch(b *testing.B, first, distance, n int) {
	b.Helper()
	spec, keys := &f.job.Tables[0], make([]uint64, n)
	for i := range keys {
		keys[i] = uint64(first+i*distance) % spec.Rows
	}
	sums := make([]float32, n*spec.Dim)
	for i := range sums {
		sums[i] = float32(i)
	}
	a := f.owners[0].tables["t"]
	must(b, a.Apply(state.RowGradient{Keys: keys, Sums: cuda.Float32s(sums), Weight: 1, Scale: 1}))
	a.Step()
	a.Commit()
}

// evict drops what the kernel holds of a checkpoint's files.
func evict(b *testing.B, dir string, m *Manifest) (paths []string) {
	b.Helper()
	for _, link := range m.Chain() {
		paths = append(paths, partPath(dir, "films", link.ID, 0))
	}
	for _, path := range paths {
		f, err := os.Open(path)
		must(b, err)
		must(b, f.Sync())
		must(b, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		must(b, f.Close())
	}
	return paths
}

// What it takes to find, verify and restore 1 GiB, beside reading the same files once: go test ./checkpoint -run '^$'
// -bench Restore -benchtime 5x. Files are not in memory before either. "chain" has a quarter of the rows in increments.
func BenchmarkRestore(b *testing.B) {
	for _, increments := range []int{0, 8} {
		b.Run(map[int]string{0: "full", 8: "chain"}[increments], func(b *testing.B) {
			backend, err := cuda.Open(cuda.Options{})
			must(b, err)
			defer func() { must(b, backend.Close()) }()
			f, dir := newFleet(b, backend, benchJob(), 1), b.TempDir()
			f.touch(b, 0, 1, 1<<16)
			m := f.write(b, dir, 1, 0)
			for i := range increments {
				v := schema.Version(i + 2)
				f.touch(b, i*7, 31, 1<<17)
				m = f.write(b, dir, v, v-1)
			}
			other := newFleet(b, backend, benchJob(), 1)
			var read, restored time.Duration
			bytes := int64(0)
			for _, link := range m.Chain() {
				bytes += link.bytes()
			}
			for b.Loop() {
				paths := evict(b, dir, m)
				began := time.Now()
				for _, path := range paths {
					in, err := os.Open(path)
					must(b, err)
					_, err = io.Copy(io.Discard, in)
					must(b, err)
					must(b, in.Close())
				}
				read += time.Since(began)
				evict(b, dir, m)
				began = time.Now()
				newest, _, err := newest(b.Context(), dir, f.job)
				must(b, err)
				other.restore(b, dir, newest)
				restored += time.Since(began)
			}
			b.ReportMetric(float64(bytes)/1e6, "MB")
			b.ReportMetric(read.Seconds()/float64(b.N), "read-s/op")
			b.ReportMetric(restored.Seconds()/float64(b.N), "restore-s/op")
			b.ReportMetric(100*read.Seconds()/restored.Seconds(), "%-of-disk")
		})
	}
}
