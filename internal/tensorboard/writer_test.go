package tensorboard

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gradbus/internal/testkit"

	"google.golang.org/protobuf/encoding/protowire"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file again: then show it to TensorBoard's reader again")

var needTensorBoard = flag.Bool("need-tensorboard", false, "fail where no python3 has the package tensorboard")

func TestMain(m *testing.M) { testkit.Main(m) }

// noon is the time of all events that are compared.
func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 500_000_000, time.UTC) }

func config(dir string) Config {
	return Config{Dir: dir, Host: "host", PID: 71, Now: noon, Every: time.Hour}
}

func create(t *testing.T, c Config) *Writer {
	t.Helper()
	w, err := Create(c)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// masked as TensorFlow defines it, with the standard library's sum.
func maskedStandard(data []byte) uint32 {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return ((sum >> 15) | (sum << 17)) + 0xa282ead8
}

// records reads a file as TensorFlow's RecordReader does.
func records(t *testing.T, data []byte) [][]byte {
	t.Helper()
	var all [][]byte
	for len(data) > 0 {
		if len(data) < 16 {
			t.Fatalf("%d bytes after the last record", len(data))
		}
		n := binary.LittleEndian.Uint64(data)
		if uint64(len(data)) < 16+n {
			t.Fatalf("a record of %d bytes, and %d are left", n, len(data))
		}
		if sum := binary.LittleEndian.Uint32(data[8:]); sum != maskedStandard(data[:8]) {
			t.Fatalf("sum of a length is %#x", sum)
		}
		if sum := binary.LittleEndian.Uint32(data[12+n:]); sum != maskedStandard(data[12:12+n]) {
			t.Fatalf("sum of a record is %#x", sum)
		}
		all = append(all, data[12:12+n])
		data = data[16+n:]
	}
	return all
}

// A record by hand. The sums were computed by TensorBoard's own masked_crc32c.
func TestRecord(t *testing.T) {
	t.Parallel()
	const want = "0500000000000000" + "eab2043e" + "68656c6c6f" + "bb1f1c19"
	if got := hex.EncodeToString(appendRecord(nil, []byte("hello"))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// writeAll writes one of everything.
func writeAll(w *Writer) {
	w.Text(0, TagManifest, "    {\"name\": \"packages\"}")
	w.Scalars(1, Scalar{TagLoss, 2.5}, Scalar{TagRate, 1000})
	w.Scalars(2) // nothing
	w.Scalars(300, Scalar{TagLoss, math.NaN()}, Scalar{TagNorm, math.Inf(1)})
	w.Scalars(1<<40, Scalar{TagAccuracy, 0.75})
}

// TestGolden holds the bytes of a file to those that TensorBoard's own reader has read; testdata/golden.txt is what it
// found.
func TestGolden(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, config(dir))
	writeAll(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if name := filepath.Base(w.path); name != "events.out.tfevents.1795348800.host.71.0" {
		t.Errorf("the file is %s", name)
	}
	got, err := os.ReadFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "golden.tfevents")
	if *rewrite {
		if err := os.WriteFile(golden, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	told, err := os.ReadFile(filepath.Join("testdata", "golden.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want = regexp.MustCompile("(?m)^tag .*\n").ReplaceAll(told, nil) // what the server made of them
	var lines []string
	for _, r := range records(t, got) {
		lines = append(lines, describe(t, r)...)
	}
	if text := strings.Join(lines, "\n") + "\n"; text != string(want) {
		t.Errorf("read here:\n%s\nread by TensorBoard:\n%s", text, want)
	}
}

// Where python3 has the package tensorboard, its reader is asked again.
func TestTensorBoardReads(t *testing.T) {
	t.Parallel()
	python := ""
	for _, p := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(p, "-c", "import tensorboard").Run() == nil {
			python = p
		}
	}
	if python == "" {
		if *needTensorBoard {
			t.Fatal("no python3 has the package tensorboard")
		}
		t.Skip("no python3 has the package tensorboard; -need-tensorboard makes this a failure")
	}
	want, err := os.ReadFile(filepath.Join("testdata", "golden.txt"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := exec.Command(python, filepath.Join("testdata", "read.py"),
		filepath.Join("testdata", "golden.tfevents")).Output()
	if err != nil || string(got) != string(want) {
		t.Errorf("%v; TensorBoard read:\n%s\nwant:\n%s", err, got, want)
	}
}

// fields are the fields of a message by number, the last of each.
func fields(t *testing.T, message []byte) map[protowire.Number][][]byte {
	t.Helper()
	all := map[protowire.Number][][]byte{}
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			t.Fatalf("tag: %v", protowire.ParseError(n))
		}
		message = message[n:]
		n = protowire.ConsumeFieldValue(number, kind, message)
		if n < 0 {
			t.Fatalf("field %d: %v", number, protowire.ParseError(n))
		}
		value := message[:n]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		all[number] = append(all[number], value)
		message = message[n:]
	}
	return all
}

func double(b [][]byte) float64 {
	if len(b) == 0 {
		return 0
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b[0]))
}

func varint(b [][]byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	x, _ := protowire.ConsumeVarint(b[0])
	return x
}

func text(b [][]byte) string {
	if len(b) == 0 {
		return ""
	}
	return string(b[0])
}

// describe tells of an event, a line for each value, in the words of testdata/golden.txt.
func describe(t *testing.T, record []byte) (lines []string) {
	t.Helper()
	e := fields(t, record)
	lead := fmt.Sprintf("%.6f step %d", double(e[eventWallTime]), varint(e[eventStep]))
	if v := text(e[eventVersion]); v != "" {
		return []string{fmt.Sprintf("%s version %s writer %s", lead, v, text(fields(t, e[eventSource][0])[sourceWriter]))}
	}
	for _, value := range fields(t, e[eventSummary][0])[summaryValue] {
		v := fields(t, value)
		line := lead + " " + text(v[valueTag])
		if simple := v[valueSimple]; len(simple) > 0 {
			x := math.Float32frombits(binary.LittleEndian.Uint32(simple[0]))
			lines = append(lines, fmt.Sprintf("%s %s", line, strings.ToLower(strings.TrimPrefix(fmt.Sprint(x), "+"))))
			continue
		}
		metadata := fields(t, v[valueMetadata][0])
		plugin := fields(t, metadata[metadataPlugin][0])
		tensor := fields(t, v[valueTensor][0])
		lines = append(lines, fmt.Sprintf("%s plugin %s class %d content  type %d dims 0 string %q", line,
			text(plugin[pluginName]), varint(metadata[metadataClass]), varint(tensor[tensorType]), text(tensor[tensorString])))
	}
	return lines
}

// Two that begin in one second, in one place, do not write over each other.
func TestCreateTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := create(t, config(dir)), create(t, config(dir))
	if a.path == b.path {
		t.Errorf("both write %s", a.path)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

func TestNotWritable(t *testing.T) {
	t.Parallel()
	occupied := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{occupied, filepath.Join(occupied, "below"), "/proc/none"} {
		_, err := Create(config(dir))
		for _, err := range []error{err, Check(dir)} {
			if err == nil || !strings.HasPrefix(err.Error(), "tensorboard "+dir+": cannot be written: ") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v", dir, err)
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "new", "er")
	if err := Check(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the check left %v, %v", left, err)
	}
}

// disk is a file in memory that may be full.
type disk struct {
	mu     sync.Mutex
	data   []byte
	room   int
	block  chan struct{} // nil: does not
	closed bool
}

func (d *disk) WriteAt(p []byte, at int64) (int, error) {
	if d.block != nil {
		<-d.block
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(p), max(d.room-int(at), 0))
	d.data = append(d.data[:at], p[:n]...)
	if n < len(p) {
		return n, &fs.PathError{Op: "write", Path: "disk", Err: syscall.ENOSPC}
	}
	return n, nil
}

func (d *disk) Truncate(size int64) error { d.data = d.data[:size]; return nil }
func (d *disk) Close() error              { d.closed = true; return nil }

func (d *disk) grow(room int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room = room
}

func onDisk(t *testing.T, d *disk, log *slog.Logger) Config {
	c := config(t.TempDir())
	c.Log, c.open = log, func(string) (file, error) { return d, nil }
	return c
}

// A full disk is told once; what it did not take is written when there is room again, and the file is as if nothing had
// been.
func TestFullForAWhile(t *testing.T) {
	t.Parallel()
	whole := &disk{room: 1 << 20}
	w := create(t, onDisk(t, whole, nil))
	writeAll(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for room := 60; room < len(whole.data); room += 7 {
		var log bytes.Buffer
		d := &disk{room: room}
		w := create(t, onDisk(t, d, slog.New(slog.NewTextHandler(&log, nil))))
		writeAll(w)
		w.flushOrWarn() // Every is an hour
		w.flushOrWarn()
		d.grow(1 << 20)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(d.data, whole.data) {
			t.Fatalf("room for %d bytes at first: the file differs", room)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "no space left") {
			t.Fatalf("room for %d bytes at first: %d warnings: %s", room, n, log.String())
		}
	}
}

// Where it stays full, Close says how many events are lost, and the file ends with a whole record.
func TestFullForGood(t *testing.T) {
	t.Parallel()
	whole := &disk{room: 1 << 20}
	w := create(t, onDisk(t, whole, nil))
	writeAll(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	all := len(records(t, whole.data))
	for room := 60; room < len(whole.data); room += 7 {
		d := &disk{room: room}
		w := create(t, onDisk(t, d, nil))
		writeAll(w)
		err := w.Close()
		kept := len(records(t, d.data))
		if !errors.Is(err, ErrLost) || !errors.Is(err, syscall.ENOSPC) ||
			!strings.Contains(err.Error(), fmt.Sprintf(" %d of them", all-kept)) || !d.closed {
			t.Fatalf("room for %d bytes: %d of %d records are there, and Close says %v", room, kept, all, err)
		}
	}
	if _, err := Create(onDisk(t, &disk{room: 10}, nil)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("no room for the first record: %v", err)
	}
}

// A disk that stands still delays nobody, and memory is bounded.
func TestStalled(t *testing.T) {
	t.Parallel()
	d := &disk{room: 1 << 30}
	c := onDisk(t, d, nil)
	c.Every = time.Millisecond
	w := create(t, c)
	d.mu.Lock() // a write under way stays under way
	big := strings.Repeat("x", 1<<20)
	for range 10 {
		w.Text(0, "big", big)
	}
	w.mu.Lock()
	held, lost := len(w.pending), w.lost
	w.mu.Unlock()
	d.mu.Unlock()
	if held > pendingBytesMax || lost < 6 {
		t.Errorf("%d bytes wait, %d events are lost", held, lost)
	}
	if err := w.Close(); !errors.Is(err, ErrLost) {
		t.Errorf("Close says %v", err)
	}
	records(t, d.data)
}

// Many write at once; each event is there once.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	c := config(t.TempDir())
	c.Every = time.Millisecond
	w := create(t, c)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 100 {
				w.Scalars(uint64(i*100+j), Scalar{"x", 1})
			}
		})
	}
	all.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for _, r := range records(t, data)[1:] {
		seen[varint(fields(t, r)[eventStep])] = true
	}
	if len(seen) != 400 {
		t.Errorf("%d steps, want 400", len(seen))
	}
}
