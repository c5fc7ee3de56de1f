package movielens

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"gradbus/internal/settings"
	"gradbus/trainer"
)

// ErrModel says that a file is no model of this workload; the text says what is wrong with it.
var ErrModel = errors.New("not a model of the workload movielens")

// Film is a film that can be recommended.
type Film struct {
	ID      uint64 `json:"id"`
	Title   string `json:"title,omitempty"`
	Ratings int    `json:"ratings"` // of the training
}

// Model is a trained model with what is needed to use it.
type Model struct {
	Mean    float32
	Films   []Film // of the training ratings, by id
	Weights *trainer.Model
	rows    int // of each table
}

// Entries of a saved model's metadata.
const (
	filmsEntry = "films"
	meanEntry  = "mean"
)

// films are those of the training ratings, by id.
func (d *Data) films() []Film {
	ratings := map[uint64]int{}
	for _, r := range d.Train {
		ratings[r.Movie]++
	}
	all := make([]Film, 0, len(ratings))
	for id, n := range ratings {
		all = append(all, Film{id, d.Titles[id], n})
	}
	slices.SortFunc(all, func(a, b Film) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Metadata returns the text in the file of a model besides its weights and its manifest: see trainer.Session.Save.
func Metadata(data *Data) map[string]string {
	films, _ := json.Marshal(data.films()) // numbers and texts
	return map[string]string{filmsEntry: string(films), meanEntry: settings.Number(float64(data.Mean))}
}

// LoadModel reads a file that was saved with Metadata. It fails with ErrModel where it is something else, cut or changed; and where
// it cannot be opened (fs.ErrNotExist).
func LoadModel(path string) (*Model, error) {
	weights, err := trainer.OpenModel(path)
	if errors.Is(err, trainer.ErrModel) {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	if err != nil {
		return nil, err
	}
	m := &Model{Weights: weights}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModel, path, err)
	}
	return m, nil
}

// check takes what the manifest and the metadata say.
func (m *Model) check() error {
	job := m.Weights.Job()
	t := job.Tables
	if job.Workload != Name || len(t) != 2 || t[users].Name != usersName || t[movies].Name != moviesName ||
		t[users].Dim != t[movies].Dim ||
		t[users].Rows != t[movies].Rows {
		return fmt.Errorf("it is of workload %q: want %s, with tables %s and %s alike", job.Workload, Name,
			usersName, moviesName)
	}
	m.rows = int(t[users].Rows)
	mean, err := strconv.ParseFloat(m.Weights.Metadata[meanEntry], 32)
	if err != nil || !(mean >= 0 && mean <= starsMax) {
		return fmt.Errorf("mean %.40q: want a number from 0 to %d", m.Weights.Metadata[meanEntry], starsMax)
	}
	m.Mean = float32(mean)
	if err := json.Unmarshal([]byte(m.Weights.Metadata[filmsEntry]), &m.Films); err != nil {
		return errors.New("its films are no list of them")
	}
	return nil
}

// Rating returns the predicted stars of a user for a film. For a user or a film without training ratings it depends on
// little but the other's bias.
func (m *Model) Rating(user, film uint64) float32 {
	return score(m.Mean, m.Weights.Row(usersName, userRow(user, m.rows)),
		m.Weights.Row(moviesName, movieRow(film, m.rows)))
}

// Recommendation is a film and how many stars a user would give it.
type Recommendation struct {
	Film
	Stars float64 `json:"stars"`
}

// ratingsLeast is the number of training ratings that a recommended film has: little is known about others.
const ratingsLeast = 10

// Recommend gives the n films that a user would like best of those with some ratings, the best first and of equal ones
// by id; fewer where the model has fewer. Films that the user has rated are among them.
func (m *Model) Recommend(user uint64, n int) []Recommendation {
	var all []Recommendation
	for _, f := range m.Films {
		if f.Ratings >= ratingsLeast {
			all = append(all, Recommendation{f, float64(m.Rating(user, f.ID))})
		}
	}
	slices.SortStableFunc(all, func(a, b Recommendation) int { return cmp.Compare(b.Stars, a.Stars) })
	return all[:min(n, len(all))]
}

// Weights gives the rows of a model in training; a *trainer.Session is one.
type Weights interface {
	// Lookup gives the rows [len(Keys), dim] of each of asks.
	Lookup(ctx context.Context, asks []trainer.Query) ([][]float32, error)
}

var _ Weights = (*trainer.Session)(nil)

// Scores measure the quality of predicted ratings.
type Scores struct {
	RMSE float64 // root of the mean squared error, in stars
	// how probably a film that was liked (Positive stars and more) is put above one that was not; 0.5 is chance
	AUC float64
}

// evaluationRatings is the number of ratings that are evaluated at once: it bounds the rows in memory, two per rating.
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
		asks := []trainer.Query{{Table: users}, {Table: movies}}
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
