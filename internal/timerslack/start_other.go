//go:build !linux

package timerslack

// Standard runs start. Processes have no slack to inherit here.
func Standard(start func() error) error { return start() }
