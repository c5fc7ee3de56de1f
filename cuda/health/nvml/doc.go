// Package nvml is the probe: it asks NVIDIA's driver, by its library libnvidia-ml.so.1, and writes what it hears as lines of
// JSON (verdict.Line). It is the only package that knows NVML, and it runs in a process of its own (ps gpu-probe); see package
// health for why.
//
// # What must be kept
//
//   - The library is opened at run time, and its functions are bound when they are first called. One that it lacks ends the
//     process with status 127, so every function is looked up before it is called (has, ask), and none but the library's
//     nvmlInit is called before that has succeeded. For the same reason no program with this package may be linked with
//     -z now, or run with LD_BIND_NOW: docs/operations.md has what the loader says then. Weak references would do, and neither the
//     default linker nor cgo makes any of those of another package.
//   - Errors are not asked for their text: that is a call too.
//   - A poll's line is written by the goroutine that asks, since it is the sign that the driver answers. Events come from
//     another one, at once, also while the first hangs.
//
// A build without cgo, or not for Linux, has no probe; it says so in its only line.
package nvml
