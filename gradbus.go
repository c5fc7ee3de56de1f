// Package gradbus names the version of the whole; the work is in the folders.
//
//	lane     the fixed tree over the lanes of a batch, along which every sum across trainers runs
//	philox   counter-based random numbers
//	csrc     native kernels behind one C ABI, built by CMake
//	cuda     the only package below that calls C; also the portable Go backend, which is the oracle
//	schema   what travels: manifest, frames and their verifier
//	fabric   how it travels: NATS, windows and acknowledgements
//	nn       layers and losses over a backend
//	ps       the parameter server: shards, coordinator
//	trainer  what a training program imports, and the workloads
//	capi     its session as a library for C, which Python uses, too
//	internal what nobody outside imports: flags and files of settings, test support, the rules of the repository
//	cmd      the commands: flags and wiring
//
// Imports point one way only; internal/rules holds them to its table.
package gradbus

// Version is what --version of every command prints.
const Version = "0.1.0"
