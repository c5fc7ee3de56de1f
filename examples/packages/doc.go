// Package packages is the workload of that name: predict the section of a Debian package from its name and the first
// line of its description. It is small, trains on data that every Debian or Ubuntu machine has, and uses all that a
// large model needs: a table of 2^18 rows on the shards, dense parameters, lookups, sparse and dense gradients.
//
// # The model
//
// Each token has a row of 64 values; a package is the mean of its tokens' rows; a linear layer turns that into one
// score a section; softmax cross-entropy is the loss, plain SGD the optimizer. Package corpus makes examples of an
// index.
//
// # Who sees which example when
//
// Package shuffle says. Its batches are of nearly one size: a small last batch would count as much as the others do, at
// a learning rate of 20.
//
// # Files
//
// settings.go is what a person may choose and the manifest that follows; model.go feeds and computes a lane, and has a
// trained model: loaded from the file that a session saved, asked, its accuracy measured.
//
// The package knows the session and the layers. It must not know frames, shards or flags. A newcomer may add a setting
// (with a line in Validate, and in Job if trainers must agree on it) or a better model; package reference, which trains
// the same model in one process without any of this, must then learn it too.
package packages
