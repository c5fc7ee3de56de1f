package gpu

import (
	"bytes"
	"cmp"
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

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
	"gradbus/schema"
)

// Kept is what is remembered of a GPU beyond the end of the process that found it out, and shared with others that
// watch it. Times are milliseconds since 1970.
type Kept struct {
	GPU                      // as it was last seen
	Findings  []KeptFinding  `json:"findings,omitempty"`  // that hold until they are acknowledged or the GPU is reset
	Incidents []KeptIncident `json:"incidents,omitempty"` // of class Restart: the last of each XID
	// AcknowledgedMS and ResetMS are when everything up to then was acknowledged, and ended by a reset: who still has
	// older findings drops them.
	AcknowledgedMS int64    `json:"acknowledged_ms,omitempty"`
	ResetMS        int64    `json:"reset_ms,omitempty"`
	Counters       Counters `json:"counters"`
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

// Counters are those by which a reset is seen, as they were told last.
type Counters struct {
	AtMS int64  `json:"at_ms,omitempty"`
	Boot string `json:"boot,omitempty"` // of the machine; empty is not known
	// the driver keeps the GPU while nobody uses it, and so its counters
	Persistent     bool    `json:"persistent,omitempty"`
	Energy         *uint64 `json:"energy_mj,omitempty"`
	ECCCorrected   *uint64 `json:"ecc_corrected,omitempty"`
	ECCUncorrected *uint64 `json:"ecc_uncorrected,omitempty"`

	probe uint64 // that told them; 0 is one of another process
}

// Keepable says whether what is found of a GPU may be remembered: it is no made up one, nor one that could not say
// which it is.
func (g *GPU) Keepable() bool { return strings.HasPrefix(g.UUID, "GPU-") }

// Holds says whether anything is remembered that an acknowledgement would end.
func (k *Kept) Holds() bool { return len(k.Findings)+len(k.Incidents) > 0 }

// Acknowledge forgets what was wrong, for whoever has the GPU's record and not the GPU. It gives what it forgets.
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

// Same says that a record says nothing new. Counters alone are no reason to write one; nor are the words of a finding,
// in which every process counts from its own beginning: two that watch the same GPU must come to rest.
func (k *Kept) Same(other *Kept) bool {
	same := func(a, b KeptFinding) bool {
		return a.Code == b.Code && a.SinceMS == b.SinceMS && a.SeenMS == b.SeenMS && a.Memory == b.Memory
	}
	return slices.EqualFunc(k.Findings, other.Findings, same) && slices.Equal(k.Incidents, other.Incidents) &&
		k.AcknowledgedMS == other.AcknowledgedMS && k.ResetMS == other.ResetMS
}

// Kept gives what is to be remembered of every GPU of which something is. Nothing that was injected is among it.
func (m *Machine) Kept(now time.Time) []Kept {
	var all []Kept
	for _, g := range m.gpus {
		if !g.Keepable() {
			continue
		}
		k := Kept{GPU: g.GPU, AcknowledgedMS: g.acknowledged, ResetMS: g.reset, Counters: g.counters}
		for _, c := range g.found {
			if c.Sticky && !c.injected {
				seen := max(c.last().UnixMilli(), g.acknowledged+1, g.reset+1) // also where the clock was set back since
				k.Findings = append(k.Findings, KeptFinding{c.Code, c.Reason, c.Action, c.since.UnixMilli(), seen, c.Memory})
			}
		}
		slices.SortFunc(k.Findings, func(a, b KeptFinding) int {
			return cmp.Or(cmp.Compare(a.SinceMS, b.SinceMS), cmp.Compare(a.Code, b.Code))
		})
		for number, i := range g.incidents {
			if !i.injected && now.Sub(i.at) <= m.policy.Repeat {
				k.Incidents = append(k.Incidents, KeptIncident{number, i.at.UnixMilli()})
			}
		}
		slices.SortFunc(k.Incidents, func(a, b KeptIncident) int { return cmp.Compare(a.XID, b.XID) })
		if !k.Same(&Kept{}) {
			all = append(all, k)
		}
	}
	return all
}

// AcknowledgeBy says which command acknowledges a GPU, followed by its index, in this process and those that remember
// the same.
func (m *Machine) AcknowledgeBy(command string) { m.command = command }

// Learn takes what is remembered of GPUs: when the process begins, and whenever another one has changed it. boot names
// the present run of the machine.
func (m *Machine) Learn(now time.Time, boot string, all []Kept) []Change {
	m.boot, m.kept = boot, map[string]Kept{}
	for _, k := range all {
		m.kept[k.UUID] = k
	}
	var changes []Change
	for _, g := range m.gpus {
		k, ok := m.kept[g.UUID]
		if !ok {
			continue
		}
		had := len(g.found) > 0
		acknowledged := m.adopt(now, g, &k, false)
		told := m.settle(now, g, Change{})
		for i := range told {
			if acknowledged && had && told[i].To != schema.GPUUnhealthy {
				told[i].Code, told[i].Reason, told[i].Action = acknowledgedCode, acknowledgedReason, ""
			}
		}
		changes = append(changes, told...)
	}
	return changes
}

const (
	acknowledgedCode   = "acknowledged"
	acknowledgedReason = "Somebody has acknowledged what was wrong."
)

// adopt takes what is remembered of a GPU. fresh says that this process has just begun to know it.
func (m *Machine) adopt(now time.Time, g *gpu, k *Kept, fresh bool) (acknowledged bool) {
	if k.AcknowledgedMS > g.acknowledged {
		g.acknowledged, acknowledged = k.AcknowledgedMS, true
		g.dropUntil(g.acknowledged)
		for number, i := range g.incidents {
			if i.at.UnixMilli() <= g.acknowledged {
				delete(g.incidents, number)
			}
		}
	}
	if k.ResetMS > g.reset {
		g.reset = k.ResetMS
		g.dropUntil(g.reset)
	}
	if fresh {
		g.counters = k.Counters
		g.counters.probe = 0
		// the machine was started anew
		if k.Counters.Boot != "" && m.boot != "" && k.Counters.Boot != m.boot && len(k.Findings) > 0 {
			for _, f := range k.Findings {
				g.reset = max(g.reset, f.last())
			}
		}
	}
	for _, f := range k.Findings {
		if f.last() > max(g.acknowledged, g.reset) {
			m.recall(g, &f)
		}
	}
	for _, i := range k.Incidents {
		at := time.UnixMilli(i.AtMS)
		if known, ok := g.incidents[i.XID]; ok && !known.injected && !known.at.Before(at) || i.AtMS <= g.acknowledged {
			continue
		}
		g.incident(i.XID, incident{at: at, before: fresh})
	}
	return acknowledged
}

// recall makes a finding hold that is remembered.
func (m *Machine) recall(g *gpu, f *KeptFinding) {
	since, seen := time.UnixMilli(f.SinceMS), time.UnixMilli(f.last())
	c := g.condition(f.Code)
	if c == nil || !c.Sticky || c.injected {
		g.drop(f.Code)
		c = &condition{Finding: Finding{Code: f.Code, State: schema.GPUUnhealthy, Reason: f.Reason, Action: f.Action,
			Sticky: true, Memory: f.Memory}, since: since, seen: seen}
		g.found = append(g.found, c)
		if f.Memory {
			m.fault(g.UUID, since, seen)
		}
		return
	}
	if since.Before(c.since) {
		c.since = since
	}
	if seen.After(c.last()) {
		c.seen = seen
	}
}

// dropUntil drops what was found up to a time, and begins anew where nothing is left.
func (g *gpu) dropUntil(ms int64) {
	had := len(g.found)
	g.found = slices.DeleteFunc(g.found, func(c *condition) bool { return c.last().UnixMilli() <= ms })
	if had > 0 && len(g.found) == 0 {
		g.forget(&g.last)
	}
}

// last is when there was a sign of a condition last, as far as signs are events.
func (c *condition) last() time.Time {
	if c.seen.After(c.since) {
		return c.seen
	}
	return c.since
}

// acknowledge forgets what was wrong. Others are to forget it too, where it is remembered.
func (g *gpu) acknowledge(now time.Time) {
	newest := g.newest()
	for _, i := range g.incidents {
		if !i.injected {
			newest = max(newest, i.at.UnixMilli())
		}
	}
	if newest > 0 { // a clock that was set back must not make it void
		g.acknowledged = max(now.UnixMilli(), g.acknowledged+1, newest)
	}
	g.found, g.incidents = nil, nil
	g.forget(&g.last)
}

// newest is when there was a sign of anything that is remembered; 0 where nothing is.
func (g *gpu) newest() (ms int64) {
	for _, c := range g.found {
		if c.Sticky && !c.injected {
			ms = max(ms, c.last().UnixMilli())
		}
	}
	return ms
}

// wasReset sees that a GPU was reset, or its driver loaded again: counters that only rise have fallen. They also fall
// where the driver lets a GPU go that nobody uses, which is no reset: from one probe to the next that is told apart by
// its persistence mode.
func (g *gpu) wasReset(s *Sample, probe uint64) bool {
	old := &g.counters
	if s.Lost != "" || old.probe != probe && !(old.Persistent && s.Persistent != nil && *s.Persistent) {
		return false
	}
	fell := func(a, b *uint64) bool { return a != nil && b != nil && *b < *a }
	return fell(old.Energy, s.Energy) || fell(old.ECCUncorrected, s.ECCUncorrected) ||
		fell(old.ECCCorrected, s.ECCCorrected)
}

// note remembers the counters of a sample, where it tells any.
func (g *gpu) note(now time.Time, s *Sample, probe uint64, boot string) {
	if s.Lost != "" || s.Energy == nil && s.ECCUncorrected == nil && s.ECCCorrected == nil {
		return
	}
	g.counters = Counters{AtMS: now.UnixMilli(), Boot: boot, Persistent: s.Persistent != nil && *s.Persistent,
		Energy: s.Energy, ECCCorrected: s.ECCCorrected, ECCUncorrected: s.ECCUncorrected, probe: probe}
}

// Bounds of the file.
const (
	Version       = 1
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
	all = slices.Clone(all)
	all = slices.DeleteFunc(all, func(k Kept) bool {
		return !k.Holds() && max(k.AcknowledgedMS, k.ResetMS) < now.Add(-idleTime).UnixMilli()
	})
	slices.SortStableFunc(all, func(a, b Kept) int { // those with findings first, then the newest
		if len(a.Findings) > 0 != (len(b.Findings) > 0) {
			return len(b.Findings) - len(a.Findings)
		}
		return int(b.Counters.AtMS - a.Counters.AtMS)
	})
	all = all[:min(len(all), rememberedMax)]
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
	text, err := json.Marshal(content{Version, append([]Kept{}, all...)})
	if err != nil {
		panic(fmt.Sprintf("numbers and texts do not become JSON: %v", err))
	}
	return append(text, '\n')
}

func cut(text string) string { return text[:min(len(text), textMax)] }

// decode reads the file's text.
func decode(text []byte) ([]Kept, error) {
	damaged := func(format string, args ...any) ([]Kept, error) {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
	}
	if len(text) > bytesMax {
		return damaged("it has more than %d bytes", bytesMax)
	}
	var head struct{ Version *int }
	if err := json.Unmarshal(text, &head); err != nil {
		return damaged("%v", err)
	}
	switch {
	case head.Version == nil || *head.Version < 1:
		return damaged("it has no version")
	case *head.Version > Version:
		return nil, fmt.Errorf("%w: version %d, and this one knows %d", ErrNewer, *head.Version, Version)
	}
	var c content
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return damaged("%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return damaged("something follows what it holds")
	}
	if len(c.GPUs) > rememberedMax {
		return damaged("%d GPUs are too many", len(c.GPUs))
	}
	known := map[string]bool{}
	for _, k := range c.GPUs {
		if err := valid(&k); err != nil {
			return damaged("GPU %.60q: %v", k.UUID, err)
		}
		if known[k.UUID] {
			return damaged("GPU %.60q is there twice", k.UUID)
		}
		known[k.UUID] = true
	}
	return c.GPUs, nil
}

// valid finds what cannot have been written.
func valid(k *Kept) error {
	switch {
	case !k.Keepable() || len(k.UUID) > textMax:
		return errors.New("no UUID of a GPU")
	case k.Index < 0 || k.Index >= GPUsMax:
		return fmt.Errorf("index %d", k.Index)
	case len(k.Findings) > findingsMax || len(k.Incidents) > findingsMax:
		return errors.New("too many findings")
	case k.AcknowledgedMS < 0 || k.ResetMS < 0:
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
	within time.Duration                     // that somebody else may hold the lock
	create func(path string) (writer, error) // begins the new file, in tests one on a full disk
}

// writer is what is used of an *atomicfile.File.
type writer interface {
	io.Writer
	Chown(uid, gid int) error
	Commit() error
	Discard()
}

// FileAt gives the file at a path. Nothing is opened or made.
func FileAt(path string) *File {
	return &File{path: path, within: lockTime, create: func(path string) (writer, error) {
		return atomicfile.Create(path, 0o600)
	}}
}

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

// Stamp is a moment in a file's life: two that are equal are of the same content. The zero value is no file.
type Stamp struct {
	inode    uint64
	size     int64
	modified time.Time
}

// Stamp says which content the file has now.
func (f *File) Stamp() (Stamp, error) {
	info, err := os.Stat(f.path)
	return stampOf(info, err)
}

func stampOf(info fs.FileInfo, err error) (Stamp, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return Stamp{}, nil
	}
	if err != nil {
		return Stamp{}, err
	}
	s := Stamp{size: info.Size(), modified: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = sys.Ino
	}
	return s, nil
}

// Read gives what the file holds, nothing where there is none, and which content that is.
func (f *File) Read() ([]Kept, Stamp, error) {
	file, err := regular.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Stamp{}, nil
	}
	if err != nil {
		return nil, Stamp{}, err
	}
	defer file.Close()
	stamp, err := stampOf(file.Stat())
	if err != nil {
		return nil, stamp, err
	}
	text, err := io.ReadAll(io.LimitReader(file, bytesMax+1))
	if err != nil {
		return nil, stamp, err
	}
	all, err := decode(text)
	if err != nil {
		return nil, stamp, fmt.Errorf("%s: %w", f.path, err)
	}
	return all, stamp, nil
}

