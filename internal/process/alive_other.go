//go:build !linux

package process

import "errors"

// Self returns "": a process can be watched on Linux only.
func Self() string { return "" }

// ErrElsewhere reports that a process cannot be watched from here.
var ErrElsewhere = errors.New("processes cannot be watched on this system")

// Watch watches nothing.
func Watch(string, func()) (stop func(), err error) { return nil, ErrElsewhere }
