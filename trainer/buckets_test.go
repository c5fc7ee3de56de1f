package trainer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/schema"
)

func TestFlatSpaceLiteral(t *testing.T) {
	job := toyJob("flat", 1, 1, schema.ApplyUpdate)
	f, err := newFlatSpace(job, schema.NewPlacement(job, 2))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range f.specs {
		names = append(names, s.Name)
	}
	if want := []string{"bias", "shift", "weight", "ballast"}; !slices.Equal(names, want) {
		t.Errorf("parameters lie as %v, want the reverse of the manifest, %v", names, want)
	}
	// A chunk is 4 KiB, 1024 values: 4 + 4 + 32 of the small ones and 984 of ballast, then 516 of ballast.
	if want := []span{{0, 4}, {4, 8}, {8, 40}, {40, 1540}}; !slices.Equal(f.params, want) {
		t.Errorf("parameters are at %v, want %v", f.params, want)
	}
	if want := []span{{0, 1024}, {1024, 1540}}; !slices.Equal(f.chunks, want) {
		t.Errorf("chunks are at %v, want %v", f.chunks, want)
	}
	if want := []denseRound{{0, 0, 0, 2, 0}, {1, 0, 1, 2, 1024}}; !slices.Equal(f.rounds, want) {
		t.Errorf("rounds are %v, want %v", f.rounds, want)
	}
}

// Parameters of all sizes, some larger than a bucket: spans and chunks cover the space without gaps, and every frame
// that the placement knows is found.
func TestFlatSpaceCoversEverything(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 5))
	for range 20 {
		job := &schema.Job{Name: "x", ChunkBytes: 1 << 20}
		for i := range 1 + random.IntN(8) {
			job.Parameters = append(job.Parameters,
				schema.Parameter{Name: fmt.Sprint(i), Shape: []int{1 + random.IntN(1<<(4+random.IntN(20)))}})
		}
		place := schema.NewPlacement(job, 1+random.IntN(4))
		f, err := newFlatSpace(job, place)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i, name := 0, len(job.Parameters)-1; i < len(f.specs); i, name = i+1, name-1 {
			if f.specs[i].Name != fmt.Sprint(name) || f.params[i].hi-f.params[i].lo != f.specs[i].Elements() {
				t.Fatalf("seed %d: parameter %s at %v", seed, f.specs[i].Name, f.params[i])
			}
		}
		checkCover(t, seed, f.params)
		checkCover(t, seed, f.chunks)
		for i, r := range f.rounds {
			if at, ok := f.find(r.bucket, r.chunk); !ok || at != i || r.owner != place.OwnerOfChunk(r.bucket, r.chunk) {
				t.Fatalf("seed %d: round %+v is found at %d, %v", seed, r, at, ok)
			}
		}
		last := f.rounds[len(f.rounds)-1]
		for _, wrong := range [][2]int{{int(last.bucket) + 1, 0}, {int(last.bucket), int(last.chunks)}} {
			if at, ok := f.find(schema.Bucket(wrong[0]), schema.Chunk(wrong[1])); ok {
				t.Fatalf("seed %d: bucket %d chunk %d is found at %d", seed, wrong[0], wrong[1], at)
			}
		}
	}
}

func checkCover(t *testing.T, seed uint64, spans []span) {
	t.Helper()
	for i, s := range spans {
		if i == 0 && s.lo != 0 || i > 0 && s.lo != spans[i-1].hi || s.hi <= s.lo {
			t.Fatalf("seed %d: span %d is %v after %v", seed, i, s, spans[max(0, i-1)])
		}
	}
}

// Rows scattered over positions come back from where they went, whether one shard has all of them or not.
func TestPlaceAndTakeRows(t *testing.T) {
	from := []float32{1, 2, 3, 4, 5, 6}
	to := make([]float32, 8)
	placeRows(to, 2, []int32{0, 1, 3}, from)
	if want := []float32{1, 2, 3, 4, 0, 0, 5, 6}; !slices.Equal(to, want) {
		t.Errorf("rows are placed as %v, want %v", to, want)
	}
	back := make([]float32, 6)
	takeRows(back, 2, []int32{0, 1, 3}, to)
	if !slices.Equal(back, from) {
		t.Errorf("rows come back as %v, want %v", back, from)
	}
	clear(to)
	placeRows(to, 2, []int32{1, 2, 3}, from)
	if want := []float32{0, 0, 1, 2, 3, 4, 5, 6}; !slices.Equal(to, want) {
		t.Errorf("neighbouring rows are placed as %v, want %v", to, want)
	}
	takeRows(back, 2, []int32{1, 2, 3}, to)
	if !slices.Equal(back, from) {
		t.Errorf("neighbouring rows come back as %v, want %v", back, from)
	}
}
