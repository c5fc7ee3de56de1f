package simulate

// What a simulated program has become of a disk.
const (
	diskFails  = iota // after so many operations
	diskWorks         // again, and has room, and tells the truth
	diskLoses         // power, and what was not brought to it
	diskIsFull        // when so many more bytes are written
	diskLies          // about what was brought to it
	diskRots          // by a bit, in a file of any kind
	diskAsks          // nothing: control gives 1 if it has come to fail, else 0
)

// diskNames are the ids of ps with a disk.
var diskNames = []string{"a", "b"}

// diskOf is the folder that is a disk of its own, and its number.
func diskOf(id string) (string, uint32) {
	for i, name := range diskNames {
		if name == id {
			return "/disk/" + id, uint32(i)
		}
	}
	panic("no disk for " + id)
}
