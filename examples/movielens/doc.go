// Package movielens is the workload of that name: from who gave which film how many stars, learn what others would give
// it. It is the smallest recommender there is, and has what a large one has: tables that 64-bit ids are hashed into, on
// the shards.
//
// # The model
//
// Matrix factorisation with biases (Koren, Bell, Volinsky: Matrix Factorization Techniques for Recommender Systems,
// 2009). A user and a film each have a row: a bias, then factors. A rating is the mean of all ratings, plus both
// biases, plus the inner product of the factors. The loss is the squared error, and a decay of the rows that a rating
// uses; the optimizer Adagrad.
//
// # Which ratings are for the test
//
// Those of later: of each user's the last fifth, or, where Split says so, the last fifth of all. Of the latter most are
// by people of whom no rating is known, so that they tell how good the biases of films are, and little else.
//
// # Files
//
// settings.go is what a person may choose and the manifest that follows; data.go reads the files of MovieLens, finds
// and splits them; workload.go computes ratings; model.go is a trained model: loaded, asked, measured. Package rdata reads R's own format, in which Debian has some of the ratings.
//
// The package knows the session. It must not know frames, shards or flags. A newcomer may add a setting (with a line in
// Validate, and in Job if trainers must agree on it); examples/torch/movielens.py, which trains the same model with
// PyTorch, must then learn it too.
package movielens
