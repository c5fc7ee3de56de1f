// Package gradbus names the version of the whole; the work is in the folders.
//
//	lane     the fixed tree over the lanes of a batch, along which every sum across trainers runs
//	philox   counter-based random numbers
//	csrc     native kernels behind one C ABI, built by CMake
//	cuda     the only package that calls C; also the portable Go backend, which is the oracle
//	schema   what travels: manifest, frames and their verifier
//	atomicfile  files that appear whole or not at all
//	process  what a process takes of its machine
//	fabric   how it travels: NATS, windows and acknowledgements
//	nn       layers and losses over a backend
//	ps       the parameter server: shards, coordinator
//	trainer  what a training program imports, and the workloads
//	config   a YAML file merged under a command's flags
//	cmd      the commands: flags and wiring
//
// Imports point one way only; the test beside this file holds them to the table that it contains.
package gradbus

// Version is what --version of every command prints.
const Version = "0.1.0"
