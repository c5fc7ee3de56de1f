//go:build planted

package planted

var has Defect

// Is reports whether this process has a defect.
func Is(d Defect) bool { return d == has }

// Plant gives this process a defect. It is called before anything else runs.
func Plant(d Defect) { has = d }
