// Package tensorboard writes training runs as event files that TensorBoard reads.
//
//   - The format is records with masked CRC-32C sums around Event messages, as TensorFlow's RecordWriter, event.proto
//     and summary.proto have them.
//   - Writer is one file: what is to be written waits in memory, a goroutine writes it every two seconds. A disk that
//     fails delays no trainer and costs one warning; what does not fit in memory by then is counted and lost.
//   - Run says what of a training run is worth a curve.
//
// It is handed numbers and knows nothing of sessions. One process writes one file, in a directory of its own: two files
// of one moment in one directory would be taken for one run that was started again.
package tensorboard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"gradbus/schema/crc32c"
)

// Config configures a Writer.
type Config struct {
	Dir  string // of this run alone; it is made where it is missing
	Host string // in the file's name
	PID  int    // likewise
	Now  func() time.Time
	Log  *slog.Logger // warned once; nil discards
	// Every is the time between two writes; 0 is two seconds.
	Every time.Duration

	open func(path string) (file, error) // by tests
}

// file is what an event file has to be able to do.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	Close() error
}

const (
	everyDefault = 2 * time.Second
	// pendingBytesMax bounds what waits for a disk that fails or stalls: hours of training at 60 bytes a value and ten
	// points a second would not need more.
	pendingBytesMax = 4 << 20
	// closeWithin is how long Close waits for a disk that does not answer.
	closeWithin = 5 * time.Second
	// namesMax is how many names are tried where files of this second are there already.
	namesMax = 100
)

// Writer writes one event file. Its methods may be called from any goroutine; none waits for the disk but Close.
type Writer struct {
	config Config
	path   string
	file   file

	mu      sync.Mutex
	pending []byte // records that are not in the file
	events  uint64 // their number
	lost    uint64 // events that found no room
	failed  error  // the first failure of the disk

	written int64 // bytes of the file that are whole records; of the goroutine alone

	stop chan struct{}
	done chan struct{}
}

// Check fails where no event file can be written below dir, so that this is known before the training and not after it.
func Check(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("tensorboard %s: cannot be written: %w", dir, err)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err == nil {
		defer os.Remove(probe.Name())
		_, err = probe.Write(make([]byte, 512))
		err = errors.Join(err, probe.Close())
	}
	if err != nil {
		return fmt.Errorf("tensorboard %s: cannot be written: %w", dir, err)
	}
	return nil
}

// Create makes an event file and writes its first record. The caller calls Close.
func Create(c Config) (*Writer, error) {
	if c.Every == 0 {
		c.Every = everyDefault
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.open == nil {
		c.open = func(path string) (file, error) { return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) }
	}
	if err := os.MkdirAll(c.Dir, 0o777); err != nil {
		return nil, fmt.Errorf("tensorboard %s: cannot be written: %w", c.Dir, err)
	}
	w := &Writer{config: c, stop: make(chan struct{}), done: make(chan struct{})}
	began := c.Now()
	err := os.ErrExist
	for i := 0; i < namesMax && errors.Is(err, os.ErrExist); i++ {
		w.path = filepath.Join(c.Dir, fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", began.Unix(), c.Host, c.PID, i))
		w.file, err = c.open(w.path)
	}
	if err != nil {
		return nil, fmt.Errorf("tensorboard %s: cannot be written: %w", c.Dir, err)
	}
	w.add(versionEvent(seconds(began)))
	if err := w.flush(); err != nil {
		err = errors.Join(err, w.file.Close(), os.Remove(w.path))
		return nil, fmt.Errorf("tensorboard %s: cannot be written: %w", c.Dir, err)
	}
	go w.run()
	return w, nil
}

// seconds is a time as events have it.
func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// Scalars adds a point to curves. Zero scalars are no point.
func (w *Writer) Scalars(step uint64, scalars ...Scalar) {
	if len(scalars) > 0 {
		w.add(scalarsEvent(seconds(w.config.Now()), step, scalars))
	}
}

// Text adds a text, in Markdown.
func (w *Writer) Text(step uint64, tag, text string) {
	w.add(textEvent(seconds(w.config.Now()), step, tag, text))
}

func (w *Writer) add(event []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending)+len(event) > pendingBytesMax {
		w.lost++
		return
	}
	w.pending = appendRecord(w.pending, event)
	w.events++
}

// run writes now and then until Close.
func (w *Writer) run() {
	defer close(w.done)
	ticker := time.NewTicker(w.config.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			w.flushOrWarn()
		case <-w.stop:
			w.flushOrWarn()
			return
		}
	}
}

