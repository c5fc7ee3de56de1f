package movielens

import (
	"encoding/hex"
	"errors"
	"strconv"

	"gradbus/internal/settings"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// Name is the workload's name in manifests and on command lines.
const Name = "movielens"

// Names of the tables, in manifests and in saved files, and their places in the manifest.
const (
	usersName  = "users"
	moviesName = "movies"

	users  schema.Table = 0
	movies schema.Table = 1
)

// How the test ratings are chosen.
const (
	SplitUser = "user" // the last fifth of each user's
	splitTime = "time" // the last fifth of all
)

// ErrSettings says that settings are not usable; the text lists every one of them.
var ErrSettings = errors.New("invalid settings")

// Settings are the user's choices. All trainers of a job must choose alike; Job puts them into the manifest.
type Settings struct {
	settings.Shared
	Batch   int     // most ratings in a batch, from 1
	Factors int     // of users and films, from 1; a row has one value more, the bias
	Rows    int     // of each of the two tables, from 1
	Decay   float64 // of the rows that a rating uses, from 0
	Split   string  // how the test ratings are chosen: SplitUser or splitTime
}

// Defaults are the settings of the measured figures, chosen on ratings that were split off those of the training.
func Defaults() Settings {
	return Settings{Shared: settings.Shared{Job: Name, Trainers: 1, Epochs: 12, Optimizer: schema.OptimizerAdagrad,
		LR: 0.05, Seed: 1, Apply: schema.ApplyUpdate},
		Batch: 512, Factors: 16, Rows: 1 << 18, Decay: 0.15, Split: SplitUser}
}

const (
	initialScale = 0.03 // standard deviation of the tables' initial values
	partitions   = 64   // of each table

	batchMax   = 1 << 20
	factorsMax = 4095
	rowsMax    = 1 << 40
)

// Validate lists everything that is wrong, each with the field, its value and what would be right.
func (s Settings) Validate() error {
	var c settings.Check
	s.CheckPlace(&c)
	c.Between("batch", s.Batch, 1, batchMax)
	c.Between("factors", s.Factors, 1, factorsMax)
	c.Between("rows", s.Rows, 1, rowsMax)
	if d := float64(float32(s.Decay)); !(d >= 0 && d <= 1e6) {
		c.Add("decay %v: want a number from 0 on", s.Decay)
	}
	if s.Split != SplitUser && s.Split != splitTime {
		c.Add("split %q: want %q or %q", s.Split, SplitUser, splitTime)
	}
	s.CheckTraining(&c)
	s.CheckTables(&c)
	return c.Err(ErrSettings)
}

// BatchesPerEpoch is the number of batches that n ratings are cut into.
func (s Settings) BatchesPerEpoch(n int) int { return shuffle.PerEpoch(n, s.Batch) }

// Job is the manifest that all trainers of the job must agree on: the settings, both tables, and the digest of the
// data, so that a trainer with other ratings is refused. s must be valid.
func Job(s Settings, data *Data) *schema.Job {
	job := s.Manifest(Name)
	job.Settings = map[string]string{
		"batch":  strconv.Itoa(s.Batch),
		"data":   hex.EncodeToString(data.Digest[:]),
		"decay":  settings.Number(s.Decay),
		"epochs": strconv.Itoa(s.Epochs),
		"split":  s.Split,
	}
	for _, name := range []string{usersName, moviesName} {
		job.Tables = append(job.Tables, schema.TableSpec{Name: name, Rows: uint64(s.Rows), Dim: 1 + s.Factors,
			Partitions: partitions,
			Replicated: s.Reduce == schema.ReduceTrainers, Init: schema.Init{Kind: philox.Normal, Scale: initialScale},
			Optimizer: s.TableOptimizer()})
	}
	return job.WithDefaults()
}
