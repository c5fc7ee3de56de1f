package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

const nowMS = 1_800_000_000_000

func one(uuid string) Kept {
	return Kept{GPU: GPU{Index: 1, UUID: uuid, Name: "H100", PCI: "0000:3b:00.0"},
		Findings: []Finding{{Code: "xid-48", Reason: "XID 48: bad", Action: "Reset it.", SinceMS: nowMS - 5,
			Memory: true}}, Boot: "b"}
}

// text is what the file of one GPU is, letter by letter: what an earlier gradbus has written is to be read for ever.
const text = `{"version":1,"gpus":[{"index":1,"uuid":"GPU-a","name":"H100","pci":"0000:3b:00.0",` +
	`"findings":[{"code":"xid-48","reason":"XID 48: bad","action":"Reset it.","since_ms":1799999999995,"memory":true}],` +
	`"boot":"b"}]}` + "\n"

func at(t *testing.T, content string) *File {
	t.Helper()
	f := &File{filepath.Join(t.TempDir(), "state", "gradbus", "gpus.json"), lockTime}
	if content != "" {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func replace(all ...Kept) func([]Kept) ([]Kept, bool) {
	return func([]Kept) ([]Kept, bool) { return all, true }
}

// What is written is what is read, and what stands in the file is known.
func TestFile(t *testing.T) {
	t.Parallel()
	f := at(t, "")
	if all, err := f.Read(); err != nil || all != nil {
		t.Fatalf("no file: %v, %v", all, err)
	}
	if _, err := os.Stat(filepath.Dir(f.path)); err == nil {
		t.Error("reading has made a folder")
	}
	if err := f.Change(replace(one("GPU-a"))); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(f.path)
	if err != nil || string(data) != text {
		t.Errorf("written %q, %v\nwant    %q", data, err, text)
	}
	info, err := os.Stat(f.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if all, err := f.Read(); err != nil || !reflect.DeepEqual(all, []Kept{one("GPU-a")}) {
		t.Errorf("read %+v, %v", all, err)
	}
	if err := f.Change(func([]Kept) ([]Kept, bool) { return nil, false }); err != nil {
		t.Errorf("no change: %v", err)
	}
	// of an earlier gradbus, which remembered more
	old := at(t, strings.Replace(text, `"boot":"b"`, `"incidents":[{"xid":31,"at_ms":1799999999991}],"boot":"b"`, 1))
	if all, err := old.Read(); err != nil || !reflect.DeepEqual(all, []Kept{one("GPU-a")}) {
		t.Errorf("read %+v, %v", all, err)
	}
}

// Whatever is wrong with a file is said, and it stays as it is.
func TestDamaged(t *testing.T) {
	t.Parallel()
	with := func(old, new string) string { return strings.Replace(text, old, new, 1) }
	for name, c := range map[string]struct{ text, says string }{
		"empty":           {"\n", "end of JSON"},
		"cut":             {text[:100], "end of JSON"},
		"zeros":           {strings.Repeat("\x00", 300), "invalid character"},
		"two":             {text + text, "after top-level value"},
		"no version":      {with(`"version":1,`, ""), "version 0 of 1 GPUs"},
		"newer":           {`{"version":2,"what":["else"]}`, "version 2 of 0 GPUs"},
		"text for number": {with(`"index":1`, `"index":"1"`), "index"},
		"negative index":  {with(`"index":1`, `"index":-1`), "or is none"},
		"large index":     {with(`"index":1`, `"index":64`), "or is none"},
		"no UUID":         {with(`GPU-a`, ``), "or is none"},
		"made up":         {with(`GPU-a`, `SIMULATED-0`), "or is none"},
		"twice":           {with(`"gpus":[`, `"gpus":[{"index":1,"uuid":"GPU-a","name":"","pci":""},`), "there twice"},
		"no code":         {with(`xid-48`, ``), "or is none"},
		"no since":        {with(`"since_ms":1799999999995`, `"since_ms":0`), "or is none"},
		"vast":            {strings.Repeat(" ", bytesMax+1), "end of JSON"},
		"many GPUs":       {`{"version":1,"gpus":[` + strings.Repeat("{},", rememberedMax) + `{}]}`, "of 257 GPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := at(t, c.text)
			_, read := f.Read()
			for _, err := range []error{read, f.Change(replace(one("GPU-a")))} {
				if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), f.path) {
					t.Errorf("%v, want %v with %q", err, ErrState, c.says)
				}
			}
			if data, _ := os.ReadFile(f.path); string(data) != c.text {
				t.Error("it was changed")
			}
		})
	}
}

