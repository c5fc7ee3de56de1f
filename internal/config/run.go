package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"gradbus/internal/process"
	"gradbus/schema"
)

// Exit is an error that asks for an exit status of its own. Without an error in it nothing is written: all was said.
type Exit struct {
	Status int
	Err    error
}

func (e Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Status)
	}
	return e.Err.Error()
}

func (e Exit) Unwrap() error { return e.Err }

// Run runs a command until it ends or is interrupted, and returns the process's exit status: 0, 1 after an error or
// what an Exit says, or 130 after an interrupt. What went wrong goes to errs as one line that begins with the command's
// name, with nothing in it that a terminal acts upon: errors hold names and texts of others. The first interrupt
// (Ctrl-C, SIGTERM or one of more) ends the context; a second Ctrl-C or SIGTERM ends the process at once, and one of
// more does nothing: a terminal that is closed and its shell both send SIGHUP. What was ignored when the process
// started, as nohup has it, stays ignored.
func Run(name string, errs io.Writer, execute func(context.Context) error, more ...os.Signal) (status int) {
	more = slices.DeleteFunc(slices.Clone(more), signal.Ignored)
	ctx, stop := signal.NotifyContext(context.Background(), append(more, os.Interrupt, syscall.SIGTERM)...)
	defer stop()
	interrupted := context.AfterFunc(ctx, func() {
		if len(more) > 0 { // of none, Ignore would ignore all
			signal.Ignore(more...)
		}
		stop()
	})
	defer interrupted() // which is not the end of execute
	err := execute(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintf(errs, "%s: interrupted\n", name)
		return 130
	}
	status = 1
	var exit Exit
	asked := errors.As(err, &exit)
	if asked {
		status = exit.Status
	}
	if !asked || exit.Err != nil {
		fmt.Fprintf(errs, "%s: %s\n", name, schema.Printable(strings.ReplaceAll(process.AsInvoked(err.Error()), "\n", "; ")))
	}
	return status
}
