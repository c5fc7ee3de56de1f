// Command ps is the parameter server: an embedded NATS server and the shards of any number of jobs.
//
// It holds flags and wiring only; what it runs is package ps.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"gradbus/config"
)

func main() {
	config.PaceCollector()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	err := command().ExecuteContext(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "ps: interrupted")
		os.Exit(130)
	default:
		fmt.Fprintf(os.Stderr, "ps: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}
