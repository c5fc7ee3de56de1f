package config

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Run runs a command until it ends or is interrupted, and returns the process's exit status: 0, 1 after an error, or 130
// after an interrupt. What went wrong goes to errs as one line that begins with the command's name. The first interrupt
// (Ctrl-C or SIGTERM) ends the context; a second ends the process at once.
func Run(name string, errs io.Writer, execute func(context.Context) error) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	err := execute(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintf(errs, "%s: interrupted\n", name)
		return 130
	}
	fmt.Fprintf(errs, "%s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", "; "))
	return 1
}
