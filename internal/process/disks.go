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

// Folder is a folder that a process writes to.
type Folder struct {
	Path string // a folder, or a file in it; neither need exist
	Use  string // what is written there, in one or two words: "models"
	// NeedBytes is the size of a single write there; 0 if it is small or not known.
	NeedBytes int64
	// Ask returns the file system of a path, or an error if it cannot be asked; it may hang. nil: Disk. disksEndWithin
	// bounds the time for which Close waits for a file system that does not answer: a call that hangs in the kernel
	// ends with the process.
	Ask func(path string) (schema.DiskReport, error)
}

const (
	disksEvery = 10 * time.Second
	foldersMax = schema.TelemetryDisksMax
	// disksEndWithin bounds the time for which Close waits for a file system that does not answer: a call that hangs in
	// the kernel ends with the process.
	disksEndWithin = 100 * time.Millisecond
)

// Disks measures, at intervals, the free space where a process writes. Callers never wait: each folder has its own
// goroutine, since a network file system may hang forever, and its last answer ages meanwhile.
type Disks struct {
	every time.Duration
	stop  context.CancelFunc
	done  chan struct{}

	mu  sync.Mutex
	all []schema.DiskReport // by folder: its last answer; TotalBytes is 0 before the first
}

// WatchDisks begins to measure, and repeats it every ten seconds. The caller calls Close. Folders beyond those that a
// report has room for, and folders without a path, are not watched. The result is nil if none is left; every method may
// be called on nil.
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

// Close ends the measurements. It waits for its goroutines, except those whose file system does not answer.
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

// askUpwards asks for a path, or, if that does not exist, for the folder that it will be in.
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

// missing reports that a path does not exist, or has a file among its folders.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Read returns the known file systems, each once, under the folder that was named first, with everything that is
// written there. It does not wait. File systems that never answered are absent.
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
