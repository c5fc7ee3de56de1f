package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func TestUpdate(t *testing.T) {
	for text, want := range map[string]uint32{"": 0, "123456789": 0xe3069283, "a": 0xc1d04330} {
		if got := Update(0, []byte(text)); got != want {
			t.Errorf("%q: %#x, want %#x", text, got, want)
		}
	}
	// RFC 3720, B.4: 32 bytes of zeros, of ones, and counting up; folding leaves them alone, so they are repeated here to
	// a length that it does not, and compared with what the standard library says.
	for name, b := range map[string]byte{"zeros": 0, "ones": 0xff} {
		data := make([]byte, 4096)
		for i := range data {
			data[i] = b
		}
		if got, want := Update(0, data), crc32.Checksum(data, castagnoli); got != want {
			t.Errorf("%s: %#x, want %#x", name, got, want)
		}
	}
}

// Every length and alignment around the borders of blocks and strides, and any sum to go on from.
func TestUpdateAgainstStandard(t *testing.T) {
	if !folds {
		t.Log("this processor does not fold: only the standard library is tested, against itself")
	}
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 1<<16)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	check := func(sum uint32, data []byte) {
		t.Helper()
		if got, want := Update(sum, data), crc32.Update(sum, castagnoli, data); got != want {
			t.Fatalf("%d bytes from %#x: %#x, want %#x", len(data), sum, got, want)
		}
	}
	for n := 1980; n < 2800; n++ {
		for _, from := range []int{0, 1, 8, 63, 64} {
			check(random.Uint32(), data[from:from+n])
		}
	}
	for range 2000 {
		from := random.IntN(len(data))
		check(random.Uint32(), data[from:from+random.IntN(len(data)-from+1)])
	}
}

// A bit that is turned anywhere changes the sum.
func TestUpdateSeesEveryBit(t *testing.T) {
	data := make([]byte, 2500)
	want := Update(0, data)
	for bit := range 8 * len(data) {
		data[bit/8] ^= 1 << (bit % 8)
		if Update(0, data) == want {
			t.Fatalf("bit %d is not seen", bit)
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), make([]byte, 4000), 3)
	f.Fuzz(func(t *testing.T, sum uint32, data []byte, from int) {
		if from < 0 || from > len(data) {
			from = 0
		}
		if got, want := Update(sum, data[from:]), crc32.Update(sum, castagnoli, data[from:]); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1 << 10, 64 << 10, 256 << 10} {
		data := make([]byte, n)
		for name, update := range map[string]func(uint32, []byte) uint32{
			"ours": Update, "standard": func(sum uint32, data []byte) uint32 { return crc32.Update(sum, castagnoli, data) }} {
			b.Run(fmt.Sprintf("bytes=%d/%s", n, name), func(b *testing.B) {
				b.SetBytes(int64(n))
				sum := uint32(0)
				for b.Loop() {
					sum = update(sum, data)
				}
			})
		}
	}
}
