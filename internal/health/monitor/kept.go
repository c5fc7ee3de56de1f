package monitor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"gradbus/internal/health"
	"gradbus/internal/health/keep"
)

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
	file  *keep.File
	boot  string
	dirty chan struct{} // has room for one: something may be to be written
	ended chan struct{} // closed when run has returned

	stamp keep.Stamp // of what is known of the file
	holds map[string]health.Kept
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
	if ours := k.ours(now); !slices.ContainsFunc(ours, func(o health.Kept) bool { return k.news(&o, last) }) {
		return false
	}
	stamp, err := k.file.Change(func(all []health.Kept) ([]health.Kept, bool) {
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
func (k *keeper) ours(now time.Time) []health.Kept {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return k.m.machine.Kept(now)
}

// news says whether the file lacks something of a GPU.
func (k *keeper) news(ours *health.Kept, last bool) bool {
	held, ok := k.holds[ours.UUID]
	return !ok || !held.Same(ours) || last && len(ours.Findings) > 0 && ours.Counters.AtMS > held.Counters.AtMS
}

func put(all []health.Kept, k health.Kept) []health.Kept {
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
		if errors.Is(err, keep.ErrDamaged) { // another one takes its place as soon as there is something to write
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

func (k *keeper) learn(now time.Time, all []health.Kept) {
	k.hold(all)
	k.m.change(func(m *health.Machine) []health.Change { return m.Learn(now, k.boot, all) })
}

func (k *keeper) hold(all []health.Kept) {
	k.holds = make(map[string]health.Kept, len(all))
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
