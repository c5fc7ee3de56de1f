package disk

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	experimental "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
)

var _ experimental.FS = (*fileSystem)(nil)

// fileSystem is a disk as wazero mounts it.
type fileSystem struct {
	experimental.UnimplementedFS
	*Disk
}

// FS is the disk's file system.
func (d *Disk) FS() experimental.FS { return fileSystem{Disk: d} }

// works counts an operation.
func (d *Disk) works() bool {
	if d.left > 0 {
		d.left--
		return true
	}
	return d.left < 0
}

// find gives what is at a path, the folder that has it, and its name there.
func (d *Disk) find(at string) (n, folder *node, name string, no experimental.Errno) {
	if !d.works() {
		return nil, nil, "", experimental.EIO
	}
	n = d.root
	at = strings.TrimPrefix(path.Clean("/"+at), "/")
	if at == "" {
		return n, nil, "", 0
	}
	for _, name = range strings.Split(at, "/") {
		if n == nil {
			return nil, nil, "", experimental.ENOENT
		}
		if !n.dir {
			return nil, nil, "", experimental.ENOTDIR
		}
		folder = n
		n = folder.names[name]
	}
	return n, folder, name, 0
}

func (f fileSystem) OpenFile(at string, flag experimental.Oflag, _ fs.FileMode) (experimental.File,
	experimental.Errno) {
	n, folder, name, no := f.find(at)
	create := flag&experimental.O_CREAT != 0
	writes := flag&(experimental.O_RDWR|experimental.O_WRONLY) != 0
	switch {
	case no != 0:
		return nil, no
	case n == nil && !create:
		return nil, experimental.ENOENT
	case n == nil:
		n = f.newNode(false)
		folder.change(change{name: n})
	case create && flag&experimental.O_EXCL != 0:
		return nil, experimental.EEXIST
	case flag&experimental.O_DIRECTORY != 0 && !n.dir:
		return nil, experimental.ENOTDIR
	case n.dir && writes:
		return nil, experimental.EISDIR
	case flag&experimental.O_TRUNC != 0 && !n.dir:
		n.data, n.dirty = nil, true
	}
	return &file{disk: f.Disk, node: n, append: flag&experimental.O_APPEND != 0}, 0
}

func (f fileSystem) Stat(at string) (sys.Stat_t, experimental.Errno) {
	n, _, _, no := f.find(at)
	if no == 0 && n == nil {
		no = experimental.ENOENT
	}
	if no != 0 {
		return sys.Stat_t{}, no
	}
	return n.stat(), 0
}

func (f fileSystem) Lstat(at string) (sys.Stat_t, experimental.Errno) { return f.Stat(at) }

func (n *node) stat() sys.Stat_t {
	mode := fs.FileMode(0o600)
	if n.dir {
		mode = fs.ModeDir | 0o700
	}
	return sys.Stat_t{Ino: n.number, Mode: mode, Nlink: 1, Size: int64(len(n.data))}
}

func (f fileSystem) Mkdir(at string, _ fs.FileMode) experimental.Errno {
	n, folder, name, no := f.find(at)
	if no == 0 && n != nil {
		no = experimental.EEXIST
	}
	if no == 0 {
		folder.change(change{name: f.newNode(true)})
	}
	return no
}

func (f fileSystem) Rename(from, to string) experimental.Errno {
	n, folder, name, no := f.find(from)
	if no != 0 {
		return no
	}
	old, target, as, no := f.find(to)
	switch {
	case no != 0:
		return no
	case n == nil || folder == nil || target == nil:
		return experimental.ENOENT
	case old != nil && old.dir:
		return experimental.EISDIR
	case n == old:
	case folder == target:
		folder.change(change{name: nil, as: n})
	default:
		target.change(change{as: n})
		folder.change(change{name: nil})
	}
	return 0
}

func (f fileSystem) Rmdir(at string) experimental.Errno {
	n, folder, name, no := f.find(at)
	switch {
	case no != 0:
		return no
	case n == nil || folder == nil:
		return experimental.ENOENT
	case !n.dir:
		return experimental.ENOTDIR
	case len(n.names) > 0:
		return experimental.ENOTEMPTY
	}
	folder.change(change{name: nil})
	return 0
}

