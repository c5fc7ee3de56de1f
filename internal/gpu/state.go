package gpu

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
)

// Kept is the state of a GPU that outlives the process, and is shared with others that watch it. Times are milliseconds
// since 1970.
type Kept struct {
	GPU                // as it was last seen
	Findings []Finding `json:"findings,omitempty"` // that are unhealthy until they are acknowledged
	Boot     string    `json:"boot,omitempty"`     // identifies the run of the machine in which all was found
}

// keepable says whether what is found of a GPU may be remembered: it is no simulated one, nor one that could not say
// which it is.
func (g *GPU) keepable() bool { return strings.HasPrefix(g.UUID, "GPU-") }

// Bounds of the file.
const (
	version       = 1
	rememberedMax = 256 // GPUs of a machine, and of others that share the home folder
	findingsMax   = 64
	uuidBytesMax  = 1000
	bytesMax      = 4 << 20
)

// ErrState reports a file that this version cannot read. It is never written to: an operator removes it or names
// another.
var ErrState = errors.New("the file is damaged or of another version")

type content struct {
	Version int    `json:"version"`
	GPUs    []Kept `json:"gpus"`
}

// encode returns the file's text, within its bounds.
func encode(all []Kept) []byte {
	all = slices.DeleteFunc(slices.Clone(all), func(k Kept) bool { return len(k.Findings) == 0 })
	slices.SortStableFunc(all, func(a, b Kept) int { return cmp.Compare(a.Index, b.Index) })
	all = all[:min(len(all), rememberedMax)]
	for i := range all {
		all[i].Findings = all[i].Findings[:min(len(all[i].Findings), findingsMax)]
	}
	text, err := json.Marshal(content{version, append([]Kept{}, all...)})
	if err != nil {
		panic(fmt.Sprintf("numbers and texts do not become JSON: %v", err))
	}
	return append(text, '\n')
}

// decode reads the file's text. Unknown fields, as of an earlier gradbus, are ignored.
func decode(text []byte) ([]Kept, error) {
	var c content
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	if c.Version != version || len(c.GPUs) > rememberedMax || len(text) > bytesMax {
		return nil, fmt.Errorf("%w: version %d of %d GPUs", ErrState, c.Version, len(c.GPUs))
	}
	known := map[string]bool{}
	for i := range c.GPUs {
		k := &c.GPUs[i]
		if known[k.UUID] || !k.valid() {
			return nil, fmt.Errorf("%w: GPU %.60q is there twice, or is none", ErrState, k.UUID)
		}
		known[k.UUID] = true
	}
	return slices.DeleteFunc(c.GPUs, func(k Kept) bool { return len(k.Findings) == 0 }), nil
}

// valid reports whether a record can have been written.
func (k *Kept) valid() bool {
	return k.keepable() && len(k.UUID) <= uuidBytesMax && k.Index >= 0 && k.Index < GPUsMax &&
		len(k.Findings) <= findingsMax &&
		!slices.ContainsFunc(k.Findings, func(f Finding) bool { return f.Code == "" || f.Reason == "" || f.SinceMS <= 0 })
}

// File is the file at a path. It may be used by any number of processes and goroutines.
type File struct {
	path   string
	within time.Duration // that another process may hold the lock
}

// lockTime is long: the lock is held for one short write, which a disk that is busy draws out.
const lockTime = 10 * time.Second

// KeptNowhere is the value of --gpu-state by which nothing is remembered.
const KeptNowhere = "off"

// StateFile is the file that a value of --gpu-state names; nil where it is to be none. Nothing is opened or made. An
// empty value is gradbus/gpus.json below $XDG_STATE_HOME, or ~/.local/state.
func StateFile(flag string) (*File, error) {
	if flag == KeptNowhere {
		return nil, nil
	}
	if flag == "" {
		folder := os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(folder) { // such as empty; others are to be ignored
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, fmt.Errorf("where to remember GPUs: %w", err)
			}
			folder = filepath.Join(home, ".local", "state")
		}
		flag = filepath.Join(folder, "gradbus", "gpus.json")
	}
	return &File{flag, lockTime}, nil
}

// Path is the file's name.
func (f *File) Path() string { return f.path }

// Read gives what the file holds, nothing where there is none.
func (f *File) Read() ([]Kept, error) {
	file, err := regular.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, bytesMax+1))
	if err != nil {
		return nil, err
	}
	all, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return all, nil
}

