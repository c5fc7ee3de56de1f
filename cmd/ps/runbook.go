package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/docs"
	"gradbus/internal/process"
)

// link is one to a section of the runbooks.
var link = regexp.MustCompile(`\[([^\]]+)\]\(#[^)]+\)`)

func runbookCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "runbook [CODE]",
		Short: "Explain a problem code and what to do about it",
		Long: `Explain a problem code that ps reports: what it means, what to check and what to do. The page of every ps has the same
text at /runbooks. Without a code, the command lists all codes.`,
		Example: `  ./bin/ps runbook
  ./bin/ps runbook trainer-silent`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				list, _, _ := strings.Cut(docs.Runbooks(), "\n## ")
				_, err := io.WriteString(c.OutOrStdout(), link.ReplaceAllString(list, "$1"))
				return err
			}
			text, ok := docs.Runbook(args[0])
			if !ok {
				return fmt.Errorf("no runbook %q: ./bin/ps runbook lists those that there are", args[0])
			}
			_, err := io.WriteString(c.OutOrStdout(), process.AsInvoked(text))
			return err
		},
	}
}
