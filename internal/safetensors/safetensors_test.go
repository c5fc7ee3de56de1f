package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// file puts a header and values together as the format says.
func file(header, values string) []byte {
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), []byte(header), []byte(values))
}

// Two tensors, byte for byte: w = {{1, -2}}, b = {0.5}.
const (
	goldenHeader = `{"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},` +
		`"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}} `
	goldenValues = "\x00\x00\x80\x3f" + "\x00\x00\x00\xc0" + "\x00\x00\x00\x3f"
)

func TestWriteSafetensorsGolden(t *testing.T) {
	var out bytes.Buffer
	err := encode(&out, map[string]string{"k": "v"},
		[]Tensor{floats("w", []int{1, 2}, []float32{1, -2}), floats("b", []int{1}, []float32{0.5})})
	if want := file(goldenHeader, goldenValues); err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%v\ngot  %q\nwant %q", err, out.Bytes(), want)
	}
	if len(goldenHeader)%8 != 0 {
		t.Errorf("values begin at %d", 8+len(goldenHeader))
	}
}

// encode writes what Save brings to a file.
func encode(w io.Writer, metadata map[string]string, tensors []Tensor) error {
	folder, err := os.MkdirTemp("", "safetensors-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "model")
	if err := Save(path, metadata, tensors); err != nil {
		return err
	}
	all, err := os.ReadFile(path)
	if err == nil {
		_, err = w.Write(all)
	}
	return err
}

func anything(map[string]string, map[string]Tensor) error { return nil }

// floats is a tensor of float32.
func floats(name string, shape []int, values []float32) Tensor {
	return Tensor{Name: name, Shape: shape, Values: values}
}

func read(b []byte) (map[string]string, map[string]Tensor, error) { return readOf(b, float32Alone) }

func readOf(b []byte, known map[string]int64) (map[string]string, map[string]Tensor, error) {
	r := bytes.NewReader(b)
	h, err := readHeader(r, int64(len(b)), known)
	if err != nil {
		return nil, nil, err
	}
	tensors, err := h.read(r)
	return h.metadata, tensors, err
}

func TestReadSafetensorsGolden(t *testing.T) {
	metadata, tensors, err := read(file(goldenHeader, goldenValues))
	if err != nil {
		t.Fatal(err)
	}
	w, b := tensors["w"], tensors["b"]
	if !maps.Equal(metadata, map[string]string{"k": "v"}) || len(tensors) != 2 ||
		!slices.Equal(w.Values, []float32{1, -2}) || !slices.Equal(w.Shape, []int{1, 2}) ||
		!slices.Equal(b.Values, []float32{0.5}) {
		t.Errorf("metadata %v, tensors %v", metadata, tensors)
	}
	// No metadata, no tensors, blanks before and after: all of it is allowed.
	if _, tensors, err := read(file(" {} ", "")); err != nil || len(tensors) != 0 {
		t.Errorf("empty object: %v, %v", tensors, err)
	}
	if _, tensors, err := read(
		file(`{"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`,
			goldenValues[:4])); err != nil ||
		len(tensors["e"].Values) != 0 || !slices.Equal(tensors["s"].Values, []float32{1}) {
		t.Errorf("empty tensor and scalar: %v, %v", tensors, err)
	}
}

func TestReadSafetensorsRefuses(t *testing.T) {
	one := func(dtype, shape, offsets string) []byte {
		return file(`{"w":{"dtype":"`+dtype+`","shape":`+shape+`,"data_offsets":`+offsets+`}}`, goldenValues[:8])
	}
	for name, c := range map[string]struct {
		file []byte
		says string
	}{
		"nothing":        {nil, "0 bytes, too short"},
		"seven bytes":    {make([]byte, 7), "7 bytes, too short"},
		"header of zero": {make([]byte, 16), "its header would have 0 bytes"},
		"header too long": {slices.Concat(bytes.Repeat([]byte{0xff}, 8), []byte("{}")),
			"its header would have 18446744073709551615 bytes"},
		"header beyond": {file("{}", "")[:9], "cut short: 9 bytes, of which the header alone takes 10"},
		"no json":       {file("hello", ""), `"hello" is no JSON object`},
		"json list":     {file("[]", ""), `"[]" is no JSON object`},
		"json cut":      {file(`{"w":`, ""), `"w": EOF`},
		"more after":    {file("{}{}", ""), "something follows the object"},
		"twice": {
			file(`{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`,
				""), `"w" is there twice`,
		},
		"unknown field":   {file(`{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1}}`, ""), `unknown field "x"`},
		"metadata number": {file(`{"__metadata__":{"a":1}}`, ""), "__metadata__"},
		"null":            {file(`{"w":null}`, ""), `"w": data_offsets [], want two`},
		"other dtype":     {one("F16", "[4]", "[0,8]"), `w has dtype "F16", want F32`},
		"other length":    {one("F32", "[1]", "[0,8]"), "w of shape [1] lies at [0 8], want [0 4]"},
		"hole":            {one("F32", "[1]", "[4,8]"), "w of shape [1] lies at [4 8], want [0 4]"},
		"backwards":       {one("F32", "[2]", "[8,0]"), "w of shape [2] lies at [8 0], want [0 8]"},
		"negative place":  {one("F32", "[2]", "[-8,0]"), "w of shape [2] lies at [-8 0], want [0 8]"},
		"negative shape":  {one("F32", "[-1,-2]", "[0,8]"), "beyond"},
		"enormous":        {one("F32", "[4294967296,4294967296]", "[0,8]"), "beyond"},
		"enormous and 0":  {one("F32", "[0,99999999999999]", "[0,0]"), "beyond"},
		"three offsets":   {one("F32", "[2]", "[0,8,9]"), `"w": data_offsets [0 8 9], want two`},
		"values cut":      {one("F32", "[3]", "[0,12]"), "cut short: 8 bytes of values, want 12"},
		"values too many": {one("F32", "[1]", "[0,4]"), "8 bytes of values, 4 more than its tensors have"},
		"no name":         {file(`{"":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`, ""), "a tensor without a name"},
	} {
		_, _, err := read(c.file)
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.says)
		}
	}
}

