// Package hosted measures training of a small convolutional model on images in two ways: remote, where a server holds
// the whole model, computes, and trainers send inputs and gradients of outputs; and pull, where trainers pull
// parameters, compute, and push gradients.
//
// In remote each trainer steps for itself, with no regard to the others: every pass is computed on the version of the
// parameters that it has seen, and its step moves the newest one. In pull the server owns parameters and optimizer as
// in any job; --sync says how trainers keep together.
//
// config.go is what the command is told. hosted.go starts the processes and puts their results together, and has both
// kinds of trainers and one training step without any server.
//
// Each trainer has its share of the data, in an order that the seed gives. When all have trained, the trainers of each
// host go through the whole test set, each through a part. The package knows the workload's data and model from
// examples/mnist, and must not know frames or shards.
package hosted
