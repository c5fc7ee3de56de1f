// Package average is psbench average: the averaging servers of PyTorch's parameter server benchmark, their trainers,
// metrics and tables, on gradbus.
//
// # The system
//
// Trainers keep a replica of a model and its optimizer, and agree in every batch on the mean of their gradients, bucket
// by bucket. Who computes the mean is the hook:
//
//	            dense buckets            rows of the embedding
//	allreduce   the trainers             the trainers
//	hybrid      the trainers             the trainers, with a metric of its own
//	rpc         the servers              the servers
//	sparse-rpc  the trainers             the servers
//
// An average server adds gradients as they arrive, but the last in the pass that divides (schema.SumFused), an
// average-batch server all of them in that pass (schema.SumClose). With --servers 0 there is a ps at which trainers
// meet, and no server of gradients. All of these end with the same weights, bit for bit, at any number of servers;
// Measure fails where two replicas differ.
//
// The model is DummyModel, the data DummyData (model.go), with the configurations' fields of the original (config.go).
// Batches are dealt to the trainers in turn; where they do not come out even, trainers without a batch contribute
// nothing in the last step, and no trainer waits for them.
//
// # What is measured
//
// A whole run warms up; its figures are dropped, and the measured job starts from version 0. metrics.go has the names,
// which are the original's, what a trainer records, the printed and saved tables and the timeline. All times are
// milliseconds of the host's clock. batch_all is from the start of a batch, rows looked up, to the new version of the
// parameters; forward_pass has the loss in it; backward ends with the new version, so what communication is left after
// the backward pass counts there. The optimizer runs on each chunk when its mean arrives, so it is in backward too.
//
// A server's times are ps.RoundTimes: a gradient counts from when all of it is there, and the average computation is
// what was left to compute then. What was added before is in no table, as the original has no name for it.
//
// Means weigh samples: a batch that is smaller than the others counts for as many samples as it has. With --mean lanes
// all batches count the same (harness.LaneScale). Where batches are equal these are one.
//
// # What is where
//
// config.go is what a run is told; run.go drives it and has the roles of its processes and the result; model.go has the
// model, its data and a step of training.
//
// # What it knows, and what it must not know
//
// It uses packages trainer, ps, nn and bench/harness as any program would, and knows nothing of frames or subjects. It
// must not know how the command line ends. A newcomer may add a criterion, a preprocessing or an iteration step: a line
// in its table of choices.
package average