// A header of short entries takes many times its length in memory: their number has a limit, and that of a list.
func TestHeaderIsBounded(t *testing.T) {
	many := func(n int, entry string) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, ","+entry, i)
		}
		return "{" + text.String()[1:] + "}"
	}
	const none = `{"data_offsets":[0,0]}`
	list := strings.Repeat("0,", listBytesMax/2) + "0"
	for header, says := range map[string]string{
		many(entriesMax+1, `"%x":`+none):                                          "more than 262144 entries",
		`{"__metadata__":` + many(entriesMax+1, `"%x":""`) + "}":                  "more than 262144 entries",
		`{"w":{"data_offsets":[` + list + "]}}":                                   "a list of 4099 bytes, want at most 4096",
		`{"w":{"shape":[` + list + `],"data_offsets":[0,0]}}`:                     "a list of 4099 bytes, want at most 4096",
		`{"w":{"dtype":"F32","shape":[` + list[:129] + `],"data_offsets":[0,0]}}`: "65 dimensions, want at most 64",
	} {
		if _, _, err := read(file(header, "")); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60s: %.200v, want it to say %q", header, err, says)
		}
	}
	if m, _, err := read(file(`{"__metadata__":`+many(entriesMax, `"%x":""`)+"}", "")); err != nil || len(m) != entriesMax {
		t.Errorf("as many as there may be: %d, %v", len(m), err)
	}
}

// A limit at which the program collects garbage is no limit of the machine.
func TestLoadBeyondTheHeapLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	if err := Save(path, nil, []Tensor{floats("w", []int{1 << 18}, make([]float32, 1<<18))}); err != nil {
		t.Fatal(err)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 19))
	if _, _, err := Load(path, anything); err != nil {
		t.Error(err)
	}
}

// A model of many parameters is no large file.
func TestManyTensors(t *testing.T) {
	var all []Tensor
	for i := range 20_000 {
		all = append(all, floats(fmt.Sprint("w", i), []int{1}, []float32{float32(i)}))
	}
	path := filepath.Join(t.TempDir(), "m")
	if err := Save(path, nil, all); err != nil {
		t.Fatal(err)
	}
	_, tensors, err := Load(path, anything)
	if err != nil || len(tensors) != len(all) || tensors["w19999"].Values[0] != 19999 {
		t.Errorf("%d tensors, %v", len(tensors), err)
	}
}

