package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// bare is a subcommand of ps as a shell would not run it: the ps that a person's shell knows is procps's.
var bare = regexp.MustCompile(
	`(?:^|[^\w./-])(ps (?:status|doctor|runbook|gpu-ack|tap|checkpoints|config print|completion))\b`)

// TestCommandsRun holds documents and texts that programs print to commands that run when they are pasted: ./bin/ps
// status, which process.AsInvoked prints as the program was started.
func TestCommandsRun(t *testing.T) {
	atRoot(t)
	looked := 0
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") && path != "." || path == "build" || path == "bin" ||
			path == "data" || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".md", ".html", ".js", ".yml", ".yaml", ".json", ".sh":
		default:
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		looked++
		for _, wrong := range bareIn(path, data) {
			t.Error(wrong)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if looked < 300 {
		t.Errorf("looked at %d files only", looked)
	}
}

// bareIn lists the commands of a file that do not run. Of Go it looks at strings: comments are not printed.
func bareIn(path string, data []byte) (wrong []string) {
	say := func(at, text string) {
		for _, found := range bare.FindAllStringSubmatch(text, -1) {
			wrong = append(wrong, fmt.Sprintf("%s: %q is procps in a shell: want ./bin/%s", at, found[1], found[1]))
		}
	}
	if filepath.Ext(path) != ".go" {
		for i, line := range strings.Split(string(data), "\n") {
			say(fmt.Sprintf("%s:%d", path, i+1), line)
		}
		return wrong
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
			say(files.Position(text.Pos()).String(), text.Value)
		}
		return true
	})
	return wrong
}
