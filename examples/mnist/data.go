package mnist

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"gradbus/internal/regular"
	"gradbus/lane"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// Set is images with their labels.
type Set struct {
	Images []byte // [n, 28, 28], 0 is the background, 255 the ink
	Labels []byte // [n], each below Classes
}

// Len is the number of images.
func (s *Set) Len() int { return len(s.Images) / Pixels }

// Data is a data set.
type Data struct {
	Source      string // where it is from, for people
	Synthetic   bool   // generated: its accuracy says nothing about real images
	Train, Test Set
	Digest      [32]byte // SHA-256 over images and labels of Train, then of Test
}

// Names of data sets.
const (
	DataMNIST     = "mnist"
	dataFashion   = "fashion"
	DataSynthetic = "synthetic"
)

// DataNames are the data sets that Load knows.
func DataNames() []string { return []string{DataMNIST, dataFashion, DataSynthetic} }

// How many images the synthetic data set has by default.
const (
	syntheticTrain = 6000
	syntheticTest  = 1000
)

// Load gives a data set by name: mnist and fashion from the four idx files in folder (empty is data/NAME), synthetic
// without any. It fails with ErrData for an unknown name or files that are none of it, and with fs.ErrNotExist where
// there are none.
//
//	data, err := mnist.Load("mnist", "")
func Load(name, folder string) (*Data, error) {
	switch name {
	case DataSynthetic:
		if folder != "" {
			return nil, fmt.Errorf("%w: folder %q for %s: want none, it is generated", ErrData, folder, name)
		}
		return Synthetic(syntheticTrain, syntheticTest), nil
	case DataMNIST, dataFashion:
	default:
		return nil, fmt.Errorf("%w: %q: want one of %s", ErrData, name, strings.Join(DataNames(), ", "))
	}
	if folder == "" {
		folder = filepath.Join("data", name)
	}
	d := &Data{Source: folder}
	var err error
	if d.Train, err = readSet(folder, trainImages, trainLabels); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	if d.Test, err = readSet(folder, testImages, testLabels); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	d.seal()
	return d, nil
}

// seal sets the digest.
func (d *Data) seal() {
	h := sha256.New()
	for _, part := range [][]byte{d.Train.Images, d.Train.Labels, d.Test.Images, d.Test.Labels} {
		h.Write(part)
	}
	h.Sum(d.Digest[:0])
}

// normalized is each pixel as the model takes it: (x/255 - 0.1307) / 0.3081, the mean and deviation of MNIST's pixels,
// in float32 step by step.
func normalized() *[256]float32 {
	var table [256]float32
	for i := range table {
		x := float32(i) / 255
		x -= 0.1307
		table[i] = x / 0.3081
	}
	return &table
}

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

// Synthetic generates a data set that can be learned in a few hundred batches: each class is a drawing of four blobs
// whose places follow from the class alone; a sample is that drawing moved by up to two pixels each way, in its own
// strength, with noise over it. Classes take turns. It is the same everywhere and for ever: blobs and samples are
// counter-based, training and test samples being distinct.
func Synthetic(train, test int) *Data {
	var drawings [Classes][]int
	for c := range drawings {
		drawings[c] = drawing(c)
	}
	d := &Data{Source: DataSynthetic, Synthetic: true, Train: generate(&drawings, train, 0),
		Test: generate(&drawings, test, 1)}
	d.seal()
	return d
}

const (
	syntheticSeed = 1
	blobs         = 4
	radius2       = 16 // of a blob, squared
	shiftMax      = 2
	noise         = 64 // of 255, at most
)

// drawing gives [28, 28] values from 0 to 255: round blobs with their centres 6 pixels or more from the edge. Whole
// numbers only, so that every processor draws the same.
func drawing(class int) []int {
	r := philox.New(syntheticSeed, "drawing", uint64(class), 0, 0)
	image := make([]int, Pixels)
	for range blobs {
		y, x := 6+int(r.Below(16)), 6+int(r.Below(16))
		for at := range image {
			dy, dx := at/Side-y, at%Side-x
			image[at] = max(image[at], 255*(radius2-dy*dy-dx*dx)/radius2)
		}
	}
	return image
}

// generate draws n samples of half 0 (training) or 1 (test).
func generate(drawings *[Classes][]int, n int, half uint64) Set {
	s := Set{Images: make([]byte, n*Pixels), Labels: make([]byte, n)}
	for i := range n {
		r := philox.New(syntheticSeed, "sample", half, uint64(i), 0)
		class := i % Classes
		down, right := int(r.Below(2*shiftMax+1))-shiftMax, int(r.Below(2*shiftMax+1))-shiftMax
		strength := 60 + int(r.Below(41)) // of 100
		s.Labels[i] = byte(class)
		image := s.Images[i*Pixels:][:Pixels]
		for at := range image {
			y, x := at/Side-down, at%Side-right
			value := int(r.Below(noise))
			if y >= 0 && y < Side && x >= 0 && x < Side {
				value = max(value, strength*drawings[class][y*Side+x]/100)
			}
			image[at] = byte(value)
		}
	}
	return s
}

// Feed gives the training samples of batches and lanes as package shuffle orders them, in batches of at most Batch
// samples. It is not safe for concurrent use.
type Feed struct {
	set      *Set
	shuffler *shuffle.Shuffler
	pixels   *[256]float32
}

// NewFeed shuffles set for lanes, at most batch samples to all lanes of a batch together. It fails where shuffle.New
// does.
func NewFeed(seed uint64, set *Set, batch, lanes int) (*Feed, error) {
	shuffler, err := shuffle.New(seed, set.Len(), batch, lanes)
	if err != nil {
		return nil, err
	}
	return &Feed{set: set, shuffler: shuffler, pixels: normalized()}, nil
}

// PerEpoch is the number of batches in an epoch.
func (f *Feed) PerEpoch() int { return f.shuffler.PerEpoch() }

// Samples are the training samples of a lane of a batch, as places in the set. The slice is the feed's and stays as it
// is.
func (f *Feed) Samples(b schema.Batch, l lane.Lane) []int32 { return f.shuffler.Samples(b, l) }

// Fill appends the images [n, 1, 28, 28] of a lane of a batch to x, normalised, and their labels to targets.
//
//	x, targets = feed.Fill(b, l, x[:0], targets[:0])
func (f *Feed) Fill(b schema.Batch, l lane.Lane, x []float32, targets []int32) ([]float32, []int32) {
	for _, i := range f.Samples(b, l) {
		x = appendImage(x, f.set.Images[int(i)*Pixels:][:Pixels], f.pixels)
		targets = append(targets, int32(f.set.Labels[i]))
	}
	return x, targets
}

func appendImage(x []float32, image []byte, pixels *[256]float32) []float32 {
	for _, p := range image {
		x = append(x, pixels[p])
	}
	return x
}

// Scan gives all samples of a set in order, normalised, at most batch at a time: x [n, 1, 28, 28] and targets [n] are
// valid until yield returns. An error of yield ends the scan and is returned.
func Scan(set *Set, batch int, yield func(x []float32, targets []int32) error) error {
	pixels := normalized()
	var x []float32
	var targets []int32
	for lo := 0; lo < set.Len(); lo += batch {
		x, targets = x[:0], targets[:0]
		for i := lo; i < min(lo+batch, set.Len()); i++ {
			x = appendImage(x, set.Images[i*Pixels:][:Pixels], pixels)
			targets = append(targets, int32(set.Labels[i]))
		}
		if err := yield(x, targets); err != nil {
			return err
		}
	}
	return nil
}
