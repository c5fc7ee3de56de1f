package movielens

import (
	"gradbus/nn"
	"gradbus/trainer"
)

// NewWorkload makes what a session runs of the ratings to train with.
func NewWorkload(session *trainer.Session, s Settings, data *Data) (trainer.Workload, error) {
	keys := func(r Rating, k *trainer.Keys) {
		k.Add(usersName, userRow(r.User, s.Rows))
		k.Add(moviesName, movieRow(r.Movie, s.Rows))
	}
	return trainer.Samples(data.Train, s.Batch, s.Seed, keys).Workload(session, func(b *trainer.Step[Rating]) float64 {
		return step(b, data.Mean, float32(s.Decay))
	})
}

// Films take another salt than users, so that what shares a row is not the same in both tables.
func userRow(id uint64, rows int) uint64  { return trainer.HashID(id, uint64(rows), 0) }
func movieRow(id uint64, rows int) uint64 { return trainer.HashID(id, uint64(rows), 1) }

// score is the rating that rows p of a user and q of a film give: the mean, both biases, and the product of the
// factors.
func score(mean float32, p, q []float32) float32 { return mean + p[0] + q[0] + nn.Dot(p[1:], q[1:]) }

// step adds up the gradients of some ratings, and gives the sum of half their squared errors.
func step(b *trainer.Step[Rating], mean, decay float32) (loss float64) {
	for n, r := range b.Samples() {
		p, q := b.Row(usersName, n), b.Row(moviesName, n)
		gradP, gradQ := b.RowGrad(usersName, n), b.RowGrad(moviesName, n)
		e := score(mean, p, q) - r.Stars
		gradP[0] += e
		gradQ[0] += e
		nn.Axpy(e, q[1:], gradP[1:])
		nn.Axpy(e, p[1:], gradQ[1:])
		nn.Axpy(decay, p, gradP)
		nn.Axpy(decay, q, gradQ)
		loss += float64(e) * float64(e) / 2
	}
	return loss
}