// What could not be loaded is not written, and what is there stays.
func TestSaveRefuses(t *testing.T) {
	ok := floats("w", []int{1}, []float32{1})
	named := func(name string) []Tensor { return []Tensor{floats(name, []int{1}, []float32{1})} }
	shaped := func(values int, shape ...int) []Tensor { return []Tensor{floats("w", shape, make([]float32, values))} }
	for name, c := range map[string]struct {
		tensors []Tensor
		says    string
	}{
		"few values":      {shaped(1, 3), `tensor "w" has 1 values, want the 3 of its shape [3]`},
		"many values":     {shaped(3, 1), `tensor "w" has 3 values, want the 1 of its shape [1]`},
		"scalar of two":   {shaped(2), `tensor "w" has 2 values, want the 1 of its shape []`},
		"twice":           {[]Tensor{ok, ok}, `tensor "w" is there twice: want each name once`},
		"no name":         {named(""), "a tensor without a name"},
		"metadata's name": {named("__metadata__"), `a tensor called "__metadata__", which is the name of the metadata`},
		"no text":         {named("\xff"), `tensor "\xff": want a name in UTF-8`},
		"long names":      {named(strings.Repeat("n", headerBytesMax)), "want at most 67108864"},
		"dimensions":      {shaped(0, make([]int, 65)...), "w has 65 dimensions, want at most 64"},
		"many tensors":    {make([]Tensor, entriesMax+1), "more than 262144 entries"},
		"negative":        {shaped(1, -1, -1), "w has shape [-1 -1], beyond"},
		"overflow to 0":   {shaped(0, 1<<32, 1<<32), "w has shape [4294967296 4294967296], beyond"},
		"overflow to 1":   {shaped(1, 1<<31+1, 1<<33-1), "beyond"},
	} {
		path := filepath.Join(t.TempDir(), "m")
		if err := Save(path, nil, []Tensor{ok}); err != nil {
			t.Fatal(err)
		}
		err := Save(path, nil, c.tensors)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "write "+path) {
			t.Errorf("%s: %.200v, want it to say %q", name, err, c.says)
		}
		if _, tensors, err := Load(path, anything); err != nil || !slices.Equal(tensors["w"].Values, ok.Values) {
			t.Errorf("%s: left %v, %v", name, tensors, err)
		}
	}
	if err := Save(filepath.Join(t.TempDir(), "m"), map[string]string{"k": "\xff"}, nil); err == nil {
		t.Error("metadata that is no text is written")
	}
}

// A file without content may claim any length. Nothing is allocated before the caller has seen what it claims, nor
// where that is more than there is memory.
func TestLoadOfSparseFile(t *testing.T) {
	const values = 1 << 38
	path := filepath.Join(t.TempDir(), "m")
	header := fmt.Sprintf(`{"w":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}`, int64(values), int64(4*values))
	whole := file(header, "")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(len(whole))+4*values); err != nil {
		t.Skip("no sparse files of a TiB here: ", err)
	}
	if _, _, err := Load(path, anything); !errors.Is(err, ErrMemory) || errors.Is(err, ErrFormat) {
		t.Errorf("more than there is memory: %v", err)
	}
	other := errors.New("another tensor")
	if _, _, err := Load(path, func(_ map[string]string, shapes map[string]Tensor) error {
		if w := shapes["w"]; len(shapes) != 1 || !slices.Equal(w.Shape, []int{values}) || w.Values != nil {
			t.Errorf("shapes %v", shapes)
		}
		return other
	}); !errors.Is(err, other) {
		t.Errorf("%v", err)
	}
}

