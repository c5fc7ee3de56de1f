// Package trainer makes a program a trainer of a job and runs the job's batches.
//
// A program describes what it learns (NewJob), the data that it learns from (Samples), and how the gradient of a sample
// is computed (a function of a Step). Train does the rest:
//
//	job := trainer.NewJob("films", 1).LR(0.1)
//	job.Table("users", 20000, 8).Normal(0.3)
//	data := trainer.Samples(ratings, 500, 1, func(r rating, k *trainer.Keys) { k.Add("users", r.user) }).Epochs(10)
//	s, err := trainer.Train(ctx, "nats://127.0.0.1:4222", job, data, step, trainer.PrintEpochs)
//	err = s.Save(ctx, "films.safetensors") // OpenModel reads it, without a server
//	err = s.Close()
//
// The example Quickstart is a whole program, and docs/programs.md continues from there. Every trainer of a job runs the
// same program with the same job. The coordinator assigns lanes, which are slices of every batch, to the trainers. The
// data and random numbers of a lane depend on (seed, batch, lane) alone, so the weights do not depend on the number of
// trainers.
//
// # Three forms of a program
//
//	Train           a function of a Step          adds the gradients of each sample by name
//	Session.Run     a Workload, or a NetWorkload  names the keys of a lane, then computes the lane
//	Session.Next    a Batch, from Next to Commit  owns the loop: Keys, Fetch, Lane, Commit
//
// The last two forms begin with Join. A program that calls NextAssigned instead of Next computes any lanes that it is
// assigned. Its session, like that of Session.Run, survives lost trainers and servers: it joins the next run of the job
// by itself and returns the batch to compute.
//
// # Gradients
//
// Rows and parameters are float32, row-major. Gradients are sums over samples, never divided by the program. The
// library adds the gradients of all lanes and divides each sum once: by the number of samples in the batch, or, for a
// table with PerRow, by the number of times that the lanes name the row's key. See schema.Optimizer for modes other
// than sync.
//
// # Errors
//
// Every error wraps an error of this package, an error of package fabric, or the cause of the context. Most programs
// check three: Refused, whose Reason tells why the coordinator or a shard refused a request; ErrServerLost; and
// ErrJobFailed, when the job was ended for all of its trainers.
//
// The session continues after ErrOrder, ErrAgain and ErrRewound, after ErrWorkload from Distinct, Lookup or LookupInto,
// and after a Refused from ScaleLR, Checkpoint or a Module. After any other error the session has ended, and the program
// calls Abort with the error.
//
// # Limits
//
// Lanes are computed one after another; a workload can use several processors within a lane. The rows that a batch uses
// of one table lie in one buffer, which must fit into memory.
//
// Package trainer/shuffle assigns the samples of a training set to batches and lanes. README.md describes the package's
// files for contributors.
package trainer
