package mnist

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"gradbus/internal/regular"
)

// Side is the height and the width of an image, Pixels its values, Classes how many labels there are.
const (
	Side    = 28
	Pixels  = Side * Side
	Classes = 10
)

// ErrData says that files are no data set of this kind; the text names the file, what it has and what would be right.
var ErrData = errors.New("bad data set")

// samplesMax bounds what a file may claim to have.
const samplesMax = 1 << 20

// The idx format: two zero bytes, the type of the values (8 is unsigned bytes), the number of dimensions, each of them
// as a big-endian 32-bit number, and the values.
//
// Source: Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten digits.
const (
	magicImages = 0x00000803
	magicLabels = 0x00000801
)

// Files of a data set.
const (
	trainImages, trainLabels = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
	testImages, testLabels   = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
)

// readSet reads one half of a data set from a folder.
func readSet(folder, images, labels string) (s Set, err error) {
	err = readFile(filepath.Join(folder, images), func(r io.Reader, size int64) (err error) {
		s.Images, err = readImages(r, size)
		return err
	})
	if err != nil {
		return Set{}, err
	}
	path := filepath.Join(folder, labels)
	err = readFile(path, func(r io.Reader, size int64) (err error) {
		s.Labels, err = readLabels(r, size)
		return err
	})
	if err == nil && len(s.Labels) != s.Len() {
		err = fmt.Errorf("%s: %w: %d labels, want one for each of %d images", path, ErrData, len(s.Labels), s.Len())
	}
	if err != nil {
		return Set{}, err
	}
	return s, nil
}

func readFile(path string, read func(r io.Reader, size int64) error) error {
	f, err := regular.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: `make data` fetches it, --data-dir names another folder", path, fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := read(bufio.NewReader(f), info.Size()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// readImages reads n images of 28 x 28 from a file of so many bytes. Nothing is allocated before the sizes agree.
func readImages(r io.Reader, size int64) ([]byte, error) {
	head, err := readHead(r, size, magicImages, 4)
	if err != nil {
		return nil, err
	}
	if head[2] != Side || head[3] != Side {
		return nil, fmt.Errorf("%w: images of %d x %d, want %d x %d", ErrData, head[2], head[3], Side, Side)
	}
	return readValues(r, size-16, int64(head[1]), Pixels, "images")
}

// readLabels reads labels, each below Classes.
func readLabels(r io.Reader, size int64) ([]byte, error) {
	head, err := readHead(r, size, magicLabels, 2)
	if err != nil {
		return nil, err
	}
	labels, err := readValues(r, size-8, int64(head[1]), 1, "labels")
	if err != nil {
		return nil, err
	}
	for i, l := range labels {
		if l >= Classes {
			return nil, fmt.Errorf("%w: label %d of sample %d, want 0 to %d", ErrData, l, i, Classes-1)
		}
	}
	return labels, nil
}

// readHead reads the magic number and the dimensions, words numbers in all.
func readHead(r io.Reader, size int64, magic uint32, words int) ([]uint32, error) {
	if size < int64(4*words) {
		return nil, fmt.Errorf("%w: %d bytes, too short for an idx file", ErrData, size)
	}
	bytes := make([]byte, 4*words)
	if _, err := io.ReadFull(r, bytes); err != nil {
		return nil, err
	}
	head := make([]uint32, words)
	for i := range head {
		head[i] = binary.BigEndian.Uint32(bytes[4*i:])
	}
	if head[0] != magic {
		return nil, fmt.Errorf("%w: begins with %08x, want %08x: not unpacked, or another file", ErrData, head[0], magic)
	}
	return head, nil
}

func readValues(r io.Reader, size, n, each int64, what string) ([]byte, error) {
	switch {
	case n < 1 || n > samplesMax:
		return nil, fmt.Errorf("%w: %d %s, want 1 to %d", ErrData, n, what, samplesMax)
	case size != n*each:
		return nil, fmt.Errorf("%w: %d bytes of %d %s, want %d", ErrData, size, n, what, n*each)
	}
	values := make([]byte, size)
	if _, err := io.ReadFull(r, values); err != nil {
		return nil, err
	}
	return values, nil
}
