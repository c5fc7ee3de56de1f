//go:build cgo && linux

package gpu

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var rewrite = flag.Bool("rewrite", false, "write functions.h anew from go-nvml's sources")

// widthMax is that of a line.
const widthMax = 120

// functions.h names every function that go-nvml refers to, but the one whose answer is text: one more would be left to
// the loader.
func TestFunctions(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatalf("find go-nvml: %v", err)
	}
	sources, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(module)), "pkg", "nvml", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range sources {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`\bC\.(nvml\w+)\(`).FindAllStringSubmatch(string(data), -1) {
			names = append(names, match[1])
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == "nvmlErrorString" })
	if len(names) < 300 {
		t.Fatalf("go-nvml refers to %d functions, want more: this test looks at nothing", len(names))
	}
	want := header(names)
	if *rewrite {
		if err := os.WriteFile("functions.h", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("functions.h"); err != nil || string(got) != want {
		t.Errorf("functions.h is not what go-nvml refers to (%v): run go test ./internal/gpu -run Functions -rewrite",
			err)
	}
}

// header gives the text of functions.h.
func header(names []string) string {
	var text strings.Builder
	text.WriteString("// The functions of NVIDIA's library that go-nvml refers to and that answer a status, for " +
		"library.c.\n" +
		"// Written by: go test ./internal/gpu -run Functions -rewrite\n// clang-format off\n")
	line := ""
	for _, name := range names {
		word := "NVML(" + name + ")"
		if len(line)+1+len(word) > widthMax {
			text.WriteString(line + "\n")
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return text.String() + line + "\n"
}

// Before a library is open, and where it lacks a function, a call is answered and does not end the process.
func TestNotFound(t *testing.T) {
	api := nvml.New()
	if _, ret := api.SystemGetDriverVersion(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		t.Errorf("before a library is open: %d, want %d", ret, nvml.ERROR_FUNCTION_NOT_FOUND)
	}
	if err := openLibrary("/nonexistent/libnvidia-ml.so.1"); err == nil ||
		!strings.Contains(err.Error(), "/nonexistent/libnvidia-ml.so.1") {
		t.Errorf("a library that is not there: %v", err)
	}
	if err := openLibrary("libc.so.6"); err != nil { // which is a library
		t.Error(err)
	}
	if _, ret := api.SystemGetDriverVersion(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		t.Errorf("a library without the function: %d, want %d", ret, nvml.ERROR_FUNCTION_NOT_FOUND)
	}
}
