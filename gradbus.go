// Package gradbus holds the version of the project. The code is in the folders:
//
//	lane     the fixed tree over the lanes of a batch, along which every sum across trainers runs
//	philox   counter-based random numbers
//	csrc     native kernels behind one C ABI, built by CMake
//	cuda     the only package below that calls C; also the portable Go backend, which is the oracle
//	schema   messages: manifest, frames and their verifier
//	fabric   transport: NATS, windows and acknowledgements
//	nn       layers and losses over a backend
//	shard    the owner of parameters, a pure state machine
//	ps       the parameter server: shards, coordinator
//	trainer  the package that a training program imports
//	local    a whole job in one process
//	capi     the session as a library for C, which Python uses
//	internal packages that other modules cannot import: flags, settings, test support, the rules of the repository
//	cmd      the commands: flags and wiring
//
// Imports point one way only; internal/rules compares them with its table. docs/ARCHITECTURE.md follows a batch through
// the packages.
package gradbus

// Version is printed by --version of every command.
const Version = "0.2.0"
