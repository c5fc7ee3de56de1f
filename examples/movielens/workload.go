package movielens

import (
	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
	"gradbus/trainer/deal"
)

// Workload feeds and computes the lanes of a job; it is a trainer.Workload. It is not safe for concurrent use.
type Workload struct {
	settings Settings
	data     *Data
	dealer   *deal.Dealer

	gradUsers, gradMovies []float32
}

var _ trainer.Workload = (*Workload)(nil)

// NewWorkload readies the ratings of data for the job of s. It fails where deal.New does.
func NewWorkload(s Settings, data *Data) (*Workload, error) {
	dealer, err := deal.New(s.Seed, len(data.Train), s.Batch, s.LaneCount())
	return &Workload{settings: s, data: data, dealer: dealer}, err
}

// Keys appends the rows that a lane's ratings use.
func (w *Workload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	chosen := w.dealer.Samples(b, l)
	for _, i := range chosen {
		r := &w.data.Train[i]
		keys[users] = append(keys[users], userRow(r.User, w.settings.Rows))
		keys[movies] = append(keys[movies], movieRow(r.Movie, w.settings.Rows))
	}
	return len(chosen), keys
}

// Films take another salt than users, so that what shares a row is not the same in both tables.
func userRow(id uint64, rows int) uint64  { return trainer.HashID(id, uint64(rows), 0) }
func movieRow(id uint64, rows int) uint64 { return trainer.HashID(id, uint64(rows), 1) }

// Lane computes error, loss and gradients of a lane's ratings.
func (w *Workload) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	dim, decay := 1+w.settings.Factors, float32(w.settings.Decay)
	of := [2][]float32{step.Rows(users), step.Rows(movies)}
	ids := [2][]int64{step.IDs(users), step.IDs(movies)}
	w.gradUsers, w.gradMovies = w.gradUsers[:0], w.gradMovies[:0]
	for n, i := range w.dealer.Samples(step.Batch, step.Lane) {
		p, q := of[0][int(ids[0][n])*dim:][:dim], of[1][int(ids[1][n])*dim:][:dim]
		e := Score(w.data.Mean, p, q) - w.data.Train[i].Stars
		lossSum += float64(e) * float64(e) / 2
		w.gradUsers = append(w.gradUsers, e+float32(decay*p[0]))
		w.gradMovies = append(w.gradMovies, e+float32(decay*q[0]))
		for k := 1; k < dim; k++ {
			w.gradUsers = append(w.gradUsers, float32(e*q[k])+float32(decay*p[k]))
			w.gradMovies = append(w.gradMovies, float32(e*p[k])+float32(decay*q[k]))
		}
	}
	step.BagGrad(users, cuda.Sum, nil, w.gradUsers) // nil: a gradient for each key
	step.BagGrad(movies, cuda.Sum, nil, w.gradMovies)
	return lossSum, nil
}

// Score is the rating that rows p of a user and q of a film give: mean + p[0] + q[0] + p[1:]*q[1:], added up from the left.
func Score(mean float32, p, q []float32) float32 {
	s := mean + p[0] + q[0]
	for k := 1; k < len(p); k++ {
		s += float32(p[k] * q[k])
	}
	return s
}
