package process

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"gradbus/schema"
)

// until waits for something that comes by itself.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func disk(device string, free int64) func(string) (schema.DiskReport, error) {
	return func(string) (schema.DiskReport, error) {
		return schema.DiskReport{FreeBytes: free, TotalBytes: 100, Device: device}, nil
	}
}

// Each file system is there once, by the folder that was named first; what is not there, or never answers, is not.
func TestDisksEachOnce(t *testing.T) {
	t.Parallel()
	broken := func(string) (schema.DiskReport, error) { return schema.DiskReport{}, errors.New("stale handle") }
	d := WatchDisks([]Folder{{Path: "/a", Use: "models", NeedBytes: 7, Ask: disk("8:1", 40)}, {Use: "nothing"},
		{Path: "/b", Use: "curves", Ask: disk("8:1", 40)},
		{Path: "/c", Use: "models", Ask: disk("8:2", 9)}, {Path: "/d", Ask: broken}, {Path: "/e", Ask: disk("", 5)},
		{Path: "/f", Ask: disk("", 6)}, {Path: "/g", Use: "models", NeedBytes: 2, Ask: disk("8:1", 40)}})
	defer d.Close()
	type one struct {
		path, use  string
		free, need int64
	}
	want := []one{{"/a", "models, curves", 40, 9}, {"/c", "models", 9, 0}, {"/e", "", 5, 0}, {"/f", "", 6, 0}}
	var got []one
	until(t, "all that answer, once", func() bool {
		got = nil
		for _, p := range d.Read() {
			if p.SampleMS == 0 || p.TotalBytes != 100 {
				t.Fatalf("%+v", p)
			}
			got = append(got, one{p.Path, p.Use, p.FreeBytes, p.NeedBytes})
		}
		return slices.Equal(got, want)
	})
}

// Where nothing is there yet, the folder that it will be in is asked.
func TestDisksUpwards(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skipf("file systems are asked of Linux alone; this is %s", runtime.GOOS)
	}
	dir := t.TempDir()
	want, err := Disk(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "not", "there", "yet")
	d := WatchDisks([]Folder{{Path: path}, {Path: dir}})
	defer d.Close()
	until(t, "one file system", func() bool {
		all := d.Read()
		return len(all) == 1 && all[0].Path == path && all[0].Device == want.Device && all[0].TotalBytes == want.TotalBytes
	})
}

// A file system that hangs stops nobody: neither who reads, nor who asks another, nor who ends.
func TestDisksHang(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked, hangs := 0, make(chan struct{})
	defer close(hangs)
	far := func(string) (schema.DiskReport, error) {
		mu.Lock()
		asked++
		n := asked
		mu.Unlock()
		if n > 1 {
			<-hangs
			return schema.DiskReport{}, fs.ErrClosed
		}
		return schema.DiskReport{FreeBytes: 3, TotalBytes: 100, Device: "0:52"}, nil
	}
	free := int64(100)
	near := func(string) (schema.DiskReport, error) {
		mu.Lock()
		defer mu.Unlock()
		free--
		return schema.DiskReport{FreeBytes: free, TotalBytes: 100, Device: "8:1"}, nil
	}
	d := watchDisks([]Folder{{Path: "/far", Ask: far}, {Path: "/near", Ask: near}}, time.Millisecond)
	until(t, "the second question, which hangs", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return asked == 2
	})
	first := d.Read()
	until(t, "the near one, asked again and again", func() bool {
		all := d.Read()
		return len(all) == 2 && all[1].FreeBytes < 80
	})
	if all := d.Read(); all[0].SampleMS != first[0].SampleMS || all[0].FreeBytes != 3 {
		t.Errorf("what hangs has %+v, and had %+v", all[0], first[0])
	}
	d.Close()
	mu.Lock()
	defer mu.Unlock()
	if asked != 2 {
		t.Errorf("what hangs was asked %d times: want no goroutine more", asked)
	}
}

// Nothing to watch is no watch.
func TestNoDisks(t *testing.T) {
	t.Parallel()
	d := WatchDisks([]Folder{{Use: "models"}})
	if d != nil || d.Read() != nil {
		t.Errorf("%+v reads %+v", d, d.Read())
	}
	d.Close()
}
