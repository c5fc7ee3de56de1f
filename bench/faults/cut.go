package faults

import (
	"os"
	"os/signal"
	"syscall"
)

// cutSignal has a trainer lose its connections.
const cutSignal = syscall.SIGUSR1

// connectionsMax is the number of the highest file that may be a connection of a trainer, which opens few.
const connectionsMax = 1024

// cutWhenTold cuts the connections of this process at each cutSignal, until stop is called.
func cutWhenTold() (stop func()) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, cutSignal)
	go func() {
		for range told {
			cutConnections()
		}
	}()
	return func() {
		signal.Stop(told)
		close(told)
	}
}

// cutConnections ends all connections of this process, as both of their ends see it, regardless of their owner.
func cutConnections() {
	for file := 3; file < connectionsMax; file++ {
		if _, err := syscall.Getpeername(file); err == nil { // else it is none
			_ = syscall.Shutdown(file, syscall.SHUT_RDWR)
		}
	}
}
