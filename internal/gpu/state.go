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
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
)

// Kept is what is remembered of a GPU beyond the end of the process that found it out, and shared with others that
// watch it. Times are milliseconds since 1970.
type Kept struct {
	GPU                      // as it was last seen
	Findings  []KeptFinding  `json:"findings,omitempty"`  // that hold until they are acknowledged
	Incidents []KeptIncident `json:"incidents,omitempty"` // of class Restart: the last of each XID
	// AcknowledgedMS is when everything up to then was acknowledged: who still has older findings drops them.
	AcknowledgedMS int64  `json:"acknowledged_ms,omitempty"`
	Boot           string `json:"boot,omitempty"` // names the run of the machine in which all was found
}

// KeptFinding is a finding that is remembered. It makes the GPU unhealthy.
type KeptFinding struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Action  string `json:"action"`
	SinceMS int64  `json:"since_ms"`
	SeenMS  int64  `json:"seen_ms"` // the last sign of it that is an event
	Memory  bool   `json:"memory,omitempty"`
}

// KeptIncident is a XID of class Restart, which counts as a repeat for a day.
type KeptIncident struct {
	XID  uint64 `json:"xid"`
	AtMS int64  `json:"at_ms"`
}

// Keepable says whether what is found of a GPU may be remembered: it is no made up one, nor one that could not say
// which it is.
func (g *GPU) Keepable() bool { return strings.HasPrefix(g.UUID, "GPU-") }

// Holds says whether anything is remembered that an acknowledgement would end.
func (k *Kept) Holds() bool { return len(k.Findings)+len(k.Incidents) > 0 }

// Acknowledge forgets what was wrong, and gives what it forgets.
func (k *Kept) Acknowledge(now time.Time) (findings []KeptFinding, incidents []KeptIncident) {
	findings, incidents = k.Findings, k.Incidents
	at := max(now.UnixMilli(), k.AcknowledgedMS+1)
	for _, f := range findings { // a clock that was set back must not make it void
		at = max(at, f.last())
	}
	for _, i := range incidents {
		at = max(at, i.AtMS)
	}
	k.AcknowledgedMS, k.Findings, k.Incidents = at, nil, nil
	return findings, incidents
}

func (f *KeptFinding) last() int64 { return max(f.SinceMS, f.SeenMS) }

// Same says that a record says nothing new. The words of a finding are no reason to write one: every process counts from
// its own beginning in them, and two that watch the same GPU must come to rest.
func (k *Kept) Same(other *Kept) bool {
	same := func(a, b KeptFinding) bool {
		return a.Code == b.Code && a.SinceMS == b.SinceMS && a.SeenMS == b.SeenMS && a.Memory == b.Memory
	}
	return slices.EqualFunc(k.Findings, other.Findings, same) && slices.Equal(k.Incidents, other.Incidents) &&
		k.AcknowledgedMS == other.AcknowledgedMS
}

// Bounds of the file.
const (
	version       = 1
	rememberedMax = 256 // those of a machine, and of others that share the home folder
	findingsMax   = 64
	textMax       = 1000 // bytes of a text
	bytesMax      = 4 << 20
	idleTime      = 30 * 24 * time.Hour // after which a GPU of which nothing holds is dropped
)

// ErrDamaged is the error of a file that is not one of ours, or is cut. It is left as it is until something is to be
// written.
var ErrDamaged = errors.New("the file is damaged")

// ErrNewer is the error of a file that a newer gradbus has written. It is never written to.
var ErrNewer = errors.New("the file is of a newer gradbus")

type content struct {
	Version int    `json:"version"`
	GPUs    []Kept `json:"gpus"`
}

