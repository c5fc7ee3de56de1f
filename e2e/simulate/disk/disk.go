// Package disk is disks of simulated machines: file systems in memory that lose in a power cut what was not brought to
// them, fail, fill up, lie and rot. What is drawn follows from their seed and from what was done before, so that the
// same program meets the same disk. They are mounted by wazero below a program for WASI.
//
//   - disk.go is what becomes of a disk, and what is on it.
//   - fs.go is its file system, as wazero wants it.
package disk

import (
	"bytes"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"slices"
)

// Disk is one disk. Its methods are for one goroutine.
type Disk struct {
	r     *rand.Rand
	root  *node
	nodes uint64
	left  int   // operations until it fails; below 0: it works
	room  int64 // bytes that its files may have
	lies  bool
}

// New makes an empty disk.
func New(seed uint64) *Disk {
	d := &Disk{r: rand.New(rand.NewPCG(seed, 3)), left: -1, room: math.MaxInt64}
	d.root = d.newNode(true)
	return d
}

// node is a file or a folder.
type node struct {
	number uint64
	dir    bool

	data  []byte // of a file
	saved []byte // what a power cut leaves of it at least
	dirty bool   // data is not saved

	names   map[string]*node // of a folder
	kept    map[string]*node // those that a power cut leaves
	changes []change         // that lead from kept to names
}

// change is of names of a folder, which happen together or not at all: none has a nil node.
type change map[string]*node

func (d *Disk) newNode(dir bool) *node {
	d.nodes++
	n := &node{number: d.nodes, dir: dir}
	if dir {
		n.names, n.kept = map[string]*node{}, map[string]*node{}
	}
	return n
}

func (n *node) change(c change) {
	c.on(n.names)
	n.changes = append(n.changes, c)
}

func (c change) on(names map[string]*node) {
	for name, n := range c {
		if n == nil {
			delete(names, name)
		} else {
			names[name] = n
		}
	}
}

// sync brings a file, or the names in a folder, to the disk.
func (n *node) sync() {
	if n.dir {
		n.kept, n.changes = maps.Clone(n.names), nil
	} else if n.dirty {
		n.saved, n.dirty = bytes.Clone(n.data), false
	}
}

// Fail has every operation after so many fail, and change nothing, until the disk is repaired.
func (d *Disk) Fail(after int) { d.left = after }

// Failed reports whether it has come to fail.
func (d *Disk) Failed() bool { return d.left == 0 }

// Fix has the disk work again.
func (d *Disk) Fix() { d.left = -1 }

// Fill leaves so many bytes of room.
func (d *Disk) Fill(room int64) { d.room = d.used(d.root) + room }

// Empty leaves room without end.
func (d *Disk) Empty() { d.room = math.MaxInt64 }

// Lie has the disk say that it has brought to itself what it has not, or do so no more.
func (d *Disk) Lie(lies bool) { d.lies = lies }

func (d *Disk) used(n *node) int64 {
	sum := int64(len(n.data))
	for _, child := range n.names {
		sum += d.used(child)
	}
	return sum
}

// CutPower leaves of a disk what was brought to it, and any part of what was not. Changes of names in one folder
// outlast it up to some one of them, as in a journal; of a file any sectors may be missing, or its end.
func (d *Disk) CutPower() { d.cut(d.root) }

const sector = 512

func (d *Disk) cut(n *node) {
	if n.dir {
		for _, c := range n.changes[:d.r.IntN(len(n.changes)+1)] {
			c.on(n.kept)
		}
		n.names, n.changes = maps.Clone(n.kept), nil
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			d.cut(n.names[name])
		}
		return
	}
	if n.dirty {
		switch d.r.IntN(3) {
		case 0:
			n.data = bytes.Clone(n.saved)
		case 1:
			n.data = n.data[:d.r.IntN(len(n.data)+1)]
		default:
			for at := 0; at < len(n.data); at += sector {
				if d.r.IntN(2) == 0 {
					lost := n.data[at:min(at+sector, len(n.data))]
					clear(lost[copy(lost, n.saved[min(at, len(n.saved)):]):])
				}
			}
		}
		n.sync()
	}
}

// Rot changes a bit of a file whose path has a suffix, and says which file; "" where there is none.
func (d *Disk) Rot(suffix string) string {
	var paths []string
	files := map[string]*node{}
	var walk func(string, *node)
	walk = func(at string, n *node) {
		for name, child := range n.names {
			if p := path.Join(at, name); child.dir {
				walk(p, child)
			} else if ok, _ := path.Match("*"+suffix, name); ok && len(child.data) > 0 {
				paths, files[p] = append(paths, p), child
			}
		}
	}
	walk("", d.root)
	if len(paths) == 0 {
		return ""
	}
	slices.Sort(paths)
	p := paths[d.r.IntN(len(paths))]
	n := files[p]
	at, bit := d.r.IntN(len(n.data)), byte(1)<<d.r.IntN(8)
	n.data[at] ^= bit
	if !n.dirty {
		n.saved = bytes.Clone(n.data)
	}
	return p
}
