package movielens

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"gradbus/examples/movielens/rdata"
	"gradbus/internal/regular"
	"gradbus/philox"
)

// InputSynthetic is the input that is generated.
const InputSynthetic = "synthetic"

// Where ratings are looked for that no file is named for: what `make data` fetches, and what Debian's package installs.
var places = []string{"data/movielens/Rdata", "/usr/lib/R/site-library/dslabs/data/Rdata"}

// Data are ratings to train with and ratings to test with, each in the order of time.
type Data struct {
	Source      string // where they are from, for people
	Synthetic   bool   // generated: what is learned of them says nothing about people
	Train, Test []Rating
	Mean        float32           // of the stars of Train
	Titles      map[uint64]string // of films, as far as they are known
	Digest      [32]byte          // SHA-256 over all ratings in the order of time
}

// Load reads ratings from a file of MovieLens, of the database of R where input is empty, or generates them where it is
// InputSynthetic. It fails with ErrRatings for files that hold something else and for too few ratings, and with
// fs.ErrNotExist where there are none.
func Load(input, by string) (*Data, error) {
	d := &Data{Source: input}
	var all []Rating
	var err error
	switch input {
	case "":
		all, err = d.fromR()
	case InputSynthetic:
		d.Synthetic, all = true, synthetic(syntheticUsers, syntheticMovies)
	default:
		all, err = fromFile(input)
	}
	if err != nil {
		return nil, err
	}
	sortByTime(all)
	d.Digest = digest(all)
	d.Train, d.Test = split(all, by)
	if len(d.Train) == 0 || len(d.Test) == 0 {
		return nil, fmt.Errorf("%s: %w: %d to train with and %d to test with; want at least one of each", d.Source,
			ErrRatings, len(d.Train), len(d.Test))
	}
	d.Mean = meanOf(d.Train)
	return d, nil
}

func fromFile(path string) ([]Rating, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readRatings(f, path)
}

// fromR reads the 100,004 ratings of R's package dslabs.
func (d *Data) fromR() ([]Rating, error) {
	for _, base := range places {
		frame, err := rdata.Load(base, "movielens")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		d.Source = base + ".rdb"
		return d.ofFrame(frame)
	}
	return nil,
		fmt.Errorf("no ratings here (%s.rdb): name a ratings.csv with --input, or get Debian's by make data; --input %s "+
			"needs none: %w",
			filepath.Clean(places[0]), InputSynthetic, fs.ErrNotExist)
}

func (d *Data) ofFrame(frame *rdata.Frame) ([]Rating, error) {
	var columns [4][]float64
	for i, name := range []string{"userId", "movieId", "rating", "timestamp"} {
		var err error
		if columns[i], err = frame.Reals(name); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", d.Source, ErrRatings, err)
		}
	}
	all := make([]Rating, frame.Rows())
	for i := range all {
		user, movie, stars, at := columns[0][i], columns[1][i], columns[2][i], columns[3][i]
		if !(isID(user) && isID(movie) && stars >= 0 && stars <= starsMax && math.Abs(at) < 1<<53) {
			return nil, fmt.Errorf("%s: %w: row %d: user %v, film %v, %v stars at %v", d.Source, ErrRatings, i, user,
				movie, stars, at)
		}
		all[i] = Rating{uint64(user), uint64(movie), float32(stars), int64(at)}
	}
	d.titles(frame)
	return all, nil
}

// isID reports whether x is a whole number that a float64 has exactly.
func isID(x float64) bool { return x >= 0 && x < 1<<53 && x == math.Trunc(x) }

// titles takes the titles and years of films, where the frame has them.
func (d *Data) titles(frame *rdata.Frame) {
	films, err := frame.Reals("movieId")
	titles, err2 := frame.Texts("title")
	years, err3 := frame.Reals("year")
	if err := errors.Join(err, err2, err3); err != nil {
		return
	}
	d.Titles = map[uint64]string{}
	for i, title := range titles {
		if !math.IsNaN(years[i]) {
			title = fmt.Sprintf("%s (%.0f)", title, years[i])
		}
		d.Titles[uint64(films[i])] = title
	}
}

// digest hashes ratings in their order: user, film, the bits of the stars, and time, as little-endian words.
func digest(all []Rating) (sum [32]byte) {
	h := sha256.New()
	var b []byte
	for _, r := range all {
		b = binary.LittleEndian.AppendUint64(b[:0], r.User)
		b = binary.LittleEndian.AppendUint64(b, r.Movie)
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(r.Stars))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Time))
		h.Write(b)
	}
	h.Sum(sum[:0])
	return sum
}

// Dump writes all ratings as a ratings.csv, in the order of time within each of the two sets.
func (d *Data) Dump(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, "userId,movieId,rating,timestamp")
	for _, set := range [][]Rating{d.Train, d.Test} {
		for _, r := range set {
			fmt.Fprintf(out, "%d,%d,%g,%d\n", r.User, r.Movie, r.Stars, r.Time)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write ratings: %w", err)
	}
	return nil
}

// The size of the synthetic ratings, and how much the taste of people and the quality of films move them.
const (
	syntheticUsers  = 200
	syntheticMovies = 150
	syntheticEach   = 30 // ratings a user
)

