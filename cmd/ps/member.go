package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/fabric"
	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
	"gradbus/ps/members"
)

// newMember is the flags of member new.
type newMember struct {
	role, file, credentials string
	jobs                    []string
}

func memberCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "member",
		Short: "Make credentials for the members of --members",
	}
	c.AddCommand(newMemberCommand())
	return c
}

func newMemberCommand() *cobra.Command {
	var n newMember
	c := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a key, and add a member with it to a members file",
		Long: `Make a key, and add a member with it to a members file.

The seed is secret: it goes to a file of mode 0600 that the member shows with --credentials. The members file has only the
public half. A ps that runs reads its members file again on SIGHUP. To revoke a member, remove its line and send SIGHUP.

A trainer joins the jobs of --jobs, holds slots in them and hears nothing else. An operator may drain any ps, continue any
job (takeover) and scale its learning rates. A ps may do everything.`,
		Example: `  ./bin/ps member new node-1 --role trainer --jobs films
  ./bin/ps member new anna --role operator --members /etc/gradbus/members --credentials anna.key`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%d arguments: want the name of one member", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return n.run(args[0], c.OutOrStdout()) },
	}
	set := c.Flags()
	set.SortFlags = false
	set.StringVar(&n.role, "role", string(members.Trainer), "`ROLE`: trainer, ps or operator")
	set.StringSliceVar(&n.jobs, "jobs", nil, "`NAMES`: jobs of a trainer, separated by commas; * is every job")
	set.StringVar(&n.file, "members", "members", "`PATH`: members file, made if it is not there")
	set.StringVar(&n.credentials, "credentials", "", "`PATH`: new file for the seed; default is NAME.key")
	return c
}

func (n *newMember) run(name string, out io.Writer) error {
	key, err := fabric.NewKey()
	if err != nil {
		return err
	}
	seed, err := key.Seed()
	if err != nil {
		return err
	}
	m := members.Member{Role: members.Role(n.role), Name: name, Key: key.Public(), Jobs: n.jobs}
	if err := m.Check(); err != nil {
		return err
	}
	if n.credentials == "" {
		n.credentials = name + ".key"
	}
	before, err := regular.Read(n.file, 1<<20)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("members: %w", err)
	}
	text := string(before)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	text += m.Line() + "\n"
	if _, err := members.Parse(text); err != nil {
		return fmt.Errorf("members %s: %w", n.file, err)
	}
	if _, err := os.Lstat(n.credentials); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("credentials %s: there is such a file already: want another name", n.credentials)
	}
	if err := write(n.credentials, 0o600, seed+"\n"); err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	if err := write(n.file, 0o644, text); err != nil { // a ps of another user reads it
		return fmt.Errorf("members: %w", err)
	}
	fmt.Fprintf(out, "%s: %s, added to %s; its secret seed is in %s\n", name, n.role, n.file,
		n.credentials)
	return nil
}

func write(path string, mode os.FileMode, text string) error {
	return atomicfile.Write(path, mode, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}
