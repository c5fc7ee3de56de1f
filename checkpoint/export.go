package checkpoint

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"gradbus/internal/safetensors"
	"gradbus/schema"
)

// Metadata of a saved model. Package trainer, which must not be imported here, has the same constants (model.go).
const (
	modelFormat        = "gradbus model 1"
	modelManifestEntry = "gradbus.manifest"
	modelDigestEntry   = "gradbus.digest"
	modelVersionEntry  = "gradbus.version"
	modelModulesEntry  = "gradbus.modules"
)

// Export verifies the checkpoint and writes its model to one file, with the bytes of trainer.Session.Save at the same
// version: parameters and tables under their names, parameters of modules under the names of
// schema.ModuleSpec.TensorName, and in the metadata the job's manifest, the version and the digest of the weights
// without those of modules. It needs memory for about 1 MiB of values, or a few rows. The file is written completely or
// not at all.
func (m *Manifest) Export(dir, path string) error {
	err := m.Verify(dir)
	if err == nil {
		err = m.export(dir, path)
	}
	if err != nil {
		return fmt.Errorf("export checkpoint %s of job %s: %w", m.ID, m.Job.Name, err)
	}
	return nil
}

func (m *Manifest) export(dir, path string) error {
	e := exporter{m: m}
	defer e.close()
	place := placementOf(m.Job, m.Shards)
	for shard := range m.Parts {
		f, err := m.openShard(dir, place, shard)
		if err != nil {
			return err
		}
		e.parts = append(e.parts, f)
	}
	metadata, err := m.modelMetadata([32]byte{}, [32]byte{})
	if err != nil {
		return err
	}
	if e.out, err = safetensors.Create(path, metadata, m.modelTensors()); err != nil {
		return err
	}
	defer e.out.Discard()
	digest, err := e.parameters(m.Job)
	if err != nil {
		return err
	}
	hosted, err := e.parameters(modulesOf(m.Job))
	if err != nil {
		return err
	}
	for t := range m.Job.Tables {
		if err := e.table(schema.Table(t)); err != nil {
			return err
		}
	}
	if metadata, err = m.modelMetadata(digest, hosted); err != nil {
		return err
	}
	return e.out.Commit(metadata)
}

// modelMetadata returns the metadata of the model's file.
func (m *Manifest) modelMetadata(digest, hosted [32]byte) (map[string]string, error) {
	manifest, err := m.Job.Encode()
	if err != nil {
		return nil, err
	}
	all := map[string]string{formatEntry: modelFormat, modelManifestEntry: string(manifest),
		modelDigestEntry:  hex.EncodeToString(digest[:]),
		modelVersionEntry: strconv.FormatUint(uint64(m.ID.Version), 10)}
	if len(m.Job.Modules) > 0 {
		all[modelModulesEntry] = hex.EncodeToString(hosted[:])
	}
	return all, nil
}

// modelTensors lists the tensors of the model's file.
func (m *Manifest) modelTensors() (all []safetensors.Tensor) {
	for _, p := range m.Job.Parameters {
		all = append(all, safetensors.Tensor{Name: p.Name, Shape: p.Shape})
	}
	for _, t := range m.Job.Tables {
		all = append(all, safetensors.Tensor{Name: t.Name, Shape: []int{int(t.Rows), t.Dim}})
	}
	for _, p := range modulesOf(m.Job).Parameters {
		all = append(all, safetensors.Tensor{Name: p.Name, Shape: p.Shape})
	}
	return all
}

// modulesOf returns a job whose parameters are those of another one's modules.
func modulesOf(job *schema.Job) *schema.Job {
	of := &schema.Job{}
	for i := range job.Modules {
		for _, p := range modulesParameters(&job.Modules[i]) {
			of.Parameters = append(of.Parameters, schema.Parameter{Name: job.Modules[i].TensorName(p.Name), Shape: p.Shape})
		}
	}
	return of
}

// exporter combines the values of all parts.
type exporter struct {
	m     *Manifest
	parts []*shardFile // by shard
	out   *safetensors.Writer

	values, columns, block []float32
}

func (e *exporter) close() {
	for _, f := range e.parts {
		f.Close()
	}
}

// parameters writes the parameters of a job, and reads its tables for the digest of all weights, which has its own
// order.
func (e *exporter) parameters(job *schema.Job) ([32]byte, error) {
	d := schema.NewWeightsDigest(job)
	for t, ok := d.Next(); ok; t, ok = d.Next() {
		var err error
		if t.IsTable {
			err = e.digestTable(schema.Table(t.Index), d)
		} else {
			err = e.parameter(t.Name, d)
		}
		if err != nil {
			return [32]byte{}, err
		}
	}
	return d.Sum()
}

