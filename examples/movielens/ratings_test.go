package movielens

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The three forms in which MovieLens has ratings give the same ones.
func TestReadRatings(t *testing.T) {
	want := []Rating{{1, 31, 2.5, 1260759144}, {18446744073709551615, 1029, 5, -3}}
	for name, text := range map[string]string{
		"ratings.csv": "userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n18446744073709551615,1029,5.0,-3\n",
		"of Windows": "\ufeffuserId,movieId,rating,timestamp\r\n1,31,2.5,1260759144\r\n" +
			"18446744073709551615,1029,5.0,-3\r\n\r\n",
		"ratings.dat":   "1::31::2.5::1260759144\n18446744073709551615::1029::5::-3\n",
		"u.data":        "1\t31\t2.5\t1260759144\n18446744073709551615\t1029\t5\t-3",
		"without names": "1,31,2.5,1260759144\n18446744073709551615,1029,5.0,-3\n",
	} {
		if got, err := readRatings(strings.NewReader(text), name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v (%v)", name, got, err)
		}
	}
}

// What is no rating is an error that names file and line, and says what would be right.
func TestReadRatingsRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                                  "it is empty",
		"userId,movieId,rating,timestamp\n": "it is empty",
		"movieId,title,genres\n":            "r:1: not ratings of MovieLens: 3 fields",
		"1,2,3,4\n1,2,3\n":                  "r:2: not ratings of MovieLens: 3 fields",
		"1,2,3,4\nx,2,3,4\n":                `r:2: not ratings of MovieLens: user "x": want a whole number`,
		"1,-2,3,4\n":                        `film "-2"`,
		"1,2,NaN,4\n":                       `"NaN" stars: want a number from 0 to 100`,
		"1,2,3,noon\n":                      `time "noon": want seconds since 1970`,
		"1,2,3,4\n1::2::3::4\n":             "r:2: not ratings of MovieLens: 1 fields",
		strings.Repeat("1", 5000):           "a line of more than 4096 bytes",
	} {
		if got, err := readRatings(strings.NewReader(text), "r"); !errors.Is(err, ErrRatings) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%.30q: %v, %v, want %q", text, got, err, says)
		}
	}
}

func FuzzReadRatings(f *testing.F) {
	f.Add([]byte("userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n"))
	f.Add([]byte("1::31::2.5::1260759144"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := readRatings(bytes.NewReader(text), "r")
		if (err == nil) == (len(all) == 0) {
			t.Fatalf("%d ratings, %v", len(all), err)
		}
		for _, r := range all {
			if !(r.Stars >= 0 && r.Stars <= starsMax) {
				t.Fatalf("rating %+v", r)
			}
		}
	})
}

// Later ratings are for the test: of eleven those of each user's last fifth, or the last fifth of all.
func TestSplit(t *testing.T) {
	var all []Rating
	for at := range 11 {
		user := uint64(1)
		if at >= 7 {
			user = 2 // of whom there are four: too few for a fifth
		}
		all = append(all, Rating{user, uint64(at), 3, int64(at)})
	}
	films := func(ratings []Rating) (out []uint64) {
		for _, r := range ratings {
			out = append(out, r.Movie)
		}
		return out
	}
	for by, want := range map[string][]uint64{SplitUser: {6}, splitTime: {9, 10}} {
		train, test := split(all, by)
		if got := films(test); !slices.Equal(got, want) || len(train)+len(test) != len(all) {
			t.Errorf("%s: test %v, want %v, and %d to train with", by, got, want, len(train))
		}
	}
}

// The order of lines in a file changes nothing, and what Dump writes is read as the same data.
func TestLoadFile(t *testing.T) {
	data, err := Load(InputSynthetic, SplitUser)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := data.Dump(&text); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ratings.csv")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path, SplitUser)
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest != data.Digest || again.Mean != data.Mean || !slices.Equal(again.Train, data.Train) ||
		!slices.Equal(again.Test, data.Test) {
		t.Errorf("%d and %d ratings of the file, %d and %d of what it was made of", len(again.Train), len(again.Test),
			len(data.Train), len(data.Test))
	}
	if _, err := Load(filepath.Join(t.TempDir(), "ratings.csv"), SplitUser); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("1,2,3,4\n1,3,3,5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, splitTime); !errors.Is(err, ErrRatings) ||
		!strings.Contains(err.Error(), "2 to train with and 0 to test with") {
		t.Errorf("two ratings: %v", err)
	}
}

func TestLoadWithoutData(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := os.Stat(places[1] + ".rdb"); err == nil {
		t.Skip("R's package dslabs is installed here")
	}
	_, err := Load("", SplitUser)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "make data") ||
		!strings.Contains(err.Error(), "--input") {
		t.Errorf("no data: %v", err)
	}
}

func TestAUC(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		all  []scored
		want float64
	}{
		{[]scored{{3, true}, {1, false}, {3, false}}, 0.75},
		{[]scored{{1, false}, {2, true}}, 1},
		{[]scored{{2, false}, {1, true}}, 0},
		{[]scored{{2, true}, {1, true}}, 0.5},
		{[]scored{{nan, true}, {nan, false}}, 0.5},
		{nil, 0.5},
	} {
		if got := auc(c.all); got != c.want {
			t.Errorf("%v: %v, want %v", c.all, got, c.want)
		}
	}
}

func TestScore(t *testing.T) {
	if got := score(3, []float32{0.5, 1, 2}, []float32{-1, 4, 0.25}); got != 7 {
		t.Errorf("score %v, want 3+0.5-1+4+0.5", got)
	}
}

func TestSettings(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(s *Settings){
		"batch 0: want 1 to 1048576":                    func(s *Settings) { s.Batch = 0 },
		"factors 0: want 1 to 4095":                     func(s *Settings) { s.Factors = 0 },
		"rows 0: want 1 to":                             func(s *Settings) { s.Rows = 0 },
		"decay -1: want a number from 0 on":             func(s *Settings) { s.Decay = -1 },
		`split "film": want "user" or "time"`:           func(s *Settings) { s.Split = "film" },
		"lr 0: want a finite number above 0":            func(s *Settings) { s.LR = 0 },
		`apply "both": want "update" or "mean"`:         func(s *Settings) { s.Apply = "both" },
		"staleness 1 with consistency \"sync\": want 0": func(s *Settings) { s.Staleness = 1 },
	} {
		s := Defaults()
		change(&s)
		if err := s.Validate(); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	data, err := Load(InputSynthetic, SplitUser)
	if err != nil {
		t.Fatal(err)
	}
	a := Job(Defaults(), data)
	if err := a.Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(s *Settings){
		"settings.decay":  func(s *Settings) { s.Decay = 0.5 },
		"settings.split":  func(s *Settings) { s.Split = splitTime },
		"settings.batch":  func(s *Settings) { s.Batch = 3 },
		"tables[0].dim":   func(s *Settings) { s.Factors = 3 },
		"tables[0].rows":  func(s *Settings) { s.Rows = 3 },
		"optimizer.lr":    func(s *Settings) { s.LR = 3 },
		"settings.epochs": func(s *Settings) { s.Epochs = 3 },
	} {
		s := Defaults()
		change(&s)
		if got, _, _, differs := a.Diff(Job(s, data)); !differs || got != field {
			t.Errorf("%s changed: %s differs", field, got)
		}
	}
}