// Check finds what would keep the file from being read or changed, and gives the number of GPUs with which something is
// wrong. It changes nothing.
func (f *File) Check() (wrong int, err error) {
	all, _, err := f.Read()
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
		info, err := os.Stat(folder)
		if err == nil && !info.IsDir() {
			return wrong, fmt.Errorf("%s is no folder", folder)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || folder == filepath.Dir(folder) {
			return wrong, err
		}
		folder = filepath.Dir(folder)
	}
	const writable, passable = 2, 1
	if err := syscall.Access(folder, writable|passable); err != nil {
		return wrong, fmt.Errorf("write in %s: %w", folder, err)
	}
	return wrong, nil
}

// Change changes what the file holds, while nobody else does. edit gets what it holds, and gives what it shall, and
// whether that is something else. A damaged file counts as empty, and is set aside when another one takes its place.
func (f *File) Change(edit func([]Kept) ([]Kept, bool)) (Stamp, error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return Stamp{}, err
	}
	unlock, err := f.lock()
	if err != nil {
		return Stamp{}, err
	}
	defer unlock()
	all, stamp, err := f.Read()
	damaged := errors.Is(err, ErrDamaged)
	if err != nil && !damaged {
		return stamp, err
	}
	all, changed := edit(all)
	if !changed {
		return stamp, nil
	}
	if damaged {
		if err := os.Rename(f.path, f.path+".damaged"); err != nil {
			return stamp, err
		}
	}
	if err := f.write(encode(all, time.Now())); err != nil {
		return stamp, err
	}
	return f.Stamp()
}

