package movielens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"gradbus/trainer"
)

// Weights gives the rows of a model in training; a *trainer.Session is one.
type Weights interface {
	// Lookup gives the rows [len(Keys), dim] of each of asks.
	Lookup(ctx context.Context, asks []trainer.TableKeys) ([][]float32, error)
}

var _ Weights = (*trainer.Session)(nil)

// Scores are how well ratings are foretold.
type Scores struct {
	RMSE float64 // root of the mean squared error, in stars
	// how probably a film that was liked (Positive stars and more) is put above one that was not; 0.5 is chance
	AUC float64
}

// evaluationRatings is how many ratings are evaluated at once: it bounds the rows that are held, two a rating.
const evaluationRatings = 1 << 14

// ErrDiverged says that a model has values that are not finite, and so no scores.
var ErrDiverged = errors.New("the model has values that are not finite; a smaller learning rate helps")

// Evaluate measures a model on ratings. AUC is 0.5 where all of them are liked, or none. It fails where the lookup
// does, where there are no ratings, and with ErrDiverged.
func Evaluate(ctx context.Context, w Weights, s Settings, mean float32, ratings []Rating) (Scores, error) {
	if len(ratings) == 0 {
		return Scores{}, fmt.Errorf("evaluate: no ratings")
	}
	dim := 1 + s.Factors
	squares, all := 0.0, make([]scored, 0, len(ratings))
	for part := range slices.Chunk(ratings, evaluationRatings) {
		asks := []trainer.TableKeys{{Table: users}, {Table: movies}}
		for _, r := range part {
			asks[0].Keys = append(asks[0].Keys, userRow(r.User, s.Rows))
			asks[1].Keys = append(asks[1].Keys, movieRow(r.Movie, s.Rows))
		}
		rows, err := w.Lookup(ctx, asks)
		if err != nil {
			return Scores{}, fmt.Errorf("evaluate: %w", err)
		}
		for i, r := range part {
			score := score(mean, rows[0][i*dim:][:dim], rows[1][i*dim:][:dim])
			e := float64(score) - float64(r.Stars)
			squares += e * e
			all = append(all, scored{score, r.Stars >= positive})
		}
	}
	rmse := math.Sqrt(squares / float64(len(ratings)))
	if math.IsNaN(rmse) || math.IsInf(rmse, 0) {
		return Scores{}, fmt.Errorf("evaluate: %w", ErrDiverged)
	}
	return Scores{RMSE: rmse, AUC: auc(all)}, nil
}

// scored is a rating as the model orders it.
type scored struct {
	score float32
	liked bool
}

// auc is the share of pairs of a liked and another film that the scores put in order; pairs of equal scores count half.
//
//	liked 3, other 1, other 3  ->  (1 + 0.5) / 2
func auc(all []scored) float64 {
	slices.SortFunc(all, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
	above, liked, others := 0.0, 0.0, 0.0
	for lo := 0; lo < len(all); {
		hi, likedHere := lo, 0.0
		for ; hi < len(all) && cmp.Compare(all[hi].score, all[lo].score) == 0; hi++ { // which NaN is of itself, too
			if all[hi].liked {
				likedHere++
			}
		}
		othersHere := float64(hi-lo) - likedHere
		above += likedHere * (others + othersHere/2)
		liked, others, lo = liked+likedHere, others+othersHere, hi
	}
	if liked == 0 || others == 0 {
		return 0.5
	}
	return above / (liked * others)
}
