package page

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"
)

// small writes a picture of a screen with the 256 colours that matter most in it, which is all that the eye can tell,
// in a third of the bytes. It is the same for the same picture.
func small(data []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	bounds := from.Bounds()
	counts := map[color.RGBA]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(from, x, y)]++
		}
	}
	palette := choose(counts)
	nearest := make(map[color.RGBA]uint8, len(counts))
	for c := range counts {
		nearest[c] = uint8(palette.Index(c))
	}
	to := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			to.SetColorIndex(x, y, nearest[at(from, x, y)])
		}
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to)
	return out.Bytes(), err
}

func at(from image.Image, x, y int) color.RGBA {
	return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)
}

// choose takes the most frequent colours that are not too near to one that was taken; nearer ones where there is room.
func choose(counts map[color.RGBA]int) color.Palette {
	all := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	var chosen color.Palette
	for apart := 16; apart >= 1 && len(chosen) < 256; apart /= 2 {
		for _, c := range all {
			if len(chosen) == 256 {
				break
			}
			if !slices.ContainsFunc(chosen, func(o color.Color) bool { return distance(c, o.(color.RGBA)) < apart }) {
				chosen = append(chosen, c)
			}
		}
	}
	return chosen
}

func distance(a, b color.RGBA) int {
	abs := func(a, b uint8) int { return max(int(a)-int(b), int(b)-int(a)) }
	return max(abs(a.R, b.R), abs(a.G, b.G), abs(a.B, b.B))
}
