package process

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"gradbus/schema"
)

// Folder is where a process writes.
type Folder struct {
	Path string // a folder, or a file in it; neither need be there yet
	Use  string // what is written there, in a word or two: "models"
	// NeedBytes is what it will write there at once; 0 where that is little, or not known.
	NeedBytes int64
	// Ask gives the file system under a path, or an error where it cannot be asked; it may hang. nil is Disk.
	Ask func(path string) (schema.DiskReport, error)
}

const (
	disksEvery = 10 * time.Second
	foldersMax = schema.TelemetryDisksMax
	// disksEndWithin is how long Close waits for a file system that does not answer: what hangs in the kernel ends with
	// the process.
	disksEndWithin = 100 * time.Millisecond
)

// Disks asks now and then how much room there is where a process writes. Nobody ever waits for an answer: each folder
// has a goroutine of its own, since a network file system may hang for ever, and what it said last grows old meanwhile.
type Disks struct {
	every time.Duration
	stop  context.CancelFunc
	done  chan struct{}

	mu  sync.Mutex
	all []schema.DiskReport // by folder, as it answered last; TotalBytes 0 before
}

// WatchDisks begins to ask, and asks again every ten seconds. The caller calls Close. Folders beyond those that a
// report has room for are not watched; those without a path are none. The result is nil, of which every method may be
// called, where there is none.
func WatchDisks(folders []Folder) *Disks { return watchDisks(folders, disksEvery) }

func watchDisks(folders []Folder, every time.Duration) *Disks {
	var watched []Folder
	for _, f := range folders {
		if f.Path != "" && len(watched) < foldersMax {
			watched = append(watched, f)
		}
	}
	if watched == nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &Disks{every: every, stop: stop, done: make(chan struct{}), all: make([]schema.DiskReport, len(watched))}
	var running sync.WaitGroup
	for i, f := range watched {
		running.Go(func() { d.watch(ctx, i, f) })
	}
	go func() {
		running.Wait()
		close(d.done)
	}()
	return d
}

// Close ends the watch. It waits for its goroutines but for those whose file system does not answer.
func (d *Disks) Close() {
	if d == nil {
		return
	}
	d.stop()
	select {
	case <-d.done:
	case <-time.After(disksEndWithin):
	}
}

// watch is the goroutine of the i-th folder.
func (d *Disks) watch(ctx context.Context, i int, f Folder) {
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for {
		if p, err := askUpwards(f); err == nil {
			p.Path, p.Use, p.NeedBytes, p.SampleMS = schema.Clip(f.Path), f.Use, f.NeedBytes, time.Now().UnixMilli()
			d.mu.Lock()
			d.all[i] = p
			d.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// askUpwards asks of a path, and where that is not there yet, of the folder that it will be in.
func askUpwards(f Folder) (p schema.DiskReport, err error) {
	ask := f.Ask
	if ask == nil {
		ask = Disk
	}
	path, err := filepath.Abs(f.Path)
	if err != nil {
		return p, err
	}
	for {
		if p, err = ask(path); !missing(err) {
			return p, err
		}
		above := filepath.Dir(path)
		if above == path {
			return p, err
		}
		path = above
	}
}

// missing says that a path is not there, or leads through a file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Read is what is known of the file systems, each once: by the folder that was named first, with all that is written
// there. It waits for nobody. What never answered is not in it.
func (d *Disks) Read() []schema.DiskReport {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []schema.DiskReport
	at := map[string]int{}
	for _, p := range d.all {
		if p.TotalBytes <= 0 {
			continue
		}
		i, known := at[p.Device]
		if !known || p.Device == "" {
			at[p.Device] = len(out)
			out = append(out, p)
			continue
		}
		one := &out[i]
		if p.SampleMS > one.SampleMS {
			one.FreeBytes, one.TotalBytes, one.SampleMS = p.FreeBytes, p.TotalBytes, p.SampleMS
		}
		one.NeedBytes += p.NeedBytes
		if !strings.Contains(one.Use, p.Use) {
			one.Use += ", " + p.Use
		}
	}
	return out
}
