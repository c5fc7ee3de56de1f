package movielens

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// ErrRatings says that an input holds no ratings, or something else among them; the text says where.
var ErrRatings = errors.New("not ratings of MovieLens")

// Rating is how many stars a user gave a film, and when.
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
