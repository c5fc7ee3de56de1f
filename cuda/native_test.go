//go:build native

package cuda

// backendOptions lists the backends that the tests run on: go, and the cpu backend's instruction sets that this
// machine has.
func backendOptions() []Options {
	all := []Options{{Name: "go"}, {Name: "cpu", ISA: "baseline"}}
	for _, isa := range []string{"avx2", "avx512"} {
		if b, err := Open(Options{Name: "cpu", ISA: isa}); err == nil {
			b.Close()
			all = append(all, Options{Name: "cpu", ISA: isa})
		}
	}
	return all
}
