// Command ps is the parameter server: an embedded NATS server and the shards of any number of jobs.
//
// It holds flags and wiring only; what it runs is package ps.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "ps: %v\n", err)
		os.Exit(1)
	}
}
