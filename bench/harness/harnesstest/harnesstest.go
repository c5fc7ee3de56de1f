// Package harnesstest lets the program of a test be the members of a harness.
//
// It knows package harness. It must not know any system.
package harnesstest

import (
	"context"
	"os"
	"path/filepath"

	"gradbus/bench/harness"
	"gradbus/internal/config"
)

// ExitIfMember runs a member and ends the process where this process is one: a test program that was started again.
func ExitIfMember(roles map[string]harness.Role) {
	if len(os.Args) == 2 && os.Args[1] == harness.ChildArgument {
		os.Exit(config.Run(filepath.Base(os.Args[0]), os.Stderr, func(ctx context.Context) error {
			return harness.Child(ctx, roles, os.Stdin, os.Stdout)
		}))
	}
}