// write puts a new file in the place of the old one, on the disk before it has the name.
func (f *File) write(text []byte) error {
	w, err := f.create(f.path)
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

// Time that somebody else may hold the lock: it is held for one short write, which a disk that is busy draws out.
const (
	lockTime  = 10 * time.Second
	lockEvery = 5 * time.Millisecond
)

// lock holds the lock until unlock is called, or its process ends.
func (f *File) lock() (unlock func(), err error) {
	path := f.path + ".lock"
	// a planted link would have root make a file elsewhere
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(f.within); ; time.Sleep(lockEvery) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
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

	stamp Stamp // of what is known of the file
	holds map[string]Kept
	again time.Time // after a failure
	blind bool      // the file could not be read
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
	m.machine.AcknowledgeBy(m.config.KeptCommand)
	k.read(now)
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
			k.sync(time.Now(), true)
			return
		case <-k.dirty:
			if time.Since(wrote) < keepEvery {
				continue // with the next tick
			}
		case <-tick.C:
		}
		if k.sync(time.Now(), false) {
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

// sync takes what others have written, and writes what they have not. last says that the process ends: counters are
// written too, where something holds, since a reset that comes is seen by them.
func (k *keeper) sync(now time.Time, last bool) (wrote bool) {
	if now.Before(k.again) {
		return false
	}
	if stamp, err := k.file.Stamp(); err != nil {
		k.failed(now, err)
		return false
	} else if stamp != k.stamp && !k.read(now) {
		return false
	}
	if k.m.config.KeptAsIs {
		return false
	}
	if ours := k.ours(now); !slices.ContainsFunc(ours, func(o Kept) bool { return k.news(&o, last) }) {
		return false
	}
	stamp, err := k.file.Change(func(all []Kept) ([]Kept, bool) {
		k.learn(now, all)
		changed := false
		for _, o := range k.ours(now) {
			if k.news(&o, last) {
				changed = true
				all = put(all, o)
			}
		}
		k.hold(all)
		return all, changed
	})
	if err != nil {
		k.failed(now, err)
		return false
	}
	k.stamp = stamp
	k.well()
	return true
}

// ours is what this process would have remembered.
func (k *keeper) ours(now time.Time) []Kept {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return k.m.machine.Kept(now)
}

// news says whether the file lacks something of a GPU.
func (k *keeper) news(ours *Kept, last bool) bool {
	held, ok := k.holds[ours.UUID]
	return !ok || !held.Same(ours) || last && len(ours.Findings) > 0 && ours.Counters.AtMS > held.Counters.AtMS
}

func put(all []Kept, k Kept) []Kept {
	for i := range all {
		if all[i].UUID == k.UUID {
			all[i] = k
			return all
		}
	}
	return append(all, k)
}

// read takes what the file holds.
func (k *keeper) read(now time.Time) bool {
	all, stamp, err := k.file.Read()
	k.stamp = stamp
	if err != nil {
		k.failed(now, err)
		k.blind = true
		if errors.Is(err, ErrDamaged) { // another one takes its place as soon as there is something to write
			k.again = time.Time{}
		}
		return false
	}
	k.learn(now, all)
	if k.blind {
		k.well()
	}
	return true
}

func (k *keeper) learn(now time.Time, all []Kept) {
	k.hold(all)
	k.m.change(func(m *Machine) []Change { return m.Learn(now, k.boot, all) })
}

func (k *keeper) hold(all []Kept) {
	k.holds = make(map[string]Kept, len(all))
	for _, one := range all {
		k.holds[one.UUID] = one
	}
}

const notKept = "what is wrong with GPUs is not remembered"

// failed says once what is wrong with the file, and tries again after a while.
func (k *keeper) failed(now time.Time, err error) {
	k.again = now.Add(keepAgain)
	k.m.mu.Lock()
	told := k.m.notKept != ""
	k.m.notKept = fmt.Sprintf("%s: %v", notKept, err)
	k.m.mu.Unlock()
	if !told {
		k.m.config.Log.Warn(notKept, "path", k.file.Path(), "err", err)
	}
}

func (k *keeper) well() {
	k.blind = false
	k.m.mu.Lock()
	told := k.m.notKept != ""
	k.m.notKept = ""
	k.m.mu.Unlock()
	if told {
		k.m.config.Log.Info("what is wrong with GPUs is remembered again", "path", k.file.Path())
	}
}
