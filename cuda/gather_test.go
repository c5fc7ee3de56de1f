package cuda

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

func TestGather(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		out := make([]float32, 6)
		table := Float32s([]float32{1, 2, 10, 20, 100, 200})
		must(t, b.Gather(Gather{Dim: 2, Rows: table, IDs: Int64s([]int64{2, 0, 2}), Out: Float32s(out)}))
		wantFloats(t, "rows", out, []float32{100, 200, 1, 2, 100, 200})
		must(t, b.Gather(Gather{Dim: 2, Rows: Float32s(out)}))
	})
}

// Rows of every length, wherever they begin, come as they are, by ids of both types, and nothing beside them is
// written.
func TestGatherCopiesBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		r := rand.New(rand.NewPCG(4, 4))
		for _, dtype := range []DType{Float32, Float16, BFloat16} {
			for _, dim := range []int{1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 257} {
				const rows = 40
				size, shift := dtype.Bytes(), r.IntN(3)
				table := make([]byte, (rows*dim+shift)*size)
				for i := range table {
					table[i] = byte(r.Uint32())
				}
				n := r.IntN(900)
				wide, narrow := make([]int64, n), make([]int32, n)
				for i := range wide {
					wide[i] = r.Int64N(rows)
					narrow[i] = int32(wide[i])
				}
				for _, ids := range []Vector{Int64s(wide), Int32s(narrow)} {
					out := bytes.Repeat([]byte{0xa5}, (n*dim+shift+1)*size)
					must(t, b.Gather(Gather{Dim: dim, Rows: bytesAs(dtype, table, shift*size, rows*dim), IDs: ids,
						Out: bytesAs(dtype, out, shift*size, n*dim)}))
					for i, id := range wide {
						got, want := out[(shift+i*dim)*size:][:dim*size], table[(shift+int(id)*dim)*size:][:dim*size]
						if !bytes.Equal(got, want) {
							t.Fatalf("%v, dim %d: row %d of id %d is %x, want %x", dtype, dim, i, id, got, want)
						}
					}
					rest := append(bytes.Clone(out[:shift*size]), out[(shift+n*dim)*size:]...)
					if !bytes.Equal(rest, bytes.Repeat([]byte{0xa5}, len(rest))) {
						t.Fatalf("%v, dim %d: %d rows are written beyond their ends", dtype, dim, n)
					}
				}
			}
		}
	})
}

// bytesAs is n elements from an offset on.
func bytesAs(dtype DType, memory []byte, offset, n int) Vector {
	return Uint8s(memory).at(dtype, offset, n)
}

func TestGatherRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		table, out := make([]float32, 6), []float32{7, 7}
		call := func() Gather {
			return Gather{Dim: 2, Rows: Float32s(table), IDs: Int64s([]int64{1}), Out: Float32s(out)}
		}
		for name, c := range map[string]struct {
			change func(*Gather)
			want   error
		}{
			"no dim":        {func(g *Gather) { g.Dim = 0 }, ErrShape},
			"half a row":    {func(g *Gather) { g.Rows = Float32s(table[:5]) }, ErrShape},
			"too small":     {func(g *Gather) { g.Out = Float32s(out[:1]) }, ErrShape},
			"another type":  {func(g *Gather) { g.Out = vectorOf(make([]uint16, 2), Float16) }, ErrUnsupported},
			"ids of floats": {func(g *Gather) { g.IDs = Float32s(table[:1]) }, ErrUnsupported},
			"into itself":   {func(g *Gather) { g.Out = Float32s(table[:2]) }, ErrOverlap},
			"beyond":        {func(g *Gather) { g.IDs = Int64s([]int64{3}) }, ErrID},
			"before":        {func(g *Gather) { g.IDs = Int32s([]int32{-1}) }, ErrID},
		} {
			g := call()
			c.change(&g)
			if err := b.Gather(g); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
		var id *idError
		g := Gather{Dim: 1, Rows: Float32s(table), IDs: Int64s([]int64{5, 6, 9}), Out: Float32s(make([]float32, 3))}
		if err := b.Gather(g); !errors.As(err, &id) || id.position != 1 || id.id != 6 || id.limit != 6 {
			t.Errorf("%v, want the id 6 at 1", err)
		}
		wantFloats(t, "untouched", out, []float32{7, 7})
	})
}
