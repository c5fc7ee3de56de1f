// Package update is the batch-updating parameter server, measured: a server that owns a model and its optimizer,
// trainers that send it gradients, and an update for every so many of them, whose new parameters answer exactly the
// requests that made it.
//
// It is a job of consistency grouped (docs/protocol.md): the server parks a request at the cost of an entry in its
// group, makes one SGD step of the mean over the group's samples, and answers all of the group with one frame. What
// each trainer does in a batch is a trainer.Workload as any user would write it (update.go), over modules of package
// nn.
//
// config.go is what the command is told. update.go starts the processes and puts their results together, has the role
// of a trainer, and says what happens in the words of the program that this one stands beside.
//
// What it leaves out: evaluation, and data from outside. Inputs are drawn for each batch, from a normal distribution,
// within the time that is measured. Labels are zeros, so that the loss says whether the model learns to answer nothing.
// For the convolutional model they are one class of 30 for each place in a trainer's batch, drawn once.
package update