// encode gives the file's text, within its bounds.
func encode(all []Kept, now time.Time) []byte {
	all = slices.DeleteFunc(slices.Clone(all), func(k Kept) bool {
		return !k.Holds() && k.AcknowledgedMS < now.Add(-idleTime).UnixMilli()
	})
	order := func(k *Kept) int64 { // those of which something holds first, then the newest
		if k.Holds() {
			return -1 << 62
		}
		return -k.AcknowledgedMS
	}
	slices.SortStableFunc(all, func(a, b Kept) int { return cmp.Compare(order(&a), order(&b)) })
	all = all[:min(len(all), rememberedMax)]
	cut := func(text string) string { return text[:min(len(text), textMax)] }
	for i := range all {
		k := &all[i]
		k.Findings = slices.Clone(k.Findings[:min(len(k.Findings), findingsMax)])
		k.Incidents = k.Incidents[:min(len(k.Incidents), findingsMax)]
		k.Name, k.PCI = cut(k.Name), cut(k.PCI)
		for j := range k.Findings {
			f := &k.Findings[j]
			f.Reason, f.Action = cut(f.Reason), cut(f.Action)
		}
	}
	slices.SortStableFunc(all, func(a, b Kept) int { return a.Index - b.Index })
	text, err := json.Marshal(content{version, append([]Kept{}, all...)})
	if err != nil {
		panic(fmt.Sprintf("numbers and texts do not become JSON: %v", err))
	}
	return append(text, '\n')
}

// decode reads the file's text. Fields that are not known, as of an earlier gradbus, are left out.
func decode(text []byte) ([]Kept, error) {
	if len(text) > bytesMax {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrDamaged, bytesMax)
	}
	var c content
	switch err := json.Unmarshal(text, &c); {
	case c.Version > version: // also where the rest has another form
		return nil, fmt.Errorf("%w: version %d, and this one knows %d", ErrNewer, c.Version, version)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	case c.Version < 1:
		return nil, fmt.Errorf("%w: it has no version", ErrDamaged)
	case len(c.GPUs) > rememberedMax:
		return nil, fmt.Errorf("%w: %d GPUs are too many", ErrDamaged, len(c.GPUs))
	}
	known := map[string]bool{}
	for _, k := range c.GPUs {
		err := k.valid()
		if err == nil && known[k.UUID] {
			err = errors.New("it is there twice")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: GPU %.60q: %w", ErrDamaged, k.UUID, err)
		}
		known[k.UUID] = true
	}
	return c.GPUs, nil
}

// valid finds what cannot have been written.
func (k *Kept) valid() error {
	switch {
	case !k.Keepable() || len(k.UUID) > textMax:
		return errors.New("no UUID of a GPU")
	case k.Index < 0 || k.Index >= GPUsMax:
		return fmt.Errorf("index %d", k.Index)
	case len(k.Findings) > findingsMax || len(k.Incidents) > findingsMax:
		return errors.New("too many findings")
	case k.AcknowledgedMS < 0:
		return errors.New("a time before 1970")
	}
	for _, f := range k.Findings {
		if f.Code == "" || f.Reason == "" || f.SinceMS <= 0 || f.SeenMS < f.SinceMS {
			return fmt.Errorf("finding %.60q is not whole", f.Code)
		}
	}
	for _, i := range k.Incidents {
		if i.AtMS <= 0 {
			return fmt.Errorf("XID %d has no time", i.XID)
		}
	}
	return nil
}

// File is the file at a path. It may be used by any number of processes and goroutines.
type File struct {
	path   string
	within time.Duration // that somebody else may hold the lock
}

// lockTime is long: the lock is held for one short write, which a disk that is busy draws out.
const lockTime = 10 * time.Second

// FileAt gives the file at a path. Nothing is opened or made.
func FileAt(path string) *File { return &File{path, lockTime} }

