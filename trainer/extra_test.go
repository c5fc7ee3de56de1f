package trainer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/schema"
)

// What a program adds to a file passes through it, is part of what is verified, and changes neither weights nor their
// digest; without it the file is that of Save.
func TestSaveExtra(t *testing.T) {
	c := testConfig(t, startServer(t, 2))
	job := toyJob("extra", 1, 4, schema.ApplyUpdate)
	s := joinAll(t, c, job)[0]
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	extra := Extra{Metadata: map[string]string{"k": "v"}, Tensors: []Tensor{
		{Name: "flag", DType: "BOOL", Shape: []int{3}, Data: []byte{1, 0, 1}},
		{Name: "steps", DType: "I64", Data: []byte{7, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "epochs", DType: "I64", Data: []byte{2, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "count", DType: "I64", Data: []byte{3, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "mean", DType: "F32", Shape: []int{1, 1}, Data: []byte{0, 0, 0x80, 0x3f}}}}
	if err := errors.Join(s.Save(testContext(t), path("plain")), s.Save(testContext(t), path("empty"), Extra{}),
		s.Save(testContext(t), path("saved"), extra)); err != nil {
		t.Fatal(err)
	}
	plain, err := OpenModel(path("plain"))
	m, err2 := OpenModel(path("saved"))
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if m.digest != plain.digest || m.Metadata["k"] != "v" || !slices.Equal(m.Param("weight"), plain.Param("weight")) {
		t.Errorf("%x with %v, want %x", m.digest, m.Metadata, plain.digest)
	}
	if err := errors.Join(m.Save(path("again")), m.begin(job)); err != nil {
		t.Fatal(err)
	}
	saved := fileOf(t, path("saved"))
	if !bytes.Equal(fileOf(t, path("again")), saved) || !bytes.Equal(fileOf(t, path("empty")), fileOf(t, path("plain"))) {
		t.Error("a file that was read and written again differs, or one to which nothing was added")
	}
	steps := bytes.Index(saved, extra.Tensors[1].Data)
	if steps%8 != 0 || !bytes.HasSuffix(saved, extra.Tensors[0].Data) {
		t.Errorf("8 bytes a value from byte %d on, and the file ends with % x", steps, saved[len(saved)-8:])
	}
	for name, change := range map[string]func([]byte) []byte{
		"its further tensors have the digest": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"want the manifest's": func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"gradbus.extra"`), []byte(`"gradbus.other"`), 1)
		},
	} {
		if err := os.WriteFile(path("changed"), change(bytes.Clone(saved)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenModel(path("changed")); !errors.Is(err, ErrModel) || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
	for says, wrong := range map[string]Tensor{
		`"words" is there twice`:      {Name: "words", DType: "I64", Data: make([]byte, 8)},
		`dtype "X2"`:                  {Name: "x", DType: "X2"},
		`3 bytes of tensor "x"`:       {Name: "x", DType: "F16", Shape: []int{2}, Data: []byte{1, 2, 3}},
		"x has shape [-1]":            {Name: "x", DType: "U8", Shape: []int{-1}},
		"a tensor without a name":     {DType: "U8", Data: []byte{1}},
		"which is the name of the me": {Name: "__metadata__", DType: "U8", Data: []byte{1}},
	} {
		err := s.Save(testContext(t), path("wrong"), Extra{Tensors: []Tensor{wrong}})
		if _, there := os.Stat(path("wrong")); err == nil || !strings.Contains(err.Error(), says) || there == nil {
			t.Errorf("%v, want %q and no file", err, says)
		}
	}
}

// Further tensors that are gone are missed, and the metadata of a program take no entry of the file's own.
func TestExtraIsTheFilesOwn(t *testing.T) {
	s, folder := joinAll(t, testConfig(t, startServer(t, 2)), toyJob("extra", 1, 4, schema.ApplyUpdate))[0], t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	if err := s.Save(testContext(t), path("plain")); err != nil {
		t.Fatal(err)
	}
	plain := fileOf(t, path("plain"))
	without := bytes.Replace(plain, []byte(`"gradbus.digest"`),
		[]byte(`"gradbus.extra":"00","gradbus.digest"`), 1)
	grown := uint64(len(without) - len(plain))
	binary.LittleEndian.PutUint64(without, binary.LittleEndian.Uint64(without)+grown) // the length of the header
	if err := os.WriteFile(path("without"), without, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenModel(path("without"))
	if !errors.Is(err, ErrModel) || !strings.Contains(err.Error(), "further tensors") {
		t.Errorf("%v of a file without the further tensors of which it has the digest", err)
	}
	for _, entry := range []string{"format", "gradbus.extra", "gradbus.modules"} {
		err := s.Save(testContext(t), path("wrong"), Extra{Metadata: map[string]string{entry: "x"}})
		if err == nil || !strings.Contains(err.Error(), entry) {
			t.Errorf("%v, want that the entry %s is the file's own", err, entry)
		}
	}
}

func fileOf(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The row that pads is zeros, on shards and in every trainer, whatever is drawn or begun with; the next one is not.
func TestPaddingBeginsAsZeros(t *testing.T) {
	server, key := startServer(t, 2), uint64(40)
	m, _ := savedToy(t, testConfig(t, server), toyJob("before", 1, 4, schema.ApplyMean), 1)
	for name, from := range map[string]*Model{"drawn": nil, "begun": m} {
		for _, replicated := range []bool{true, false} {
			c := testConfig(t, server)
			c.From = from
			job := toyJob(name, 1, 4, schema.ApplyMean)
			job.Tables[0].Padding, job.Tables[0].Replicated = &key, replicated
			sessions := joinAll(t, c, job)
			rows, err := sessions[0].Lookup(testContext(t), []Query{{Table: 0, Keys: []uint64{key, key + 1}}})
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range rows[0] {
				if (v == 0) != (i < toyWordDim) {
					t.Fatalf("%s, replicated %v: rows %v", name, replicated, rows[0])
				}
			}
			leaveAll(t, sessions)
		}
	}
}
