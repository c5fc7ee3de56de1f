//go:build !linux

package process

import "errors"

// Self names this process; nowhere but on Linux can it be watched.
func Self() string { return "" }

// ErrElsewhere says that a process cannot be watched from here.
var ErrElsewhere = errors.New("processes cannot be watched on this system")

// Watch watches nothing.
func Watch(string, func()) (stop func(), err error) { return nil, ErrElsewhere }
