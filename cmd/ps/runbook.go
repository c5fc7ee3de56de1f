package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gradbus/docs/runbooks"
	"gradbus/internal/process"
)

func runbookCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "runbook [CODE]",
		Short: "Say what to do about a problem that ps names, by its code",
		Long: `Say what to do about a problem that ps names, by its code: what it means, what to look at, what to do. The same pages are at
/runbooks/ of every ps. Without a code, all of them are listed.`,
		Example: `  ./bin/ps runbook
  ./bin/ps runbook trainer-silent`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listRunbooks(c.OutOrStdout())
			}
			text, ok := runbooks.Text(args[0])
			if !ok {
				return fmt.Errorf("no runbook %q: ./bin/ps runbook lists those that there are", args[0])
			}
			_, err := io.WriteString(c.OutOrStdout(), process.AsInvoked(text))
			return err
		},
	}
}

func listRunbooks(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, name := range runbooks.Names() {
		text, _ := runbooks.Text(name)
		fmt.Fprintf(w, "%s\t%s\n", name, runbooks.Title(text))
	}
	return w.Flush()
}
