package tensorboard

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Config is where a Writer writes, and who does.
type Config struct {
	Dir  string // of this run alone; it is made where it is missing
	Host string // in the file's name
	PID  int    // likewise
	Now  func() time.Time
	Log  *slog.Logger // warned once; nil is nobody
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
	pending []byte  // what follows offset in the file
	ends    []int64 // of the records in pending, as offsets in the file
	next    int64   // where the next record goes
	lost    uint64  // events that found no room
	failed  error   // the first failure of the disk

	// Of the goroutine alone.
	offset, whole int64 // written, and the part of it that is whole records

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

// Path is the file's.
func (w *Writer) Path() string { return w.path }

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

// Start says with what settings a run begins, for the comparison of runs: strings, booleans and float64.
func (w *Writer) Start(settings map[string]any) {
	w.add(startEvent(seconds(w.config.Now()), settings))
}

// End says how it ended.
func (w *Writer) End(ok bool) {
	status := uint64(statusFailure)
	if ok {
		status = statusSuccess
	}
	w.add(endEvent(seconds(w.config.Now()), status))
}

func (w *Writer) add(event []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending)+len(event) > pendingBytesMax {
		w.lost++
		return
	}
	before := len(w.pending)
	w.pending = appendRecord(w.pending, event)
	w.next += int64(len(w.pending) - before)
	w.ends = append(w.ends, w.next)
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
		w.config.Log.Warn("events for TensorBoard are not written; training goes on, and they are tried again", "path",
			w.path, "err", err)
	}
}

// flush writes what is pending. What the disk did not take stays pending, and continues where it stopped, be that
// within a record: a reader takes it for one that is being written.
func (w *Writer) flush() error {
	w.mu.Lock()
	data := w.pending[:len(w.pending):len(w.pending)] // records that are added meanwhile come after these
	w.mu.Unlock()
	if len(data) == 0 {
		return nil
	}
	n, err := w.file.WriteAt(data, w.offset)
	w.offset += int64(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending[:0], w.pending[n:]...)
	written := 0
	for ; written < len(w.ends) && w.ends[written] <= w.offset; written++ {
		w.whole = w.ends[written]
	}
	w.ends = append(w.ends[:0], w.ends[written:]...)
	return err
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
	lost := w.lost + uint64(len(w.ends))
	var err error
	if w.whole < w.offset {
		err = w.file.Truncate(w.whole)
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
