//go:build !native

package cuda

// backendOptions lists the backends that the tests run on.
func backendOptions() []Options { return []Options{{Name: "go"}} }
