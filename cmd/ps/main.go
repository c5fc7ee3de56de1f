// Command ps is the parameter server: an embedded NATS server and the shards of any number of jobs.
//
// It holds flags and wiring only; what it runs is package ps.
package main

import (
	"os"

	"gradbus/internal/config"
	_ "gradbus/internal/timerslack" // in every process of this program
)

func main() {
	config.PaceCollector()
	config.PaceScheduler()
	os.Exit(config.Run("ps", os.Stderr, command().ExecuteContext))
}