// placed is a stretch of a parameter, and the part that has it.
type placed struct {
	stretch
	layout *denseLayout
	part   *shardFile
}

// parameter writes a parameter, in the order of its elements.
func (e *exporter) parameter(name string, d *schema.WeightsDigest) error {
	var all []placed
	tensor := ""
	for _, f := range e.parts {
		if d, err := f.parameter(name); err == nil {
			tensor = d.file
			for _, s := range d.stretches {
				all = append(all, placed{s, d, f})
			}
		}
	}
	slices.SortFunc(all, func(a, b placed) int { return a.from - b.from })
	for _, s := range all {
		for done := 0; done < s.elements; {
			values, err := s.part.elements(s.layout, tensor, s.at+int64(done), min(valuesMax, s.elements-done), &e.values)
			if err != nil {
				return err
			}
			if err := e.out.Put(name, int64(s.from+done), values); err != nil {
				return err
			}
			if err := d.Values(values); err != nil {
				return err
			}
			done += len(values)
		}
	}
	return nil
}

// rowsMost returns the number of rows of a table that are read at once.
func rowsMost(spec *schema.TableSpec) uint64 { return uint64(max(1, valuesMax/spec.Dim)) }

// digestTable adds all rows of a table to the digest, by partition and key.
func (e *exporter) digestTable(table schema.Table, d *schema.WeightsDigest) error {
	spec := &e.m.Job.Tables[table]
	partitioning := spec.Partitioning()
	var keys []uint64
	for p := range schema.Partition(spec.Partitions) {
		for at, end := uint64(0), partitioning.Rows(p); at < end; at += uint64(len(keys)) {
			keys = keys[:0]
			for i := range min(rowsMost(spec), end-at) {
				keys = append(keys, partitioning.Key(p, at+i))
			}
			rows, err := e.rows(table, p, at, len(keys))
			if err != nil {
				return err
			}
			if err := d.Rows(p, keys, rows); err != nil {
				return err
			}
		}
	}
	return nil
}

// table writes all rows of a table by key. Consecutive keys are in different partitions: the rows of one block of keys
// are read at once from each partition, and the block is written at once.
func (e *exporter) table(table schema.Table) error {
	spec := &e.m.Job.Tables[table]
	partitioning := spec.Partitioning()
	for first := uint64(0); first < spec.Rows; {
		end := min(first+rowsMost(spec), spec.Rows)
		e.block = resized(e.block, int(end-first)*spec.Dim)
		for p := range schema.Partition(spec.Partitions) {
			from, to := partitioning.From(p, first), partitioning.From(p, end)
			if from == to {
				continue
			}
			rows, err := e.rows(table, p, from, int(to-from))
			if err != nil {
				return err
			}
			for i := range to - from {
				at := int(partitioning.Key(p, from+i)-first) * spec.Dim
				copy(e.block[at:at+spec.Dim], rows[int(i)*spec.Dim:])
			}
		}
		if err := e.out.Put(spec.Name, int64(first)*int64(spec.Dim), e.block); err != nil {
			return err
		}
		first = end
	}
	return nil
}

// rows reads n rows of a partition from a position on, [n, Dim], from all parts that have columns of them. They are
// valid until the next call.
func (e *exporter) rows(table schema.Table, partition schema.Partition, position uint64, n int) ([]float32, error) {
	dim := e.m.Job.Tables[table].Dim
	e.values = resized(e.values, n*dim)
	for _, f := range e.parts {
		t, err := f.tableOf(e.m.Job.Tables[table].Name)
		if err != nil || t.first[partition] == t.first[partition+1] {
			continue
		}
		at := t.first[partition] + int64(position)
		if t.columns == dim {
			return f.rows(t, t.file, dim, at, n, &e.values)
		}
		columns, err := f.rows(t, t.file, t.columns, at, n, &e.columns)
		if err != nil {
			return nil, err
		}
		for k := range n {
			copy(e.values[k*dim+t.column:], columns[k*t.columns:(k+1)*t.columns])
		}
	}
	return e.values, nil
}

// resized returns n values, undefined, that reuse memory if it is large enough.
func resized(values []float32, n int) []float32 {
	if cap(values) < n {
		return make([]float32, n)
	}
	return values[:n]
}
