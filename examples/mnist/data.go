package mnist

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"
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
