package mnist

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/png"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/internal/regular"
	"gradbus/internal/safetensors"
	"gradbus/nn"
)

func testEnv(t testing.TB) nn.Env {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	return nn.Env{Backend: b}
}

// tiny is a small module over images, trained on nothing.
func tiny(t testing.TB) *Saved {
	t.Helper()
	m, err := nn.Build([]byte(tinyConfig))
	if err != nil {
		t.Fatal(err)
	}
	params, err := nn.Initial(m, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &Saved{Module: m, Data: dataFashion, Params: byName{"2.weight": params[0], "2.bias": params[1]}}
}

type byName map[string][]float32

func (p byName) Param(name string) []float32 { return p[name] }

const tinyConfig = `[{"max_pool2d":{"kernel":4}},{"flatten":{}},{"linear":{"in":49,"out":10}},{"log_softmax":{}}]`

func TestPredict(t *testing.T) {
	all, err := tiny(t).Predict(testEnv(t), make([]byte, Pixels))
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, p := range all {
		sum += p.Probability
		if i > 0 && p.Probability > all[i-1].Probability {
			t.Errorf("not in order: %v", all)
		}
	}
	if len(all) != Classes || math.Abs(sum-1) > 1e-5 || all[0].Name != names(dataFashion)[all[0].Class] {
		t.Errorf("predictions %v", all)
	}
	if _, err := tiny(t).Predict(testEnv(t), nil); !errors.Is(err, nn.ErrShape) {
		t.Errorf("no image: %v", err)
	}
}

// Files of before the manifest are read as ever.
func TestLoadEarlierModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	p := tiny(t).Params.(byName)
	if err := safetensors.Save(path, map[string]string{"format": earlierFormat, "module": tinyConfig, "data": dataFashion},
		[]safetensors.Tensor{{Name: "2.weight", Shape: []int{10, 49}, Values: p["2.weight"]},
			{Name: "2.bias", Shape: []int{10}, Values: p["2.bias"]}}); err != nil {
		t.Fatal(err)
	}
	s, err := LoadModel(path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Data != dataFashion || s.Param("2.bias")[3] != p["2.bias"][3] {
		t.Errorf("read back %+v", s)
	}
}

// drawPNG is a picture of a background with a rectangle of ink.
func drawPNG(t *testing.T, width, height int, background, ink color.Color, r image.Rectangle) []byte {
	t.Helper()
	m := image.NewNRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			m.Set(x, y, background)
			if image.Pt(x, y).In(r) {
				m.Set(x, y, ink)
			}
		}
	}
	var out bytes.Buffer
	if err := png.Encode(&out, m); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestDecodePicture(t *testing.T) {
	white, black, clear := color.Gray{255}, color.Gray{0}, color.NRGBA{}
	// 28 x 28 is taken as it is, dark ink inverted.
	for name, c := range map[string][2]color.Color{"white on black": {black, white}, "black on white": {white, black},
		"black on nothing": {clear, black}} {
		pixels, err := decodePicture(bytes.NewReader(drawPNG(t, Side, Side, c[0], c[1], image.Rect(3, 4, 5, 9))))
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range pixels {
			want := byte(0)
			if image.Pt(i%Side, i/Side).In(image.Rect(3, 4, 5, 9)) {
				want = 255
			}
			if v != want {
				t.Fatalf("%s: pixel %d, %d is %d, want %d", name, i%Side, i/Side, v, want)
			}
		}
	}
	// 100 x 200 of ink become 10 x 20 in the middle.
	pixels, err := decodePicture(bytes.NewReader(drawPNG(t, 300, 400, white, black, image.Rect(150, 170, 250, 370))))
	if err != nil {
		t.Fatal(err)
	}
	box := image.Rectangle{}
	for i, v := range pixels {
		if v == 255 {
			box = box.Union(image.Rect(i%Side, i/Side, i%Side+1, i/Side+1))
		}
	}
	if box.Dx() != 10 || box.Dy() != 20 || box.Min.X < 9 || box.Min.X > 10 || box.Min.Y < 4 || box.Min.Y > 5 {
		t.Errorf("the ink is at %v, want 10 x 20 in the middle", box)
	}
}

func TestReadPictureRefuses(t *testing.T) {
	folder := t.TempDir()
	white, black := color.Gray{255}, color.Gray{0}
	whole := drawPNG(t, Side, Side, white, black, image.Rect(3, 4, 5, 9))
	for name, c := range map[string]struct {
		text []byte
		says string
	}{
		"empty": {nil, "not a usable picture"},
		"text":  {[]byte("hello, this is text"), "png: invalid format"},
		"cut":   {whole[:len(whole)-20], "not a usable picture"},
		"blank": {drawPNG(t, 30, 30, white, black, image.Rectangle{}), "it has no ink"},
		"larger": {drawPNG(t, pictureSideMax+1, 1, white, black, image.Rectangle{}),
			"4097 x 1 pixels, want at most 4096 x 4096"},
	} {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, c.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadPicture(path); !errors.Is(err, ErrPicture) || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.says)
		}
	}
	if _, err := ReadPicture(filepath.Join(folder, "none.png")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := ReadPicture(folder); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("a folder: %v", err)
	}
}
