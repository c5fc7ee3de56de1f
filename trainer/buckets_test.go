package trainer

import (
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
