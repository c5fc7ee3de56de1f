package config

import "runtime"

// processorsMin is how many goroutines a server may run at once at least. Go looks for what has arrived on sockets when
// a processor of its scheduler has nothing else to do, or 10 ms after the last time. Where gradients keep all of them
// busy, a request would wait for that long; with more of them than the machine has, one is always waiting for sockets,
// and the kernel runs it at once. Measured on two cores that were busy with other work too, 99 of 100 lookups under
// full load took less than 8.8 ms instead of 13, for 0.1 to 0.2 processor seconds a gigabyte more.
const processorsMin = 4

// PaceScheduler lets a server on a small machine answer requests while gradients keep it busy, unless GOMAXPROCS
// already says something else than the number of processors.
func PaceScheduler() {
	if n := runtime.GOMAXPROCS(0); n == runtime.NumCPU() && n < processorsMin {
		runtime.GOMAXPROCS(processorsMin)
	}
}

// Share is how many goroutines each of so many processes of this host is to run at once, at least one. With more of
// them than cores, every message wakes a thread that finds no core: on two cores 16 trainers that exchange small
// batches did a quarter more of them with one each than with two.
func Share(processes int) int { return max(1, runtime.NumCPU()/max(1, processes)) }

// ShareScheduler gives this process its share of the host's processors, unless GOMAXPROCS already says something else
// than their number.
func ShareScheduler(processes int) {
	if runtime.GOMAXPROCS(0) == runtime.NumCPU() {
		runtime.GOMAXPROCS(Share(processes))
	}
}
