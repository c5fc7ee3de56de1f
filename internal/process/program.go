package process

import (
	"os"
	"path/filepath"
	"strings"
)

// Invoked is one of gradbus's programs as a shell of whoever started this one finds it: ./bin/ps for a process that was started as
// ./bin/trainer, or ps where that was found through PATH. Texts that tell a person what to run use it: where nothing else is said, the
// ps that a shell knows is another.
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
