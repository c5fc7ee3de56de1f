package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLogKeys holds the keys of all log records to the table of docs/logs.md: one thing has one name, and what the
// table promises is logged. Keys of things that it does not have are free.
func TestLogKeys(t *testing.T) {
	atRoot(t)
	documented, instead := map[string]bool{}, map[string]string{}
	text, err := os.ReadFile("docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([a-z_]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+) \\|.*\\| ([a-z_`, ]*) ?\\|$").FindAllStringSubmatch(
		string(text), -1) {
		for _, n := range name.FindAllStringSubmatch(row[1], -1) {
			documented[n[1]] = true
		}
		for _, n := range name.FindAllStringSubmatch(row[2], -1) {
			instead[n[1]] = row[1]
		}
	}
	if len(documented) < 15 || len(instead) < 9 {
		t.Fatalf("read keys %v and others %v from docs/logs.md", documented, instead)
	}
	used := map[string]string{} // first place by key
	files := token.NewFileSet()
	err = filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") && path != "." || path == "build" || path == "bin" ||
			path == "data"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for key, at := range logKeys(file) {
			if used[key] == "" {
				used[key] = files.Position(at).String()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(used) < 10 {
		t.Fatalf("found the keys %v only", slices.Sorted(maps.Keys(used)))
	}
	for key, at := range used {
		if is := instead[key]; is != "" && !documented[key] {
			t.Errorf("%s: key %q: docs/logs.md calls that %s", at, key, is)
		}
	}
	for key := range documented {
		if used[key] == "" {
			t.Errorf("docs/logs.md has key %q, which nothing logs", key)
		}
	}
}

// logKeys are the literal keys of the log records that a file makes.
func logKeys(file *ast.File) map[string]token.Pos {
	keys := map[string]token.Pos{}
	from := map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0, "Log": 3}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		first, ok := from[method.Sel.Name]
		if !ok || len(call.Args) < first+2 {
			return true
		}
		for i := first; i+1 < len(call.Args); i += 2 {
			if literal, ok := call.Args[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if key, err := strconv.Unquote(literal.Value); err == nil {
					keys[key] = literal.Pos()
				}
			}
		}
		return true
	})
	return keys
}
