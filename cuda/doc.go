// Package cuda is the arithmetic of gradbus: bags of embedding rows, sums of sparse and dense gradients, the optimizer,
// and the few dense operations that the layers of package nn need. It is the only package that imports "C".
//
// It knows pointers, lengths and the order of additions. It must not know of jobs, batches, buckets, frames or members.
// The one word it shares with the rest is the lane tree (package lane), since sums across lanes run along it.
//
// # Backends
//
// Three backends implement the interface Backend: "go" (reference.go and its neighbours: portable, always there), "cpu"
// (csrc/cpu, one copy per instruction set) and "cuda" (csrc/cuda). The last two need the build tag native and the
// library that CMake builds. Open chooses one, and Describe says which and why.
//
// # Calls, batches, streams
//
// A call of a native backend crosses into C once, which costs about as much as adding up a few rows. Where many small
// operations belong together, a Batch keeps them encoded and Submit runs them all in one crossing, without allocating.
// A call of the backend "cuda" is done on the GPU or on the CPU, wherever it should end sooner (native_work.go). A
// batch is always the GPU's. What the GPU cannot reach is copied there and back. A Stream runs batches on memory that
// stays there, beside the caller.
//
// # Verification
//
// Verify puts a second backend beside one: of what it writes, sums and optimizer steps, one block in so many is
// computed again and compared bit by bit, since the backends agree. A result that differs is an error that says where,
// and must not be used.
//
// # Dense layers
//
// OpenDense gives the operations of layers beside a backend: matrix products and convolutions by a library made for
// them, whose bits are its own and whose name goes into a job's manifest, and pooling, ReLU, softmax and the like,
// which have the same bits everywhere. The library "own" is the backend's MatMul: slow, canonical, always there.
//
// # Canonical order
//
// All backends give the same bits, which is why a job's result does not depend on who computed what. The rules:
//
//   - All arithmetic is float32; what is stored in 16 bits is rounded once, when it is stored. A product is rounded
//     before
//     it is added (in Go: float32(a*b) + c, since the compiler may fuse otherwise). Division is true division. Nothing is
//     flushed to zero.
//   - A sum of n terms runs in blocks of 64 terms, counted from the segment's own start; 64 blocks are a superblock;
//     the superblocks are added in sequence. Each of the three levels starts from +0, so a sum is never -0.
//   - Terms of one segment come in order of position.
//   - Across lanes, sums run along the lane tree. A node with one present child is that child: nothing is added to it.
//   - exp and log are the fixed polynomials of math.go.
//
// One thing is left open: which NaN. The sign and payload of a NaN differ between processors, so two NaNs count as
// equal.
//
// # For a newcomer
//
// A new operation goes into the interface in cuda.go, into a check file (its argument rules: shape, then data), into a
// reference file, and then into csrc/. The tests run every backend through the same body: start with a vector that can
// be checked by hand (features_test.go), go on with a naive second implementation and random arguments
// (bits_*_test.go), say what is refused (refuse_*_test.go), and let property_test.go draw calls of it, right and wrong.
// Do not change the order of an existing sum: old checkpoints and other backends rely on it.
package cuda