// Change changes what the file holds, while no other process does. edit gets what it holds, and gives what it shall, and
// whether that is something else.
func (f *File) Change(edit func([]Kept) ([]Kept, bool)) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	// a planted link would have root make a file elsewhere
	lock := flock.New(f.path+".lock", flock.SetFlag(os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW), flock.SetPermissions(0o600))
	ctx, stop := context.WithTimeout(context.Background(), f.within)
	defer stop()
	if _, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer lock.Close()
	all, err := f.Read()
	if err != nil {
		return err
	}
	if all, changed := edit(all); changed {
		return f.write(encode(all))
	}
	return nil
}

// write puts a new file in the place of the old one, on the disk before it has the name.
func (f *File) write(text []byte) error {
	w, err := atomicfile.Create(f.path, 0o600)
	if err != nil {
		return err
	}
	defer w.Discard()
	if _, err := w.Write(text); err != nil {
		return err
	}
	// an acknowledgement by root keeps the file's owner
	if old, gone := os.Lstat(f.path); gone == nil {
		if sys, ok := old.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
			_ = w.Chown(int(sys.Uid), int(sys.Gid))
		}
	}
	return w.Commit()
}

// Times of a keeper.
const (
	keepEvery = time.Second      // looks whether another process has changed the file, and writes at most so often
	keepAgain = time.Minute      // tries again after it could not read or write
	keepLast  = 30 * time.Second // that the disk may take at the end
)

// keeper holds a Monitor's machine and a file to the same. It is the only one that touches the file, since a disk may
// take its time: only Close waits for it, and not for ever.
type keeper struct {
	m     *Monitor
	file  *File
	boot  string
	dirty chan struct{} // has room for one: something may be to be written
	ended chan struct{} // closed when run has returned
	again time.Time     // after a failure
	why   string        // of that; empty since
}

// bootID names the present run of the machine; empty where the kernel does not say.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// newKeeper reads the file, so that the first word on a GPU is the right one.
func newKeeper(m *Monitor, now time.Time) *keeper {
	k := &keeper{m: m, file: m.config.Kept, boot: m.config.Boot(), dirty: make(chan struct{}, 1),
		ended: make(chan struct{})}
	m.machine.command = m.config.KeptCommand
	k.sync(now)
	return k
}

// run keeps until the watch has ended, and what it found last.
func (k *keeper) run() {
	defer close(k.ended)
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.m.ended:
			k.again = time.Time{}
			k.sync(time.Now())
			return
		case <-k.dirty:
			k.sync(time.Now())
		case <-tick.C:
			k.sync(time.Now())
		}
	}
}

// close waits for run, once the watch has ended.
func (k *keeper) close() {
	timer := time.NewTimer(keepLast)
	defer timer.Stop()
	select {
	case <-k.ended:
	case <-timer.C:
		k.m.config.Log.Warn(notKept, "path", k.file.Path(), "err", "the disk has not answered")
	}
}

const notKept = "what is wrong with GPUs is not remembered"

// sync takes what other processes have written, and writes what they have not.
func (k *keeper) sync(now time.Time) {
	if now.Before(k.again) {
		return
	}
	all, err := k.file.Read()
	if err == nil {
		if _, news := k.merge(now, all, false); news && !k.m.config.KeptAsIs {
			if err = k.file.Change(func(all []Kept) ([]Kept, bool) { return k.merge(now, all, true) }); err != nil {
				k.m.change(func(m *Machine) []Change { m.unkept(); return nil })
			}
		}
	}
	k.note(now, err)
}

func (k *keeper) merge(now time.Time, all []Kept, write bool) (to []Kept, news bool) {
	k.m.change(func(m *Machine) (changes []Change) {
		changes, to, news = m.Merge(now, k.boot, all, write)
		return changes
	})
	return to, news
}

// note logs once that the file cannot be used, and once that it can again. It is tried again after a while.
func (k *keeper) note(now time.Time, err error) {
	before := k.why
	if k.why = ""; err != nil {
		k.why, k.again = err.Error(), now.Add(keepAgain)
	}
	switch {
	case k.why != "" && before == "":
		k.m.config.Log.Warn(notKept, "path", k.file.Path(), "err", err)
	case k.why == "" && before != "":
		k.m.config.Log.Info("what is wrong with GPUs is remembered again", "path", k.file.Path())
	}
}