// synthetic generates ratings that can be learned: films are good or bad, people are strict or kind, and each likes one
// of two kinds of films. The numbers are counter-based: the same everywhere and for ever.
func synthetic(users, movies int) []Rating {
	quality, kind := make([]float32, movies), make([]float32, movies)
	for m := range movies {
		r := philox.New(1, "film", uint64(m), 0, 0)
		quality[m], kind[m] = 2*r.Uniform()-1, 2*r.Uniform()-1
	}
	var all []Rating
	for u := range users {
		r := philox.New(1, "user", uint64(u), 0, 0)
		kindness, taste := r.Uniform()-0.5, 2*r.Uniform()-1
		for i := range syntheticEach {
			m := int(r.Below(uint32(movies)))
			stars := 3.5 + quality[m] + kindness + 1.5*taste*kind[m] + 0.4*(r.Uniform()-0.5)
			stars = float32(math.Round(2*float64(min(max(stars, 0.5), 5)))) / 2
			all = append(all, Rating{uint64(u + 1), uint64(m + 1), stars, int64(1e9 + i*1000 + u)})
		}
	}
	return all
}

// ErrRatings says that an input holds no ratings, or something else among them; the text says where.
var ErrRatings = errors.New("not ratings of MovieLens")

// Rating is a user's stars for a film, and the time.
type Rating struct {
	User, Movie uint64
	Stars       float32
	Time        int64 // seconds since 1970
}

// positive is from how many stars on a film was liked, as AUC counts it.
const positive = 4

const (
	starsMax     = 100
	ratingsMax   = 1 << 28 // MovieLens 32M has 2^25
	lineBytesMax = 4096
)

// readRatings reads the ratings of a file as MovieLens has them: ratings.csv, whose first line names the columns
// userId,movieId,rating,timestamp, ratings.dat, with :: between the same fields, or u.data, with tabs. It fails with
// ErrRatings, naming the line, where there is something else. label names the input in errors.
func readRatings(in io.Reader, label string) ([]Rating, error) {
	var all []Rating
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, lineBytesMax)
	var separator []byte
	for number := 1; lines.Scan(); number++ {
		line := bytes.TrimSpace(lines.Bytes())
		if separator == nil {
			separator = separatorOf(line)
			if isHeader(line) {
				continue
			}
		}
		if len(line) == 0 {
			continue
		}
		r, err := parse(line, separator)
		if err == nil && len(all) == ratingsMax {
			err = fmt.Errorf("more than %d ratings", ratingsMax)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w: %w", label, number, ErrRatings, err)
		}
		all = append(all, r)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("%s: %w: a line of more than %d bytes", label, ErrRatings, lineBytesMax)
	} else if err != nil {
		return nil, fmt.Errorf("read %s: %w", label, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: %w: it is empty", label, ErrRatings)
	}
	return all, nil
}

func separatorOf(line []byte) []byte {
	for _, s := range []string{"::", "\t"} {
		if bytes.Contains(line, []byte(s)) {
			return []byte(s)
		}
	}
	return []byte(",")
}

func isHeader(line []byte) bool {
	return bytes.Equal(bytes.TrimPrefix(line, []byte("\ufeff")), []byte("userId,movieId,rating,timestamp"))
}

func parse(line, separator []byte) (r Rating, err error) {
	fields := bytes.Split(line, separator)
	if len(fields) != 4 {
		return r, fmt.Errorf("%d fields in %.40q: want user, film, stars and time, as ratings.csv has them",
			len(fields), line)
	}
	if r.User, err = strconv.ParseUint(string(fields[0]), 10, 64); err != nil {
		return r, fmt.Errorf("user %.40q: want a whole number", fields[0])
	}
	if r.Movie, err = strconv.ParseUint(string(fields[1]), 10, 64); err != nil {
		return r, fmt.Errorf("film %.40q: want a whole number", fields[1])
	}
	stars, err := strconv.ParseFloat(string(fields[2]), 32)
	if err != nil || !(stars >= 0 && stars <= starsMax) {
		return r, fmt.Errorf("%.40q stars: want a number from 0 to %d", fields[2], starsMax)
	}
	if r.Time, err = strconv.ParseInt(string(fields[3]), 10, 64); err != nil {
		return r, fmt.Errorf("time %.40q: want seconds since 1970", fields[3])
	}
	r.Stars = float32(stars)
	return r, nil
}

// sortByTime orders ratings by time; those of one moment by user and film, so that the order does not depend on that of
// the input.
func sortByTime(all []Rating) {
	slices.SortFunc(all, func(a, b Rating) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.User, b.User), cmp.Compare(a.Movie, b.Movie),
			cmp.Compare(a.Stars, b.Stars))
	})
}

// split cuts ratings, which are in the order of time, into those to train with and those to test with.
func split(all []Rating, by string) (train, test []Rating) {
	if by == splitTime {
		cut := len(all) - len(all)/testShare
		return all[:cut], all[cut:]
	}
	total, seen := map[uint64]int{}, map[uint64]int{}
	for _, r := range all {
		total[r.User]++
	}
	for _, r := range all {
		seen[r.User]++
		if n := total[r.User]; seen[r.User] <= n-n/testShare {
			train = append(train, r)
		} else {
			test = append(test, r)
		}
	}
	return train, test
}

// testShare is the inverse of the test set's share.
const testShare = 5

// meanOf is the mean of the stars, rounded once.
func meanOf(ratings []Rating) float32 {
	sum := 0.0
	for _, r := range ratings {
		sum += float64(r.Stars)
	}
	return float32(sum / math.Max(1, float64(len(ratings))))
}
