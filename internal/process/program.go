package process

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// AsInvoked replaces the commands in a text, in the form of documents (./bin/ps status), by the form of Invoked. Text
// that a program prints for people passes through it.
func AsInvoked(text string) string { return asInvoked(os.Args[0], text) }

// written is a command as documents write it. What stands before it is no part of a path, so that ../bin/ps stays what
// it is.
var written = regexp.MustCompile(`(^|[^\w./-])\./bin/(psbench|trainer|ps)\b`)

func asInvoked(arg, text string) string {
	return written.ReplaceAllStringFunc(text, func(found string) string {
		before, name, _ := strings.Cut(found, "./bin/")
		return before + invoked(arg, name)
	})
}

// Invoked returns a program of gradbus in the form in which the user's shell finds it: ./bin/ps for a process that was
// started as ./bin/trainer, or ps if that was found through PATH. Texts that tell a person what to run use it, because
// a shell otherwise finds the ps of procps.
func Invoked(program string) string { return invoked(os.Args[0], program) }

// invoked is Invoked for a process that was started as arg.
func invoked(arg, program string) string {
	folder, own := filepath.Split(arg)
	prefix := "" // as in gradbus-ps, for those who install it beside the other
	for _, name := range []string{"psbench", "trainer", "ps"} {
		if before, ok := strings.CutSuffix(own, name); ok {
			prefix = before
			break
		}
	}
	path := folder + prefix + strings.TrimPrefix(program, prefix)
	if strings.ContainsAny(path, " \t'\"\\$`&|;<>()*?[]#~!{}") {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}