// In a folder that others may write, a link under a name that could be guessed leads nobody to another's file; and a
// name that is a link itself is replaced.
func TestSaveFollowsNoLinks(t *testing.T) {
	folder := t.TempDir()
	victim := filepath.Join(folder, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, planted := range []string{fmt.Sprintf(".m.%d", os.Getpid()), ".m", ".m.tmp", "m"} {
		if err := os.Symlink(victim, filepath.Join(folder, planted)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(folder, "m")
	if err := CheckSave(path); err != nil {
		t.Error(err)
	}
	if err := Save(path, nil, []Tensor{floats("w", []int{1}, []float32{1})}); err != nil {
		t.Error(err)
	}
	if _, tensors, err := Load(path, anything); err != nil || len(tensors) != 1 {
		t.Errorf("saved %v, %v", tensors, err)
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "precious" {
		t.Errorf("another's file holds %q, %v", got, err)
	}
}

// A scalar without a shape is one, and nobody's parser meets a null.
func TestSaveScalar(t *testing.T) {
	var out bytes.Buffer
	if err := encode(&out, nil, []Tensor{floats("s", nil, []float32{1})}); err != nil ||
		!strings.Contains(out.String(), `"shape":[]`) {
		t.Errorf("%v: %q", err, out.Bytes())
	}
}

func TestValues(t *testing.T) {
	tensors := map[string]Tensor{"a": floats("a", []int{1}, []float32{1}),
		"b": floats("b", []int{1}, []float32{float32(math.NaN())})}
	many := map[string]Tensor{}
	for i := range 10 {
		many[fmt.Sprint(i)] = Tensor{}
	}
	for _, c := range []struct {
		tensors map[string]Tensor
		name    string
		shape   []int
		says    string
	}{
		{tensors, "c", nil, `no such tensor: "c"; the file has ["a" "b"]`},
		{tensors, "c", []int{1}, `no such tensor: "c"; the file has ["a" "b"]`},
		{nil, "c", nil, `no such tensor: "c"; the file has none`},
		{many, "c", nil, `"7"] and 2 more`},
		{tensors, "a", []int{2}, "a has shape [1], want [2]"},
		{tensors, "b", []int{1}, "b has NaN at element 0, want finite values"},
	} {
		if v, err := Values(c.tensors, c.name, c.shape); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s of %v: %v, %v, want it to say %q", c.name, c.shape, v, err, c.says)
		}
	}
	if v, err := Values(tensors, "a", []int{1}); err != nil || v[0] != 1 {
		t.Errorf("%v, %v", v, err)
	}
}

// Cut anywhere, the file is refused.
func TestReadSafetensorsEveryCut(t *testing.T) {
	whole := file(goldenHeader, goldenValues)
	for at := range len(whole) {
		if _, _, err := read(whole[:at]); !errors.Is(err, ErrFormat) {
			t.Errorf("cut at %d of %d: %v", at, len(whole), err)
		}
	}
}

func TestWriteSafetensorsFails(t *testing.T) {
	full := errors.New("disk full")
	for after := range 3 {
		w, err := newWriter("m", nil, []Tensor{floats("a", []int{1}, nil), floats("b", []int{1}, nil)})
		if err != nil {
			t.Fatal(err)
		}
		w.to = &failingWriter{after: after, err: full}
		for _, name := range []string{"a", "b"} {
			if err == nil {
				err = w.Put(name, 0, []float32{1})
			}
		}
		if err == nil {
			err = w.Commit(nil)
		}
		if !errors.Is(err, full) {
			t.Errorf("after %d writes: %v", after, err)
		}
	}
}

type failingWriter struct {
	after int
	err   error
}

func (w *failingWriter) WriteAt(p []byte, _ int64) (int, error) {
	if w.after == 0 {
		return 0, w.err
	}
	w.after--
	return len(p), nil
}

var _ io.WriterAt = (*failingWriter)(nil)

// No bytes make the reader panic or hold more than they have; what it reads, it writes and reads again alike.
func FuzzReadSafetensors(f *testing.F) {
	f.Add(file(goldenHeader, goldenValues))
	f.Add(file("{}", ""))
	f.Add(file(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, goldenValues[:8]))
	f.Add(file(`{"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}`, goldenValues[:8]))
	f.Fuzz(func(t *testing.T, b []byte) {
		metadata, tensors, err := readOf(b, dtypes)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Errorf("error of another kind: %v", err)
			}
			return
		}
		var list []Tensor
		total := 0
		for _, x := range tensors {
			list, total = append(list, x), total+4*len(x.Values)+len(x.Data)
		}
		if total > len(b) {
			t.Errorf("%d bytes of values from %d bytes", total, len(b))
		}
		var out bytes.Buffer
		if err := encode(&out, metadata, list); err != nil {
			t.Fatal(err)
		}
		again, tensorsAgain, err := readOf(out.Bytes(), dtypes)
		if err != nil || !maps.Equal(again, metadata) || len(tensorsAgain) != len(tensors) {
			t.Errorf("written and read again: %v", err)
		}
	})
}