// A link in the place of the file is replaced, and one in the place of the lock is refused: neither leads to another's
// file.
func TestLinks(t *testing.T) {
	t.Parallel()
	f := at(t, text)
	victim := filepath.Join(t.TempDir(), "victim")
	for _, name := range []string{f.path, f.path + ".lock"} {
		_ = os.Remove(name)
		if err := os.Symlink(victim, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Change(replace(one("GPU-b"))); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a lock that is a link: %v", err)
	}
	if err := os.Remove(f.path + ".lock"); err != nil {
		t.Fatal(err)
	}
	if err := f.Change(replace(one("GPU-b"))); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(victim); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("somebody else's file was made: %v", err)
	}
	if all, err := f.Read(); err != nil || len(all) != 1 {
		t.Errorf("read %v, %v", all, err)
	}
}

// Where nothing can be written that is an error.
func TestUnwritable(t *testing.T) {
	t.Parallel()
	blocked := &File{filepath.Join(at(t, text).path, "below", "gpus.json"), lockTime} // a file is in the way, which stops also root
	if err := blocked.Change(replace(one("GPU-a"))); err == nil {
		t.Error("written below a file")
	}
}

// Many at once lose nothing, and who holds the lock for ever is not waited for for ever.
func TestLock(t *testing.T) {
	t.Parallel()
	f := at(t, "")
	const writers, rounds = 8, 5
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			own := &File{f.path, lockTime}
			for r := range rounds {
				for { // a loaded machine may let one wait longer than the lock's time
					err := own.Change(func(all []Kept) ([]Kept, bool) {
						return append(all, one(fmt.Sprintf("GPU-%d-%d", w, r))), true
					})
					if err == nil {
						break
					}
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	if got, err := f.Read(); err != nil || len(got) != writers*rounds {
		t.Errorf("%d GPUs, want %d: %v", len(got), writers*rounds, err)
	}
	lock := flock.New(f.path + ".lock")
	if err := lock.Lock(); err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	f.within = 20 * time.Millisecond
	if err := f.Change(replace()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("changed what somebody else has locked: %v", err)
	}
	if got, err := f.Read(); err != nil || len(got) != writers*rounds {
		t.Errorf("reading waits for the lock: %v", err)
	}
}

// The file is bounded.
func TestBounds(t *testing.T) {
	t.Parallel()
	var all []Kept
	for i := range 2 * rememberedMax {
		k := Kept{GPU: GPU{Index: i % 8, UUID: fmt.Sprintf("GPU-%d", i)}}
		for j := range 2 * findingsMax * max(0, 1-i) { // of the first alone
			k.Findings = append(k.Findings, Finding{Code: fmt.Sprintf("xid-%d", j), Reason: "x", SinceMS: 1})
		}
		if i > 0 && i%2 == 0 {
			k.Findings = []Finding{{Code: "a", Reason: "b", SinceMS: 1}}
		}
		all = append(all, k)
	}
	text := encode(all)
	got, err := decode(text)
	if err != nil || len(got) != rememberedMax || len(text) > bytesMax {
		t.Fatalf("%d GPUs, %d bytes: %v", len(got), len(text), err)
	}
	if f := got[0].Findings; got[0].UUID != "GPU-0" || len(f) != findingsMax {
		t.Errorf("%d findings of %s", len(f), got[0].UUID)
	}
}

// Any text is read or refused, and what is read can be written and read again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte(`{"version":1,"gpus":[]}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := decode(text)
		if err != nil {
			if !errors.Is(err, ErrState) {
				t.Fatal(err)
			}
			return
		}
		if _, err := decode(encode(all)); err != nil {
			t.Fatalf("%q is read and cannot be written: %v", text, err)
		}
	})
}

// The default place follows the convention of the system.
func TestDefault(t *testing.T) {
	for _, c := range []struct{ home, state, want string }{
		{"/home/a", "", "/home/a/.local/state/gradbus/gpus.json"},
		{"/home/a", "/var/s", "/var/s/gradbus/gpus.json"},
		{"/home/a", "relative", "/home/a/.local/state/gradbus/gpus.json"},
		{"", "", ""},
	} {
		t.Setenv("HOME", c.home)
		t.Setenv("XDG_STATE_HOME", c.state)
		got, err := StateFile("")
		if (err == nil) != (c.want != "") || err == nil && got.Path() != c.want {
			t.Errorf("HOME=%q XDG_STATE_HOME=%q: %+v, %v", c.home, c.state, got, err)
		}
	}
}