func (f fileSystem) Unlink(at string) experimental.Errno {
	n, folder, name, no := f.find(at)
	switch {
	case no != 0:
		return no
	case n == nil:
		return experimental.ENOENT
	case n.dir:
		return experimental.EISDIR
	}
	folder.change(change{name: nil})
	return 0
}

func (fileSystem) Readlink(string) (string, experimental.Errno)    { return "", experimental.EINVAL }
func (fileSystem) Utimens(string, int64, int64) experimental.Errno { return 0 }
func (fileSystem) Chmod(string, fs.FileMode) experimental.Errno    { return 0 }
func (*file) Utimens(int64, int64) experimental.Errno              { return 0 }
func (*file) Dev() (uint64, experimental.Errno)                    { return 1, 0 }
func (f *file) Ino() (sys.Inode, experimental.Errno)               { return f.node.number, 0 }
func (f *file) IsDir() (bool, experimental.Errno)                  { return f.node.dir, 0 }
func (f *file) IsAppend() bool                                     { return f.append }
func (f *file) SetAppend(enable bool) experimental.Errno           { f.append = enable; return 0 }
func (f *file) Stat() (sys.Stat_t, experimental.Errno)             { return f.node.stat(), 0 }
func (f *file) Datasync() experimental.Errno                       { return f.Sync() }
func (f *file) Close() experimental.Errno                          { return 0 }

// file is an open file. It is read and written from its beginning to its end, or anywhere by offset, without Seek.
type file struct {
	experimental.UnimplementedFile
	disk   *Disk
	node   *node
	at     int64
	append bool
	listed []experimental.Dirent // of a folder, not read yet; nil at the beginning
	lists  bool
}

// works counts an operation on the bytes of a file.
func (f *file) works() experimental.Errno {
	switch {
	case f.node.dir:
		return experimental.EISDIR
	case !f.disk.works():
		return experimental.EIO
	}
	return 0
}

func (f *file) Read(buf []byte) (int, experimental.Errno) {
	n, no := f.Pread(buf, f.at)
	f.at += int64(n)
	return n, no
}

func (f *file) Pread(buf []byte, at int64) (int, experimental.Errno) {
	no := f.works()
	if no == 0 && at < 0 {
		no = experimental.EINVAL
	}
	if no != 0 {
		return 0, no
	}
	return copy(buf, f.node.data[min(at, int64(len(f.node.data))):]), 0
}

func (f *file) Readdir(n int) ([]experimental.Dirent, experimental.Errno) {
	switch {
	case !f.node.dir:
		return nil, experimental.ENOTDIR
	case !f.disk.works():
		return nil, experimental.EIO
	}
	if !f.lists {
		f.lists, f.listed = true, nil
		for _, name := range slices.Sorted(maps.Keys(f.node.names)) {
			child := f.node.names[name]
			f.listed = append(f.listed, experimental.Dirent{Ino: child.number, Name: name, Type: child.stat().Mode.Type()})
		}
	}
	if n <= 0 || n > len(f.listed) {
		n = len(f.listed)
	}
	read := f.listed[:n]
	f.listed = f.listed[n:]
	return read, 0
}

func (f *file) Write(buf []byte) (int, experimental.Errno) {
	if f.append {
		f.at = int64(len(f.node.data))
	}
	n, no := f.Pwrite(buf, f.at)
	f.at += int64(n)
	return n, no
}

func (f *file) Pwrite(buf []byte, at int64) (int, experimental.Errno) {
	if no := f.works(); no != 0 {
		return 0, no
	}
	end := at + int64(len(buf))
	if more := end - int64(len(f.node.data)); more > 0 {
		if f.disk.used(f.disk.root)+more > f.disk.room {
			return 0, experimental.EIO // there is no number for a full disk here
		}
		f.node.resize(end)
	}
	f.node.dirty = true
	return copy(f.node.data[at:end], buf), 0
}

func (f *file) Truncate(size int64) experimental.Errno {
	no := f.works()
	if no == 0 {
		f.node.resize(size)
		f.node.dirty = true
	}
	return no
}

// resize cuts a file, or fills it up with zeros.
func (n *node) resize(size int64) {
	if more := size - int64(len(n.data)); more > 0 {
		n.data = append(n.data, make([]byte, more)...)
	} else {
		n.data = n.data[:size]
	}
}

func (f *file) Sync() experimental.Errno {
	if !f.disk.works() {
		return experimental.EIO
	}
	if !f.disk.lies {
		f.node.sync()
	}
	return 0
}
