package gpu

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// alone is a keeper whose watch is played: nothing runs but what the test calls.
func alone(path string, now time.Time) *keeper {
	m := &Monitor{config: Config{Kept: FileAt(path), Boot: func() string { return "boot-1" }}.withDefaults()}
	m.machine = New(0)
	k := newKeeper(m, now)
	m.machine.Hello(now, &Hello{GPUs: []GPU{{UUID: "GPU-0"}}})
	m.machine.Sample(now, sampleOf(GPU{UUID: "GPU-0"}), false)
	return k
}

func (k *keeper) xid(now time.Time, number uint64) {
	k.m.machine.XID(now, &XID{UUID: "GPU-0", Number: number}, false)
}

// Who writes takes over what was written since it has looked: nothing is lost.
func TestKeeperLosesNothing(t *testing.T) {
	t.Parallel()
	path, now := filepath.Join(t.TempDir(), "gpus.json"), time.Unix(1_800_000_000, 0)
	a, b := alone(path, now), alone(path, now)
	a.xid(now, 79)
	if !a.sync(now) {
		t.Fatal("nothing was written")
	}
	b.xid(now, 48)
	if !b.sync(now) {
		t.Fatal("nothing was written")
	}
	all, err := b.file.Read()
	if err != nil || len(all) != 1 || len(all[0].Findings) != 2 {
		t.Errorf("remembered %+v, %v: want both", all, err)
	}
	if b.sync(now) {
		t.Error("written again, and nothing is new")
	}
}

// What cannot be written is tried again after a minute, not at every tick; and at the end.
func TestKeeperTriesAgain(t *testing.T) {
	t.Parallel()
	folder, now := t.TempDir(), time.Unix(1_800_000_000, 0)
	inTheWay := filepath.Join(folder, "state")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(inTheWay, "gpus.json")
	k := alone(path, now)
	k.xid(now, 79)
	if k.sync(now) || k.m.NotKept() == "" {
		t.Fatal("written through a file")
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if k.sync(now.Add(keepAgain - time.Second)) {
		t.Error("tried again within a minute")
	}
	if !k.sync(now.Add(keepAgain)) || k.m.NotKept() != "" {
		t.Errorf("not tried again: %s", k.m.NotKept())
	}
}