// DefaultPath is where the file is unless somebody says otherwise: gradbus/gpus.json below $XDG_STATE_HOME, or
// ~/.local/state.
func DefaultPath() (string, error) {
	folder := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(folder) { // such as empty; others are to be ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("where to remember GPUs: %w", err)
		}
		folder = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(folder, "gradbus", "gpus.json"), nil
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

// Check finds what would keep the file from being read or changed, and gives the number of GPUs with which something is
// wrong. It changes nothing.
func (f *File) Check() (wrong int, err error) {
	all, err := f.Read()
	if err != nil {
		return 0, err
	}
	for _, k := range all {
		if len(k.Findings) > 0 {
			wrong++
		}
	}
	folder := filepath.Dir(f.path)
	for { // the nearest that is there: those below would be made
		const writable, passable = 2, 1
		err := syscall.Access(folder, writable|passable)
		if err == nil {
			return wrong, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || folder == filepath.Dir(folder) {
			return wrong, fmt.Errorf("write in %s: %w", folder, err)
		}
		folder = filepath.Dir(folder)
	}
}

// Change changes what the file holds, while nobody else does. edit gets what it holds, and gives what it shall, and
// whether that is something else. A damaged file counts as empty, and is set aside when another one takes its place.
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
	damaged := errors.Is(err, ErrDamaged)
	if err != nil && !damaged {
		return err
	}
	all, changed := edit(all)
	if !changed {
		return nil
	}
	if damaged {
		if err := os.Rename(f.path, f.path+".damaged"); err != nil {
			return err
		}
	}
	return f.write(encode(all, time.Now()))
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
	// root, who may have been asked to acknowledge, does not take it away from whose it is
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
// take its time: nobody waits for it but Close, and not for ever.
type keeper struct {
	m     *Monitor
	file  *File
	boot  string
	dirty chan struct{} // has room for one: something may be to be written
	ended chan struct{} // closed when run has returned

	held  []Kept    // what the file holds, as far as is known
	again time.Time // after a failure
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
	all, err := k.file.Read()
	k.learn(now, all)
	k.note(now, err)
	return k
}

// run keeps until the watch has ended, and what it found last.
func (k *keeper) run() {
	defer close(k.ended)
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	var wrote time.Time
	for {
		select {
		case <-k.m.ended:
			k.again = time.Time{}
			k.sync(time.Now())
			return
		case <-k.dirty:
			if time.Since(wrote) < keepEvery {
				continue // with the next tick
			}
		case <-tick.C:
		}
		if k.sync(time.Now()) {
			wrote = time.Now()
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

// sync takes what others have written, and writes what they have not. A damaged file is replaced as soon as there is
// something to write.
func (k *keeper) sync(now time.Time) (wrote bool) {
	if now.Before(k.again) {
		return false
	}
	all, err := k.file.Read()
	if err == nil && !reflect.DeepEqual(all, k.held) {
		k.learn(now, all)
	}
	if (err == nil || errors.Is(err, ErrDamaged)) && !k.m.config.KeptAsIs && len(k.news(now)) > 0 {
		err = k.file.Change(func(all []Kept) ([]Kept, bool) {
			k.learn(now, all)
			news := k.news(now)
			for _, one := range news {
				all = append(slices.DeleteFunc(all, func(o Kept) bool { return o.UUID == one.UUID }), one)
			}
			k.held, wrote = all, len(news) > 0
			return all, wrote
		})
	}
	k.note(now, err)
	return wrote && err == nil
}

// news is what the file lacks of what this process would have remembered.
func (k *keeper) news(now time.Time) []Kept {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return slices.DeleteFunc(k.m.machine.Kept(now), func(ours Kept) bool {
		return slices.ContainsFunc(k.held, func(o Kept) bool { return o.UUID == ours.UUID && o.Same(&ours) })
	})
}

func (k *keeper) learn(now time.Time, all []Kept) {
	k.held = slices.Clone(all)
	k.m.change(func(m *Machine) []Change { return m.Learn(now, k.boot, all) })
}

const notKept = "what is wrong with GPUs is not remembered"

// note says once what is wrong with the file, and once that it is well again. It is tried again after a while.
func (k *keeper) note(now time.Time, err error) {
	why := ""
	if err != nil {
		why = fmt.Sprintf("%s: %v", notKept, err)
		if !errors.Is(err, ErrDamaged) {
			k.again = now.Add(keepAgain)
		}
	}
	k.m.mu.Lock()
	before := k.m.notKept
	k.m.notKept = why
	k.m.mu.Unlock()
	switch {
	case why != "" && before == "":
		k.m.config.Log.Warn(notKept, "path", k.file.Path(), "err", err)
	case why == "" && before != "":
		k.m.config.Log.Info("what is wrong with GPUs is remembered again", "path", k.file.Path())
	}
}
