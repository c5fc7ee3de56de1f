package cuda

import (
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Options of Open. The zero value takes the fastest backend of this build that this machine can run.
type Options struct {
	// Name is "auto" (or empty), "go", "cpu" or "cuda". Auto is cpu where the native library is built in, else go. It is
	// never cuda, whose calls in this version have their data in the host's memory; ask for it by name.
	Name string
	// EveryCall has a GPU do every call. Else those that the CPU should end sooner, by their sizes, stay there: most that
	// only move memory, which a GPU gets at by way of the bus. The bits are the same. Batches are a GPU's always.
	EveryCall bool
	// Threads is the number of threads of one call of the cpu backend, including its caller's: at most 256; 0: 1. The
	// results do not depend on it. The go backend always runs on its caller's thread. For cuda it applies to calls that
	// the CPU does, and raises their number.
	Threads int
	// ISA forces an instruction set of the cpu backend: "" (the best), "baseline", "avx2" or "avx512".
	ISA string
	// Library is the path of a shared library, libgradbus.so, from which to take the backend cpu or cuda instead of from
	// the linked one: to run kernels that were compiled elsewhere. It must have been built from the same interface. Empty
	// is what LibraryVariable says.
	Library string
	// Verify is one block in so many of what the backend writes that another backend computes again and compares, as a
	// *Verified does; 0 is none, and VerifyAuto one in 1000 on a GPU and none elsewhere. Close then closes both.
	Verify int
	// VerifySeed makes processes that do the same work check different blocks of it.
	VerifySeed uint64
	// WrongBits is when the backend writes a wrong bit, counted from now on: to show what finds it. Each gets a line in
	// the log, and a *MismatchError says that there was one.
	WrongBits []time.Duration
	// Log, where set, gets one line with what was chosen and why, a warning where that is slow for want of a native
	// library, and one with what verifies it.
	Log *slog.Logger
}

// LibraryVariable is the variable of the environment that gives Options.Library where the program does not: for all of
// a process's backends, and for the processes that it starts.
const LibraryVariable = "GRADBUS_KERNEL_LIBRARY"

func namedLibrary() string { return os.Getenv(LibraryVariable) }

// Names are the values that Options.Name may have.
func Names() []string { return []string{"auto", "go", "cpu", "cuda"} }

// Open gives a backend, or an error that wraps ErrNoBackend or ErrArgument and says what would work. The caller closes
// it.
func Open(o Options) (Backend, error) {
	b, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open backend %q: %w", o.Name, err)
	}
	if o.Log != nil {
		log := o.Log.With("backend", b.Name(), "isa", b.ISA(), "threads", b.Threads(), "reason", reasonOf(b))
		if !nativeBuilt && (o.Name == "" || o.Name == "auto") {
			log.Warn("backend chosen") // the slow one was not asked for
		} else {
			log.Info("backend chosen")
		}
	}
	b = withWrongBits(b, o.WrongBits, o.Log)
	if b, err = verifiedBy(b, o); err != nil {
		return nil, fmt.Errorf("open backend %q: %w", o.Name, err)
	}
	return b, nil
}

// ThreadsMax bounds Options.Threads.
const ThreadsMax = 256

func open(o Options) (Backend, error) {
	if o.Threads < 0 || o.Threads > ThreadsMax {
		return nil, fmt.Errorf("%w: threads %d, want 0 to %d", ErrArgument, o.Threads, ThreadsMax)
	}
	if o.Verify < VerifyAuto {
		return nil, fmt.Errorf("%w: verify %d, want one block in so many, 0 for none, or %d for what suits the backend",
			ErrArgument, o.Verify, VerifyAuto)
	}
	if o.Library == "" && o.Name != "go" && o.Name != "emu" {
		o.Library = namedLibrary()
	}
	switch o.Name {
	case "", "auto":
		if nativeBuilt {
			return openNative("cpu", "auto: the native library is built in", o)
		}
		if o.ISA != "" || o.Library != "" {
			return nil, fmt.Errorf("%w: instruction set %q, library %q: this build has no native code: %s",
				ErrNoBackend, o.ISA, o.Library, howToBuild)
		}
		return &described{newReference(), slowerBy + ": " + howToBuild}, nil
	case "go":
		if o.ISA != "" || o.Library != "" {
			return nil, fmt.Errorf("%w: instruction set %q, library %q: the go backend has none", ErrArgument, o.ISA, o.Library)
		}
		return &described{newReference(), "asked for"}, nil
	case "cpu", "cuda":
		if !nativeBuilt {
			return nil, fmt.Errorf("%w: this build has no native library: %s, or use go", ErrNoBackend, howToBuild)
		}
		return openNative(o.Name, "asked for", o)
	case "emu": // the CUDA kernels run on the CPU, for tests of a build with the tag emu; not in Names
		if emuBuilt {
			return openNative(o.Name, "asked for", o)
		}
	}
	return nil, fmt.Errorf("%w: want one of %q", ErrArgument, Names())
}

const howToBuild = "build with make; or with the tags native,installed after make install (docs/install.md)"

// slowerBy has the two workloads' rates, portable and native, on the same two cores.
const slowerBy = "auto: this build has no native library, which trains tables 1.3 times as fast, and " +
	"convolutions 12 times"

// Describe is one line for a log or a version screen: the backend, its instruction set, and why it was chosen.
func Describe(b Backend) string {
	threads := ""
	if n := b.Threads(); n > 1 {
		threads = fmt.Sprintf(", %d threads", n)
	}
	return fmt.Sprintf("%s (%s%s), %s", b.Name(), b.ISA(), threads, reasonOf(b))
}

func reasonOf(b Backend) string {
	if r, ok := b.(interface{ reason() string }); ok {
		return r.reason()
	}
	return "given by the caller"
}

// described is the portable backend with the reason for its choice.
type described struct {
	*reference
	why string
}

func (d *described) reason() string { return d.why }
