// Package monitor watches the GPUs of this machine for whoever computes on them or shows them.
//
// # The child process
//
// Calls of NVIDIA's driver may hang for ever. So nothing in a ps or trainer ever calls it. A child process does, the
// probe (internal/health/nvml, run as ps gpu-probe), which writes what it hears as lines of JSON. A Monitor runs the
// probe (child.go, run.go), feeds its lines to the decisions of internal/health, and answers from memory: its methods
// never wait for the driver.
//
// A probe that says nothing for eight seconds makes all GPUs Unknown; after three times that it is killed and another
// one started, with growing pauses. One that hangs in the kernel cannot be killed: it is left behind, at most three of
// them, and its end is waited for by a goroutine that holds nothing else. A probe ends by itself when its standard
// input does, so that none is left over where its parent was killed.
//
// inject.go makes faults up, on GPUs that are there or, on a machine without a driver, on ones that are made up too and
// say so in their names. What follows from a fault is the same as if it were real, and marked as injected everywhere.
//
// # What follows from a state
//
// Take and May are asked before a GPU is used. Suspect says whether memory was wrong in some time, for whoever saves
// results of it. Config.OnChange tells of every change; Change.Restart there says that what runs on the GPU must end.
//
// # What outlives the process
//
// A restart would make a broken GPU count as well, and a XID that ends the process could never come twice. So what must
// be remembered is in a file (package keep), shared by all processes of a user on a machine. A goroutine of its own
// (kept.go) reads it before the first word on a GPU, looks once a second whether it has changed, and writes what is
// new. Nothing waits for it but the end, and that for half a minute. A file that cannot be read or written is one
// warning, and NotKept.
//
// # What it leaves out
//
// A probe is not confined: it has the rights of its parent.
package monitor
