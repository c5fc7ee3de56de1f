//go:build native

package cuda

import (
	"cmp"
	"errors"
	"strings"
	"testing"
)

// backendOptions lists the backends that the tests run on: go, and the cpu backend's instruction sets that this
// machine has. The tag emu adds the CUDA kernels, emulated.
func backendOptions() []Options {
	all := []Options{{Name: "go"}, {Name: "cpu", ISA: "baseline"}}
	for _, isa := range []string{"avx2", "avx512"} {
		if b, err := Open(Options{Name: "cpu", ISA: isa}); err == nil {
			b.Close()
			all = append(all, Options{Name: "cpu", ISA: isa})
		}
	}
	if emuBuilt {
		all = append(all, Options{Name: "emu"})
	}
	if b, err := Open(Options{Name: "cuda"}); err == nil {
		b.Close()
		all = append(all, Options{Name: "cuda"})
	}
	return all
}

// TestInstructionSets says which instruction sets the other tests left out because this machine lacks them.
func TestInstructionSets(t *testing.T) {
	for _, o := range []Options{{Name: "cpu", ISA: "avx2"}, {Name: "cpu", ISA: "avx512"}, {Name: "cuda"}} {
		b, err := Open(o)
		if err != nil {
			leftOut(t, cmp.Or(o.ISA, o.Name), err)
			if !errors.Is(err, ErrNoBackend) {
				t.Errorf("open %+v: %v, want ErrNoBackend", o, err)
			}
			continue
		}
		if o.ISA != "" && b.ISA() != o.ISA {
			t.Errorf("asked for %s, got %s", o.ISA, b.ISA())
		}
		must(t, b.Close())
	}
}

func TestClosed(t *testing.T) {
	b, err := Open(Options{Name: "cpu"})
	must(t, err)
	must(t, b.Close())
	must(t, b.Close())
	if err := b.ApplyDense(ApplyDense{Weight: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed backend answered %v", err)
	}
}

func TestStamp(t *testing.T) {
	if len(nativeStamp()) != 64 || strings.Trim(nativeStamp(), "0123456789abcdef") != "" {
		t.Errorf("stamp %q is no SHA-256", nativeStamp())
	}
	if emuBuilt == (emuStamp() == "") {
		t.Errorf("emulation %v, but its stamp is %q", emuBuilt, emuStamp())
	}
}
