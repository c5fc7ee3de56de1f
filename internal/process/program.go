package process

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// AsInvoked is a text in which commands are written as documents write them, ./bin/ps status, with each as Invoked
// gives it. What a program prints for people goes through it where it leaves the program.
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

// Invoked is one of gradbus's programs as a shell of whoever started this one finds it: ./bin/ps for a process that was
// started as ./bin/trainer, or ps where that was found through PATH. Texts that tell a person what to run use it: where
// nothing else is said, the ps that a shell knows is another.
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
