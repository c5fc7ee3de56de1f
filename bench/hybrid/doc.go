// Package hybrid measures a model whose embeddings are on servers and whose dense part every trainer keeps: the rows of
// servers are pooled there, and dense gradients are all-reduced between the trainers.
//
// Servers are ps processes of one shard each, trainers are processes of their own (package bench/harness). One server
// is the control server of the others. A trainer asks all servers at once for what its batch pools, computes the dense
// part, and sends the gradients of the bags back to all servers while the trainers add their dense gradients up among
// themselves.
//
// config.go is what can be set, job.go the manifest that follows from it. hybrid.go has the driver, the batches, the
// role of a trainer and what is printed.
//
// It knows packages trainer and nn as any training program does. It must not know package ps but through bench/harness.
package hybrid
