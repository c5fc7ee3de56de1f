package mnist

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"

	"gradbus/internal/regular"
)

// ErrPicture says that a file is no picture that a prediction can be made from; the text says why.
var ErrPicture = errors.New("not a usable picture")

// Limits of a picture.
const (
	pictureSideMax  = 4096
	pictureBytesMax = 64 << 20
)

// ReadPicture makes the input of a model from a PNG file: 28 x 28 pixels, 255 the ink. A picture of that size is taken
// as it is. Any other is made like MNIST's: cut to its ink, scaled so that the longer side has 20 pixels, and placed
// with the centre of its ink in the middle. Where the edge is brighter than half, ink is dark, and the picture is
// inverted; transparent is white. It fails with ErrPicture where the file is no PNG, is larger than 4096 x 4096 or 64
// MiB, or has no ink, and where it cannot be opened (fs.ErrNotExist).
//
//	pixels, err := mnist.ReadPicture("seven.png")
func ReadPicture(path string) ([]byte, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > pictureBytesMax {
		return nil, fmt.Errorf("%s: %w: want a PNG file of at most %d bytes", path, ErrPicture, pictureBytesMax)
	}
	pixels, err := decodePicture(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return pixels, nil
}

func decodePicture(r io.ReadSeeker) ([]byte, error) {
	config, err := png.DecodeConfig(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPicture, err)
	}
	if config.Width > pictureSideMax || config.Height > pictureSideMax {
		return nil, fmt.Errorf("%w: %d x %d pixels, want at most %d x %d", ErrPicture, config.Width, config.Height,
			pictureSideMax, pictureSideMax)
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	decoded, err := png.Decode(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPicture, err)
	}
	p := grey(decoded)
	if p.edge() > 127 {
		for i, v := range p.values {
			p.values[i] = 255 - v
		}
	}
	ink := p.ink()
	if ink.Empty() {
		return nil, fmt.Errorf("%w: it has no ink: all pixels are alike", ErrPicture)
	}
	if p.width == Side && p.height == Side {
		return p.values, nil
	}
	return p.placed(ink), nil
}

// picture is a grey picture, row by row.
type picture struct {
	width, height int
	values        []byte
}

// grey puts a picture on white and takes its brightness.
func grey(from image.Image) picture {
	b := from.Bounds()
	p := picture{b.Dx(), b.Dy(), make([]byte, 0, b.Dx()*b.Dy())}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, bl, a := from.At(x, y).RGBA() // premultiplied by a
			white := 0xffff - a
			v := color.GrayModel.Convert(color.RGBA64{R: uint16(r + white), G: uint16(g + white),
				B: uint16(bl + white), A: 0xffff})
			p.values = append(p.values, v.(color.Gray).Y)
		}
	}
	return p
}

func (p *picture) at(x, y int) int { return int(p.values[y*p.width+x]) }

// edge is the mean of the outermost pixels.
func (p *picture) edge() int {
	sum, n := 0, 0
	for x := range p.width {
		sum, n = sum+p.at(x, 0)+p.at(x, p.height-1), n+2
	}
	for y := range p.height {
		sum, n = sum+p.at(0, y)+p.at(p.width-1, y), n+2
	}
	return sum / n
}

// ink is the smallest rectangle around all pixels that are brighter than the darkest by an eighth of the range or more.
func (p *picture) ink() image.Rectangle {
	low, high := 255, 0
	for _, v := range p.values {
		low, high = min(low, int(v)), max(high, int(v))
	}
	var r image.Rectangle
	if high-low < 16 {
		return r
	}
	for i, v := range p.values {
		if int(v)-low > (high-low)/8 {
			x, y := i%p.width, i/p.width
			r = r.Union(image.Rect(x, y, x+1, y+1))
		}
	}
	return r
}

const inkSide = 20 // of the longer side of the ink in MNIST's images

// placed scales the ink by the mean over areas and centres it by its weight.
func (p *picture) placed(ink image.Rectangle) []byte {
	longer := max(ink.Dx(), ink.Dy())
	width, height := max(1, ink.Dx()*inkSide/longer), max(1, ink.Dy()*inkSide/longer)
	small := picture{width, height, make([]byte, width*height)}
	total, sumX, sumY := 0, 0, 0
	for y := range height {
		for x := range width {
			v := p.mean(ink.Min.X+x*ink.Dx()/width, ink.Min.Y+y*ink.Dy()/height,
				ink.Min.X+(x+1)*ink.Dx()/width, ink.Min.Y+(y+1)*ink.Dy()/height)
			small.values[y*width+x] = byte(v)
			total, sumX, sumY = total+v, sumX+v*x, sumY+v*y
		}
	}
	total = max(total, 1)
	left := min(max(Side/2-sumX/total, 0), Side-width)
	top := min(max(Side/2-sumY/total, 0), Side-height)
	out := make([]byte, Pixels)
	for y := range height {
		copy(out[(top+y)*Side+left:], small.values[y*width:(y+1)*width])
	}
	return out
}

// mean is the mean of [x0, x1) x [y0, y1), of one pixel where that is empty.
func (p *picture) mean(x0, y0, x1, y1 int) int {
	x1, y1 = max(x1, x0+1), max(y1, y0+1)
	sum := 0
	for y := y0; y < y1; y++ {
		for x := x0; x < x1; x++ {
			sum += p.at(x, y)
		}
	}
	return sum / ((x1 - x0) * (y1 - y0))
}
