package movielens

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gradbus/internal/safetensors"
	"gradbus/internal/settings"
	"gradbus/schema"
	"gradbus/trainer"
)

// ErrModel says that a file is no model of this workload; the text says what is wrong with it.
var ErrModel = errors.New("not a model of the workload movielens")

// format names what the metadata of a saved model hold.
const format = "gradbus movielens 1"

// Film is a film that can be recommended.
type Film struct {
	ID      uint64 `json:"id"`
	Title   string `json:"title,omitempty"`
	Ratings int    `json:"ratings"` // of the training
}

// Model is a trained model with what is needed to use it.
type Model struct {
	Mean          float32
	Films         []Film // of the training ratings, by id
	Synthetic     bool
	Suspect       string            // why it may be wrong: memory of a GPU was, while it was trained; empty where nothing speaks for it
	Settings      map[string]string // how it was trained, for people
	Rows, Dim     int               // of each table
	Users, Movies []float32         // [Rows, Dim]: bias, then factors
}

// Collect reads the whole model from a session at its current version.
func Collect(ctx context.Context, session *trainer.Session, s Settings, data *Data) (*Model, error) {
	m := &Model{Mean: data.Mean, Films: data.films(), Synthetic: data.Synthetic, Rows: s.Rows, Dim: 1 + s.Factors, Settings: s.Record()}
	for name, value := range map[string]string{"batch": strconv.Itoa(s.Batch), "decay": settings.Number(s.Decay), "split": s.Split,
		"data": hex.EncodeToString(data.Digest[:])} {
		m.Settings[name] = value
	}
	m.Users, m.Movies = make([]float32, m.Rows*m.Dim), make([]float32, m.Rows*m.Dim)
	for table, to := range map[schema.Table][]float32{users: m.Users, movies: m.Movies} {
		err := session.Table(ctx, table, func(_ schema.Partition, keys []uint64, rows []float32) error {
			for i, key := range keys {
				copy(to[int(key)*m.Dim:][:m.Dim], rows[i*m.Dim:])
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("collect the model: %w", err)
		}
	}
	return m, nil
}

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

// Save writes the model as a safetensors file: tensors users and movies [Rows, Dim], float32, and in the metadata the mean, the films and
// the settings. The file is there whole or not at all.
func (m *Model) Save(path string) error {
	films, err := json.Marshal(m.Films)
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	metadata := map[string]string{"format": format, "films": string(films), "mean": settings.Number(float64(m.Mean)),
		"synthetic": strconv.FormatBool(m.Synthetic)}
	if m.Suspect != "" {
		metadata["suspect"] = m.Suspect
	}
	for name, value := range m.Settings {
		metadata["settings."+name] = value
	}
	shape := []int{m.Rows, m.Dim}
	if err := safetensors.Save(path, metadata, []safetensors.Tensor{{Name: moviesName, Shape: shape, Values: m.Movies},
		{Name: usersName, Shape: shape, Values: m.Users}}); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// LoadModel reads a file that Save wrote. It fails with ErrModel where it is something else, cut, of other shapes, or holds values that
// are not finite; and where it cannot be opened (fs.ErrNotExist).
func LoadModel(path string) (*Model, error) {
	metadata, tensors, err := safetensors.Load(path)
	if errors.Is(err, safetensors.ErrFormat) {
		return nil, fmt.Errorf("load model: %w: %w", ErrModel, err)
	}
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	m, err := modelOf(metadata, tensors)
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w: %w", path, ErrModel, err)
	}
	return m, nil
}

func modelOf(metadata map[string]string, tensors map[string]safetensors.Tensor) (*Model, error) {
	if got := metadata["format"]; got != format {
		return nil, fmt.Errorf("format %q in its metadata, want %q", got, format)
	}
	m := &Model{Settings: map[string]string{}, Synthetic: metadata["synthetic"] == "true", Suspect: metadata["suspect"]}
	for name, value := range metadata {
		if setting, ok := strings.CutPrefix(name, "settings."); ok {
			m.Settings[setting] = value
		}
	}
	mean, err := strconv.ParseFloat(metadata["mean"], 32)
	if err != nil || !(mean >= 0 && mean <= starsMax) {
		return nil, fmt.Errorf("mean %.40q: want a number from 0 to %d", metadata["mean"], starsMax)
	}
	m.Mean = float32(mean)
	if err := json.Unmarshal([]byte(metadata["films"]), &m.Films); err != nil {
		return nil, errors.New("its films are no list of them")
	}
	table, err := safetensors.Find(tensors, usersName)
	if err != nil {
		return nil, err
	}
	if len(table.Shape) != 2 || table.Shape[0] < 1 || table.Shape[1] < 1 || len(tensors) != 2 {
		return nil, fmt.Errorf("%d tensors, %s of shape %v: want %s and %s alone, [rows, dim]", len(tensors), usersName, table.Shape, moviesName, usersName)
	}
	m.Rows, m.Dim = table.Shape[0], table.Shape[1]
	if m.Users, err = safetensors.Values(tensors, usersName, table.Shape); err != nil {
		return nil, err
	}
	m.Movies, err = safetensors.Values(tensors, moviesName, table.Shape)
	return m, err
}

// Rating is how many stars a user would give a film. Of a user or a film that the training did not have it tells little beyond the other's bias.
func (m *Model) Rating(user, film uint64) float32 {
	return Score(m.Mean, m.Users[int(userRow(user, m.Rows))*m.Dim:][:m.Dim], m.Movies[int(movieRow(film, m.Rows))*m.Dim:][:m.Dim])
}

// Recommendation is a film and how many stars a user would give it.
type Recommendation struct {
	Film
	Stars float64 `json:"stars"`
}

// ratingsLeast is how many training ratings a film has that is recommended: of others little is known.
const ratingsLeast = 10

// Recommend gives the n films that a user would like best of those with some ratings, the best first and of equal ones by id; fewer where
// the model has fewer. Films that the user has rated are among them.
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