func (w *Writer) flushOrWarn() {
	err := w.flush()
	if err == nil {
		return
	}
	w.mu.Lock()
	first := w.failed == nil
	if first {
		w.failed = err
	}
	w.mu.Unlock()
	if first {
		w.config.Log.Warn("events for TensorBoard are not written; training continues, and writing is retried", "path",
			w.path, "err", err)
	}
}

// flush writes what is pending. What the disk did not take whole stays pending, and is written again to the same place: a
// reader takes a part of a record for one that is being written.
func (w *Writer) flush() error {
	w.mu.Lock()
	data, events := w.pending[:len(w.pending):len(w.pending)], w.events // records that are added from now on come after these
	w.mu.Unlock()
	if len(data) == 0 {
		return nil
	}
	if _, err := w.file.WriteAt(data, w.written); err != nil {
		return err
	}
	w.written += int64(len(data))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending[:0], w.pending[len(data):]...)
	w.events -= events
	return nil
}

// ErrLost is said by Close where events were not written.
var ErrLost = errors.New("events for TensorBoard were not written")

// Close writes what is pending and closes the file, which then ends with a whole record. A disk that does not answer is
// left to itself after some seconds. It is called once.
func (w *Writer) Close() error {
	close(w.stop)
	select {
	case <-w.done:
	case <-time.After(closeWithin):
		return fmt.Errorf("%w: %s: the disk does not answer", ErrLost, w.path)
	}
	lost := w.lost + w.events
	var err error
	if w.events > 0 {
		err = w.file.Truncate(w.written)
	}
	err = errors.Join(err, w.file.Close())
	switch {
	case lost > 0:
		return fmt.Errorf("%w: %s: %d of them: %w", ErrLost, w.path, lost, errors.Join(w.failed, err))
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrLost, w.path, err)
	}
	return nil
}

// fileVersion is the first event of every file.
const fileVersion = "brain.Event:2"

// Numbers of fields, as the .proto files of TensorBoard have them.
const (
	eventWallTime = 1 // double, seconds since 1970
	eventStep     = 2 // int64
	eventVersion  = 3 // string
	eventSummary  = 5
	eventSource   = 10
	sourceWriter  = 1 // string

	summaryValue = 1

	valueTag      = 1 // string
	valueSimple   = 2 // float
	valueTensor   = 8
	valueMetadata = 9

	metadataPlugin = 1
	metadataClass  = 4 // enum DataClass
	pluginName     = 1 // string

	tensorType   = 1 // enum DataType
	tensorShape  = 2
	tensorString = 8 // bytes
)

// Values of enumerations.
const (
	classTensor = 2
	typeString  = 7
)

// appendRecord frames data as TensorFlow's record files do: its length as uint64, the masked sum of these eight bytes,
// data, the masked sum of data; all little-endian.
func appendRecord(to, data []byte) []byte {
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(len(data)))
	to = append(to, head[:]...)
	to = binary.LittleEndian.AppendUint32(to, masked(head[:]))
	to = append(to, data...)
	return binary.LittleEndian.AppendUint32(to, masked(data))
}

// masked is the CRC-32C of data, rotated right by 15 bits and moved, so that sums of data that holds sums differ.
func masked(data []byte) uint32 {
	sum := crc32c.Update(0, data)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// event begins an Event.
func event(wall float64, step uint64) []byte {
	b := appendDouble(nil, eventWallTime, wall)
	if step != 0 {
		b = appendVarint(b, eventStep, step)
	}
	return b
}

// versionEvent is the first of a file.
func versionEvent(wall float64) []byte {
	b := appendText(event(wall, 0), eventVersion, fileVersion)
	return appendBytes(b, eventSource, appendText(nil, sourceWriter, "gradbus"))
}

// Scalar is one value of a curve.
type Scalar struct {
	Tag   string
	Value float64 // is written as float32; may be NaN or infinite
}

// scalarsEvent is a point of several curves at one step.
func scalarsEvent(wall float64, step uint64, scalars []Scalar) []byte {
	var summary []byte
	for _, s := range scalars {
		v := appendText(nil, valueTag, s.Tag)
		v = protowire.AppendTag(v, valueSimple, protowire.Fixed32Type)
		v = protowire.AppendFixed32(v, math.Float32bits(float32(s.Value)))
		summary = appendBytes(summary, summaryValue, v)
	}
	return appendBytes(event(wall, step), eventSummary, summary)
}

// textEvent is a text, which is shown as Markdown.
func textEvent(wall float64, step uint64, tag, text string) []byte {
	tensor := appendVarint(nil, tensorType, typeString)
	tensor = appendBytes(tensor, tensorShape, nil) // of no dimensions: one value
	tensor = appendText(tensor, tensorString, text)
	return tensorEvent(wall, step, tag, appendText(nil, pluginName, "text"), tensor)
}

// tensorEvent is one value for a plugin.
func tensorEvent(wall float64, step uint64, tag string, plugin, tensor []byte) []byte {
	metadata := appendVarint(appendBytes(nil, metadataPlugin, plugin), metadataClass, classTensor)
	value := appendText(nil, valueTag, tag)
	value = appendBytes(value, valueMetadata, metadata)
	value = appendBytes(value, valueTensor, tensor)
	return appendBytes(event(wall, step), eventSummary, appendBytes(nil, summaryValue, value))
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

func appendBytes(b []byte, field protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), data)
}

