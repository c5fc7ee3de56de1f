package cuda

import (
	"fmt"
	"log/slog"
)

// Options of Open. The zero value takes the fastest backend of this build that this machine can run.
type Options struct {
	// Name is "auto" (or empty), "go", "cpu" or "cuda". Auto is cpu where the native library is built in, else go. It is
	// never cuda, whose calls in this version copy their arguments to the device and back; ask for it by name.
	Name string
	// Threads is how many threads one call may use; 0 is 1. In this version every call runs on its caller's thread, so
	// other values are refused.
	Threads int
	// ISA forces an instruction set of the cpu backend: "" (the best), "baseline", "avx2" or "avx512".
	ISA string
	// Log, where set, gets one line with what was chosen and why.
	Log *slog.Logger
}

// Names are the values that Options.Name may have.
func Names() []string { return []string{"auto", "go", "cpu", "cuda"} }

// Open gives a backend, or an error that wraps ErrNoBackend or ErrArgument and says what would work. The caller closes it.
func Open(o Options) (Backend, error) {
	b, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open backend %q: %w", o.Name, err)
	}
	if o.Log != nil {
		o.Log.Info("backend chosen", "backend", b.Name(), "isa", b.ISA(), "reason", reasonOf(b))
	}
	return b, nil
}

func open(o Options) (Backend, error) {
	if o.Threads < 0 || o.Threads > 1 {
		return nil, fmt.Errorf("%w: threads %d, want 0 or 1 in this version", ErrArgument, o.Threads)
	}
	switch o.Name {
	case "", "auto":
		if nativeBuilt {
			return openNative("cpu", o.ISA, "auto: the native library is built in")
		}
		if o.ISA != "" {
			return nil, fmt.Errorf("%w: instruction set %q needs the native library: %s", ErrNoBackend, o.ISA, howToBuild)
		}
		return &described{newReference(), "auto: this build has no native library (" + howToBuild + ")"}, nil
	case "go":
		if o.ISA != "" {
			return nil, fmt.Errorf("%w: instruction set %q is for the cpu backend, go has none", ErrArgument, o.ISA)
		}
		return &described{newReference(), "asked for"}, nil
	case "cpu", "cuda":
		if !nativeBuilt {
			return nil, fmt.Errorf("%w: this build has no native library: %s, or use go", ErrNoBackend, howToBuild)
		}
		return openNative(o.Name, o.ISA, "asked for")
	case "emu": // the CUDA kernels run on the CPU, for tests of a build with the tag emu; not in Names
		if emuBuilt {
			return openNative(o.Name, o.ISA, "asked for")
		}
	}
	return nil, fmt.Errorf("%w: want one of %q", ErrArgument, Names())
}

const howToBuild = "build it with make, which sets the tag native"

// Describe is one line for a log or a version screen: the backend, its instruction set, and why it was chosen.
func Describe(b Backend) string {
	return fmt.Sprintf("%s (%s), %s", b.Name(), b.ISA(), reasonOf(b))
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
