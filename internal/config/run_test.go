//go:build unix

package config

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

func TestRun(t *testing.T) {
	interrupted := func(ctx context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	hungUp := func(ctx context.Context) error { // by a terminal, and by its shell
		for range 2 {
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				return err
			}
			<-ctx.Done()
		}
		return ctx.Err()
	}
	for _, c := range []struct {
		name    string
		execute func(context.Context) error
		status  int
		says    string
	}{
		{"well", func(context.Context) error { return nil }, 0, ""},
		{"wrong", func(context.Context) error { return errors.New("port taken\nby another") }, 1,
			"ps: port taken; by another\n"},
		{"another's name", func(context.Context) error { return errors.New("job \x1b]0;a\x07\u009b2J\u202e: gone\r") }, 1,
			"ps: job ?]0;a??2J?: gone \n"},
		{"another's status", func(context.Context) error { return Exit{3, errors.New("no \x1b[31m")} }, 3, "ps: no ?[31m\n"},
		{"interrupted", interrupted, 130, "ps: interrupted\n"},
		{"hung up", hungUp, 130, "ps: interrupted\n"},
	} {
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, syscall.SIGHUP) // what started the test may ignore it, and so does Run in the end
		var errs bytes.Buffer
		if status := Run("ps", &errs, c.execute, syscall.SIGHUP); status != c.status || errs.String() != c.says {
			t.Errorf("%s: status %d and %q, want %d and %q", c.name, status, errs.String(), c.status, c.says)
		}
		signal.Stop(heard)
	}
}