func appendVarint(b []byte, field protowire.Number, x uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), x)
}

func appendDouble(b []byte, field protowire.Number, x float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), math.Float64bits(x))
}

// Tags of what a run tells.
const (
	TagLoss     = "loss"               // mean over the samples since the point before, of this trainer's lanes
	TagRate     = "samples_per_second" // of all trainers, since the point before
	TagNorm     = "gradient_norm"      // of the batches that it was taken of
	TagAccuracy = "accuracy"           // on the test set, at the end
	TagManifest = "manifest"           // the job's, as text
	// Seconds of a batch, on average since the point before.
	TagKeys    = "phase_seconds/keys"
	TagLookup  = "phase_seconds/lookup"
	TagCompute = "phase_seconds/compute"
	TagSend    = "phase_seconds/send"
	TagResult  = "phase_seconds/result"
)

// pointEvery is the least time between two points of a curve. TensorBoard shows a thousand points of a curve, and a
// file of a day has a million.
const pointEvery = 100 * time.Millisecond

// Batch is a completed batch, as one trainer sees it.
type Batch struct {
	Batch      uint64
	Last       bool
	Samples    int     // of this trainer
	SamplesAll float64 // of all trainers
	Loss       float64 // mean over Samples
	Elapsed    time.Duration
	// Totals is asked where a point is written.
	Totals func() Totals
}

// Totals is what a trainer has counted since it began.
type Totals struct {
	Batches                             uint64
	Keys, Lookup, Compute, Send, Result time.Duration
	Norm                                *float64 // of the gradient of batch NormBatch; nil where it is not known
	NormBatch                           uint64
}

// Run makes curves of batches. It is used by one goroutine.
type Run struct {
	writer *Writer
	begun  bool

	// Since the point before.
	at      time.Duration
	totals  Totals
	loss    float64 // sum over samples
	samples float64
	all     float64
}

// NewRun begins the curves of a run.
func NewRun(w *Writer) *Run { return &Run{writer: w} }

// Batch takes a batch, and makes a point of it and of those since the point before, where the time has come: at the
// first batch, at the last, and in between at most every pointEvery. The step of a point is the number of batches that
// are complete.
func (r *Run) Batch(b Batch) {
	if b.Samples > 0 {
		r.loss += b.Loss * float64(b.Samples)
		r.samples += float64(b.Samples)
	}
	r.all += b.SamplesAll
	if r.begun && !b.Last && b.Elapsed-r.at < pointEvery {
		return
	}
	now := b.Totals()
	var point []Scalar
	if r.samples > 0 {
		point = append(point, Scalar{TagLoss, r.loss / r.samples})
	}
	if passed := (b.Elapsed - r.at).Seconds(); passed > 0 {
		point = append(point, Scalar{TagRate, r.all / passed})
	}
	if now.Norm != nil && (r.totals.Norm == nil || now.NormBatch != r.totals.NormBatch) {
		r.writer.Scalars(now.NormBatch+1, Scalar{TagNorm, *now.Norm})
	}
	if n := float64(now.Batches) - float64(r.totals.Batches); n > 0 {
		was := r.totals
		for _, phase := range []struct {
			tag       string
			now, then time.Duration
		}{{TagKeys, now.Keys, was.Keys}, {TagLookup, now.Lookup, was.Lookup}, {TagCompute, now.Compute, was.Compute},
			{TagSend, now.Send, was.Send}, {TagResult, now.Result, was.Result}} {
			point = append(point, Scalar{phase.tag, (phase.now - phase.then).Seconds() / n})
		}
	}
	r.writer.Scalars(b.Batch+1, point...)
	*r = Run{writer: r.writer, begun: true, at: b.Elapsed, totals: now}
}

// Accuracy ends the curves of a run of so many batches.
func (r *Run) Accuracy(batches uint64, accuracy float64) {
	r.writer.Scalars(batches, Scalar{TagAccuracy, accuracy})
}
