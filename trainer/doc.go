// Package trainer makes a program a trainer of a job, and runs the job's batches.
//
// A program describes what it learns (NewJob), from which data (Samples), and the gradient of a sample (a function of a
// Step). Train does the rest:
//
//	job := trainer.NewJob("films", 1).LR(0.1)
//	job.Table("users", 20000, 8).Normal(0.3)
//	data := trainer.Samples(ratings, 500, 1, func(r rating, k *trainer.Keys) { k.Add("users", r.user) }).Epochs(10)
//	s, err := trainer.Train(ctx, "nats://127.0.0.1:4222", job, data, step, trainer.PrintEpochs)
//	err = s.Save(ctx, "films.safetensors") // OpenModel reads it, without a server
//	err = s.Close()
//
// The example Quickstart is a whole program, and docs/programs.md continues from there. Every trainer of a job runs the
// same program with the same job, and the coordinator assigns its lanes. Data and random numbers of a lane depend on
// (seed, batch, lane) alone, so the weights do not depend on the number of trainers.
//
// # Three forms of a program
//
//	Train           a function of a Step          each sample adds to gradients by name
//	Session.Run     a Workload, or a NetWorkload  names the keys of a lane, and computes it
//	Session.Next    a Batch, from Next to Commit  the program has the loop: Keys, Fetch, Lane, Commit
//
// The last two begin with Join. A program that takes its batches from NextAssigned in place of Next computes whatever
// lanes it is assigned. Session.Run does so, too. Such a session survives lost trainers and servers: it joins the next run
// of the job by itself, and says which batch to compute.
//
// Rows are float32, row-major. Gradients are sums over samples; the library divides once, by the samples of the batch.
//
// # Errors
//
// Every error wraps one of this package, of fabric, or the cause of the context; errors.Is finds it. Most programs need
// three: Refused, which errors.As finds with its Reason, if the coordinator or a shard turned something away;
// ErrServerLost; and ErrJobFailed, if another member ended the job. After any other error than ErrOrder, ErrAgain,
// ErrRewound and those of a lookup the session has ended, and the program calls Abort with the error.
//
// # Limits
//
// Lanes are computed one after another; a workload uses several processors within a lane. The rows of one table and
// batch lie in one buffer, so they must fit into memory.
//
// # What it knows, and what it must not know
//
// The package knows jobs, lanes, frames and subjects. It must not know how a ps works inside, nor what is trained. It
// reads the clock only to wait and to report, and draws random numbers only for the name under which it joins. Its
// README.md describes its files. Package trainer/shuffle assigns the samples of a training set to batches and lanes.
package trainer
