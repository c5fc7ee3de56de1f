package mnist

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// A data set of two images and one, byte for byte.
func writeSet(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range goodFiles() {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func goodFiles() map[string]string {
	return map[string]string{
		trainImages: "\x00\x00\x08\x03\x00\x00\x00\x02\x00\x00\x00\x1c\x00\x00\x00\x1c" + strings.Repeat("\x01", Pixels) +
			strings.Repeat("\xff", Pixels),
		trainLabels: "\x00\x00\x08\x01\x00\x00\x00\x02\x07\x09",
		testImages:  "\x00\x00\x08\x03\x00\x00\x00\x01\x00\x00\x00\x1c\x00\x00\x00\x1c" + strings.Repeat("\x00", Pixels),
		testLabels:  "\x00\x00\x08\x01\x00\x00\x00\x01\x00",
	}
}

func TestLoad(t *testing.T) {
	folder := writeSet(t)
	d, err := Load(DataMNIST, folder)
	if err != nil {
		t.Fatal(err)
	}
	if d.Train.Len() != 2 || d.Test.Len() != 1 || !slices.Equal(d.Train.Labels, []byte{7, 9}) || d.Train.Images[0] != 1 ||
		d.Train.Images[Pixels] != 255 || d.Source != folder || d.Synthetic {
		t.Errorf("read %d and %d images, labels %v", d.Train.Len(), d.Test.Len(), d.Train.Labels)
	}
	other, err := Load(dataFashion, folder)
	if err != nil || other.Digest != d.Digest || d.Digest == [32]byte{} {
		t.Errorf("digests %x and %x, err %v", d.Digest, other.Digest, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	good := goodFiles()
	for name, c := range map[string]struct{ file, text, says string }{
		"nothing": {trainImages, "", "0 bytes, too short for an idx file"},
		"packed": {trainImages, "\x1f\x8b\x08\x00" + strings.Repeat("x", 100),
			"begins with 1f8b0800, want 00000803: not unpacked, or another file"},
		"labels": {trainImages, good[trainLabels] + strings.Repeat("x", 100), "begins with 00000801, want 00000803"},
		"other size": {testImages, strings.Replace(good[testImages], "\x1c", "\x20", 1),
			"images of 32 x 28, want 28 x 28"},
		"cut":    {testImages, good[testImages][:500], "484 bytes of 1 images, want 784"},
		"longer": {testImages, good[testImages] + "x", "785 bytes of 1 images, want 784"},
		"none": {testImages, "\x00\x00\x08\x03\x00\x00\x00\x00\x00\x00\x00\x1c\x00\x00\x00\x1c",
			"0 images, want 1 to"},
		"enormous": {testImages, "\x00\x00\x08\x03\xff\xff\xff\xff\x00\x00\x00\x1c\x00\x00\x00\x1c",
			"4294967295 images, want 1 to"},
		"cut labels":      {trainLabels, good[trainLabels][:9], "1 bytes of 2 labels, want 2"},
		"short labels":    {trainLabels, good[trainLabels][:7], "7 bytes, too short"},
		"fewer labels":    {trainLabels, good[testLabels], "1 labels, want one for each of 2 images"},
		"label of eleven": {trainLabels, good[trainLabels][:9] + "\x0a", "label 10 of sample 1, want 0 to 9"},
	} {
		folder := writeSet(t)
		path := filepath.Join(folder, c.file)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(DataMNIST, folder)
		if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want it to name %s and say %q", name, err, path, c.says)
		}
	}
	folder := writeSet(t)
	if err := os.Remove(filepath.Join(folder, testLabels)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(DataMNIST, folder); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "make data") {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Load("emnist", ""); !errors.Is(err, ErrData) ||
		!strings.Contains(err.Error(), `"emnist": want one of mnist, fashion, synthetic`) {
		t.Errorf("unknown name: %v", err)
	}
	if _, err := Load(DataSynthetic, "x"); !errors.Is(err, ErrData) {
		t.Errorf("folder of what is generated: %v", err)
	}
}

// No file makes the readers panic, or hold more than the file has.
func FuzzReadIdx(f *testing.F) {
	for _, text := range goodFiles() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		size := int64(len(text))
		if images, err := readImages(strings.NewReader(string(text)), size); err == nil && int64(len(images)) != size-16 {
			t.Errorf("%d bytes of images from a file of %d", len(images), size)
		}
		labels, err := readLabels(strings.NewReader(string(text)), size)
		if err == nil && (int64(len(labels)) != size-8 || slices.Max(labels) >= Classes) {
			t.Errorf("%d labels from a file of %d bytes", len(labels), size)
		}
	})
}

// The synthetic set is the same for ever, and its halves are not.
func TestSynthetic(t *testing.T) {
	d := Synthetic(50, 20)
	if got, want := hex.EncodeToString(d.Digest[:8]), "064158a3c2be6c6c"; got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	if d.Train.Len() != 50 || d.Test.Len() != 20 || !d.Synthetic || d.Train.Labels[13] != 3 ||
		slices.Equal(d.Train.Images[:Pixels], d.Test.Images[:Pixels]) {
		t.Errorf("%d and %d samples, labels %v", d.Train.Len(), d.Test.Len(), d.Train.Labels)
	}
}

// Each epoch shows each sample once, in another order, whoever computes the lanes.
func TestFeedDealsEachSampleOnce(t *testing.T) {
	set := &Synthetic(103, 1).Train
	for _, lanes := range []int{1, 3, 4} {
		f, err := NewFeed(5, set, 8*lanes, lanes)
		if err != nil {
			t.Fatal(err)
		}
		var epochs [2][]int32
		for b := range 2 * f.PerEpoch() {
			for l := range lanes {
				samples := f.Samples(schema.Batch(b), lane.Lane(l))
				if len(samples) > 8 {
					t.Errorf("%d samples in batch %d lane %d, want at most 8", len(samples), b, l)
				}
				x, targets := f.Fill(schema.Batch(b), lane.Lane(l), nil, nil)
				if len(x) != len(samples)*Pixels || len(targets) != len(samples) {
					t.Fatalf("%d values and %d targets for %d samples", len(x), len(targets), len(samples))
				}
				for i, s := range samples {
					if targets[i] != int32(set.Labels[s]) || x[i*Pixels+5] != normalized()[set.Images[int(s)*Pixels+5]] {
						t.Errorf("sample %d is not what was given for it", s)
					}
				}
				epochs[b/f.PerEpoch()] = append(epochs[b/f.PerEpoch()], samples...)
			}
		}
		if slices.Equal(epochs[0], epochs[1]) {
			t.Errorf("%d lanes: both epochs in one order", lanes)
		}
		for _, e := range epochs {
			slices.Sort(e)
			if len(e) != 103 || len(slices.Compact(e)) != 103 {
				t.Errorf("%d lanes: an epoch of %d samples, want each of 103 once", lanes, len(e))
			}
		}
	}
}

// The normalisation that the model was designed for.
func TestNormalized(t *testing.T) {
	table := normalized()
	for value, want := range map[int]float32{0: -0.42421296, 255: 2.8214867} {
		if got := table[value]; got < want-1e-6 || got > want+1e-6 {
			t.Errorf("%d becomes %v, want %v", value, got, want)
		}
	}
}
