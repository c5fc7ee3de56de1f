package disk

import (
	"io/fs"
	"testing"

	experimental "github.com/tetratelabs/wazero/experimental/sys"
)

const create = experimental.O_CREAT | experimental.O_WRONLY

// write writes a file, and gives it open.
func write(t *testing.T, d *Disk, at, text string) experimental.File {
	t.Helper()
	f, no := d.FS().OpenFile(at, create|experimental.O_TRUNC, 0o600)
	if no == 0 {
		_, no = f.Write([]byte(text))
	}
	if no != 0 {
		t.Fatalf("%s: %v", at, no)
	}
	return f
}

// read is what a file has; - where there is none.
func read(t *testing.T, d *Disk, at string) string {
	t.Helper()
	f, no := d.FS().OpenFile(at, experimental.O_RDONLY, 0)
	if no == experimental.ENOENT {
		return "-"
	}
	buf := make([]byte, 1<<16)
	n, no := f.Read(buf)
	if no != 0 {
		t.Fatalf("%s: %v", at, no)
	}
	return string(buf[:n])
}

func ok(t *testing.T, no experimental.Errno) {
	t.Helper()
	if no != 0 {
		t.Fatal(no)
	}
}

func syncAt(t *testing.T, d *Disk, at string) {
	t.Helper()
	f, no := d.FS().OpenFile(at, experimental.O_RDONLY, 0)
	ok(t, no)
	ok(t, f.Sync())
}

// What was brought to the disk outlasts every power cut; what was not is lost in some, and is there in others.
func TestPowerCuts(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(200) {
		d := New(seed)
		ok(t, d.FS().Mkdir("a", 0o700))
		syncAt(t, d, ".")
		ok(t, write(t, d, "a/kept", "old").Sync())
		syncAt(t, d, "a")
		ok(t, write(t, d, "a/.new", "new").Sync())
		ok(t, d.FS().Rename("a/.new", "a/kept"))
		write(t, d, "a/other", "not brought to it")
		d.CutPower()
		kept, temporary, other := read(t, d, "a/kept"), read(t, d, "a/.new"), read(t, d, "a/other")
		if kept == "new" && temporary != "-" || kept != "new" && kept != "old" {
			t.Fatalf("kept is %q, and the file that is renamed %q", kept, temporary)
		}
		seen[kept] = true
		seen["temporary "+temporary] = true
		switch {
		case other == "-", other == "", other == "not brought to it":
			seen["other "+other] = true
		default:
			seen["other torn"] = true
		}
		d.CutPower()
		if again := read(t, d, "a/kept"); again != kept {
			t.Fatalf("a second power cut makes %q of %q", again, kept)
		}
	}
	for _, want := range []string{"old", "new", "temporary -", "temporary new", "other -", "other ", "other torn",
		"other not brought to it"} {
		if !seen[want] {
			t.Errorf("never seen: %s", want)
		}
	}
}

// A sync that was a lie saves nothing.
func TestLies(t *testing.T) {
	lost := 0
	for seed := range uint64(50) {
		d := New(seed)
		d.Lie(true)
		ok(t, write(t, d, "a", "text").Sync())
		syncAt(t, d, ".")
		if d.CutPower(); read(t, d, "a") != "text" {
			lost++
		}
	}
	if lost == 0 || lost == 50 {
		t.Errorf("%d of 50 are lost: want some", lost)
	}
}

// A disk that fails changes nothing; a full one keeps what it has, and takes what there is room for.
func TestFailuresAndRoom(t *testing.T) {
	d := New(1)
	write(t, d, "a", "text")
	d.Fail(1)
	if _, no := d.FS().Stat("a"); no != 0 {
		t.Errorf("the operation before the failure: %v", no)
	}
	if no := d.FS().Unlink("a"); no != experimental.EIO {
		t.Errorf("a disk that fails: %v", no)
	}
	d.Fix()
	d.Fill(3)
	f := write(t, d, "b", "123")
	if _, no := f.Write([]byte("4")); no != experimental.EIO {
		t.Errorf("a full disk: %v", no)
	}
	d.Empty()
	if _, no := f.Write([]byte("4")); no != 0 {
		t.Errorf("a disk that has been emptied: %v", no)
	}
	if have := read(t, d, "a") + read(t, d, "b"); have != "text1234" {
		t.Errorf("the disk has %q", have)
	}
}

// A bit of one file is another then, and stays so.
func TestRot(t *testing.T) {
	d := New(1)
	ok(t, write(t, d, "a.bin", "text").Sync())
	ok(t, write(t, d, "a.json", "text").Sync())
	syncAt(t, d, ".")
	if at := d.Rot(".bin"); at != "a.bin" {
		t.Fatalf("%q rots", at)
	}
	rotten := read(t, d, "a.bin")
	if d.CutPower(); rotten == "text" || read(t, d, "a.bin") != rotten || read(t, d, "a.json") != "text" {
		t.Errorf("the files are %q and %q", read(t, d, "a.bin"), read(t, d, "a.json"))
	}
	if at := d.Rot(".none"); at != "" {
		t.Errorf("%q rots", at)
	}
}

// Folders and files are what programs expect of them.
func TestNames(t *testing.T) {
	d := New(1)
	files := d.FS()
	ok(t, files.Mkdir("a", 0o700))
	write(t, d, "a/b", "")
	for name, have := range map[string]experimental.Errno{
		"a folder that is there":   files.Mkdir("a", 0o700),
		"a folder below a file":    files.Mkdir("a/b/c", 0o700),
		"a folder of none":         files.Mkdir("x/c", 0o700),
		"a folder that has a file": files.Rmdir("a"),
		"a folder as a file":       files.Unlink("a"),
		"a file as a folder":       files.Rmdir("a/b"),
		"no file":                  files.Unlink("a/c"),
		"no file to rename":        files.Rename("a/c", "a/d"),
	} {
		want := map[string]experimental.Errno{
			"a folder that is there": experimental.EEXIST, "a folder below a file": experimental.ENOTDIR,
			"a folder of none": experimental.ENOENT, "a folder that has a file": experimental.ENOTEMPTY,
			"a folder as a file": experimental.EISDIR, "a file as a folder": experimental.ENOTDIR,
			"no file": experimental.ENOENT, "no file to rename": experimental.ENOENT}[name]
		if have != want {
			t.Errorf("%s: %v, want %v", name, have, want)
		}
	}
	if _, no := files.OpenFile("a/b", create|experimental.O_EXCL, 0); no != experimental.EEXIST {
		t.Errorf("a file that is there: %v", no)
	}
	folder, no := files.OpenFile("a", experimental.O_RDONLY, 0)
	ok(t, no)
	if entries, no := folder.Readdir(-1); no != 0 || len(entries) != 1 || entries[0].Name != "b" ||
		entries[0].Type != fs.FileMode(0) {
		t.Errorf("the folder has %v, %v", entries, no)
	}
}
