package config

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"gradbus/schema"
)

func TestCommit(t *testing.T) {
	of := func(pairs ...string) *debug.BuildInfo {
		info := new(debug.BuildInfo)
		for pair := range slices.Chunk(pairs, 2) {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: pair[0], Value: pair[1]})
		}
		return info
	}
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{of("vcs.revision", "cafe", "vcs.modified", "false"), "cafe"},
		{of("vcs.modified", "true", "vcs.revision", "cafe"), "cafe (modified)"},
		{of(), "unknown (built outside a checkout, or with -buildvcs=false)"},
	} {
		if got := commit(c.info); got != c.want {
			t.Errorf("commit %q, want %q", got, c.want)
		}
	}
}

func program() (root *cobra.Command, out *strings.Builder) {
	out = new(strings.Builder)
	root = &cobra.Command{Use: "ps", Short: "Serve", RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(&cobra.Command{Use: "status", Short: "Say", RunE: func(*cobra.Command, []string) error { return nil }})
	Program(root, "libgradbus")
	root.SetOut(out)
	return root, out
}

func TestProgramVersion(t *testing.T) {
	var said []string
	for _, word := range []string{"--version", "version"} {
		root, out := program()
		root.SetArgs([]string{word})
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		said = append(said, out.String())
	}
	if said[0] != said[1] || !strings.HasPrefix(said[0], "ps version ") ||
		!strings.Contains(said[0], "\nnative: libgradbus\nwire: 1, protocol "+schema.Fingerprint+"\n") {
		t.Errorf("%q", said)
	}
}

// What the help of a completion tells people to run is this program, not the one that their shell knows by its name.
func TestProgramCompletion(t *testing.T) {
	root, out := program()
	root.SetArgs([]string{"completion", "bash", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "/ps completion bash") || strings.Contains(text, "(ps completion") {
		t.Errorf("%s", text)
	}
}

// Installed beside procps's ps, ours has a name of its own, by which a shell completes it.
func TestProgramInstalled(t *testing.T) {
	defer func(was string) { os.Args[0] = was }(os.Args[0])
	os.Args[0] = "/usr/local/bin/gradbus-ps"
	root, out := program()
	root.SetArgs([]string{"completion", "bash", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); root.Name() != "gradbus-ps" ||
		!strings.Contains(text, "(/usr/local/bin/gradbus-ps completion bash)") {
		t.Errorf("%s: %s", root.Name(), text)
	}
}

func TestProgramMan(t *testing.T) {
	root, _ := program()
	folder := t.TempDir()
	root.SetArgs([]string{"man", folder})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ page, want string }{{"ps", "ps-status(1)"}, {"ps-status", "ps(1)"},
		{"ps-completion-zsh", "completion zsh"}} {
		text, err := os.ReadFile(filepath.Join(folder, c.page+".1"))
		if err != nil || !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), c.want) {
			t.Errorf("%s: %v, want %q in %q", c.page, err, c.want, text)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "ps-man.1")); err == nil {
		t.Error("a page of the hidden command")
	}
	root.SetArgs([]string{"man", filepath.Join(folder, "none")})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "man page: ") {
		t.Errorf("%v", err)
	}
}
