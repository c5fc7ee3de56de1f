package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// addressFlag marks flags of addresses, in which NATS takes a user and a password, or a token.
const addressFlag = "gradbus-address"

// Addresses says which flags are addresses of servers. A password in one is for the file of settings alone: whoever
// lists the processes of a machine sees its command lines, and whoever sees a unit or a container its environment.
func Addresses(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		// panics on start-up would be worse than a flag without the check
		_ = flags.SetAnnotation(name, addressFlag, []string{"true"})
	}
}

// HasPassword tells whether one of the addresses, with commas between, has a user, a password or a token in it.
func HasPassword(addresses string) bool {
	for one := range strings.SplitSeq(addresses, ",") {
		if _, after, ok := strings.Cut(one, "://"); ok {
			one = after
		}
		if host, _, _ := strings.Cut(one, "/"); strings.Contains(host, "@") {
			return true
		}
	}
	return false
}

// anyPassword tells whether one of the addresses has a password.
func anyPassword(flags *pflag.FlagSet) (any bool) {
	flags.VisitAll(func(f *pflag.Flag) {
		any = any || f.Annotations[addressFlag] != nil && HasPassword(f.Value.String())
	})
	return any
}

// refusePasswords fails where an address of the command line, or of the environment, which gave those that are given,
// has a password.
func refusePasswords(flags *pflag.FlagSet, given []string) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[addressFlag] == nil || err != nil || !HasPassword(f.Value.String()) {
			return
		}
		where, who := "", ""
		switch {
		case f.Changed:
			where, who = "--"+f.Name, "on a command line every user of this machine sees it"
		case slices.Contains(given, f.Name):
			where, who = variable(f.Name), "in the environment all that this process starts may see it"
		default:
			return
		}
		instead := "put the address into a file for --config, as " + f.Name + ": ADDRESS"
		for _, name := range []string{"token-file", "nats-creds"} {
			if flags.Lookup(name) != nil {
				instead += ", or use --" + name
			}
		}
		err = fmt.Errorf("%s has a password or token in its address, and %s: %s", where, who, instead)
	})
	return err
}
