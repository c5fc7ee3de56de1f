package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fileLinesMax is how long a source file may be.
const fileLinesMax = 900

// sources are the repository's own source files, generated ones left out.
func sources(t *testing.T) map[string][]byte {
	t.Helper()
	atRoot(t)
	found := map[string][]byte{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "build", "testdata", "shared"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".h", ".c", ".cc", ".cpp", ".cu", ".cuh", ".py", ".sh":
		default:
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		head, _, _ := bytes.Cut(data, []byte("\n\n"))
		if !bytes.Contains(head, []byte("Code generated")) {
			found[path] = data
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 10 {
		t.Fatalf("found %d source files only", len(found))
	}
	return found
}

func TestStyle(t *testing.T) {
	for path, data := range sources(t) {
		for _, wrong := range styleOf(path, data) {
			t.Error(wrong)
		}
	}
}

// styleOf lists what breaks the house rules in one file.
func styleOf(path string, data []byte) []string {
	var wrong []string
	if lines := bytes.Count(data, []byte("\n")); lines > fileLinesMax {
		wrong = append(wrong, fmt.Sprintf("%s: %d lines, want at most %d", path, lines, fileLinesMax))
	}
	if filepath.Ext(path) != ".go" {
		return wrong
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
	if err != nil {
		return append(wrong, err.Error())
	}
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if function.Name.Name == "init" && function.Recv == nil {
			wrong = append(wrong, fmt.Sprintf("%s: no init functions", files.Position(function.Pos())))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if of, ok := call.X.(*ast.Ident); ok && of.Name == "os" && !strings.HasSuffix(path, "_test.go") &&
			path != "internal/gpu/fake/fake.go" && path != "e2e/plants/main.go" && path != "internal/testkit/testkit.go" && // in folders of tests
			slices.Contains([]string{"Create", "WriteFile"}, call.Sel.Name) {
			wrong = append(wrong, fmt.Sprintf("%s: os.%s follows links and leaves half a file: want atomicfile",
				files.Position(n.Pos()), call.Sel.Name))
		}
		if opensByName(path, call) {
			wrong = append(wrong, fmt.Sprintf("%s: %s.%s waits for the writer of a pipe and has no bound: want regular.Open "+
				"or regular.Read", files.Position(n.Pos()), call.X, call.Sel.Name))
		}
		if of, ok := call.X.(*ast.Ident); ok && of.Name == "os" && !strings.HasSuffix(path, "_test.go") &&
			path != "internal/gpu/monitor.go" && // CUDA's own, which say what it calls its first device
			path != "internal/gpu/state.go" && // the convention of where programs keep state
			path != "cuda/open.go" && // a kernel library is for programs without flags, too
			path != "internal/kernelflag/kernelflag.go" && // whose flag is handed on that way
			path != "internal/config/environment.go" && // the one place where settings come from it
			slices.Contains([]string{"Environ", "Getenv", "LookupEnv", "Setenv", "Unsetenv"}, call.Sel.Name) {
			wrong = append(wrong,
				fmt.Sprintf("%s: no configuration by environment variables but in internal/config/environment.go",
					files.Position(n.Pos())))
		}
		return true
	})
	return wrong
}

// openers are the files that may open a file by its name without internal/regular, and what they open.
var openers = map[string]string{
	"bench/exchange/usage.go":               "/proc",
	"bench/machine/machine.go":              "/proc",
	"bench/machine/processors.go":           "/sys",
	"capi/local.go":                         "a log, for writing",
	"cuda/bench/host.go":                    "/proc",
	"e2e/plants/main.go":                    "its own output",
	"e2e/plants/sites.go":                   "sources of this repository",
	"internal/atomicfile/atomicfile.go":     "files for writing, and folders",
	"internal/gpu/state.go":                 "a lock, for writing, and /proc",
	"internal/process/alive_linux.go":       "/proc",
	"internal/process/process_linux.go":     "/proc",
	"internal/regular/regular.go":           "what it checks",
	"internal/tensorboard/writer.go":        "a new file, for writing",
	"internal/testkit/flagwalk/flagwalk.go": "sources of this repository",
}

// opensByName tells whether a file uses a function that opens whatever has a name.
func opensByName(path string, call *ast.SelectorExpr) bool {
	of, ok := call.X.(*ast.Ident)
	if !ok || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") ||
		openers[path] != "" {
		return false
	}
	return slices.Contains(map[string][]string{
		"os": {"Open", "OpenFile", "ReadFile"}, "tls": {"LoadX509KeyPair"}, "nats": {"UserCredentials"},
	}[of.Name], call.Sel.Name)
}

// Every package says at its top what it is.
func TestPackageComments(t *testing.T) {
	documented := map[string]bool{}
	for path, data := range sources(t) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, data, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		documented[filepath.Dir(path)] = documented[filepath.Dir(path)] || file.Doc != nil
	}
	for folder, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment: say what it knows and what it must not know", folder)
		}
	}
}
