//go:build !planted

package planted

// Is reports whether this process has a defect: it has none.
func Is(Defect) bool { return false }
