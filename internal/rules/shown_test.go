package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// command is one that a document shows: its words, and the folder that it is run in.
type command struct {
	folder string
	words  []string
}

func (c command) String() string { return strings.Join(c.words, " ") }

var (
	assigned = regexp.MustCompile(`^[A-Z][A-Z_0-9]*=`)
	between  = regexp.MustCompile(`\s*(?:&&|\|\||[;|]|&$|& )\s*`)
	comment  = regexp.MustCompile(`(^|\s)#\s.*$`)
)

// shown are the commands in a document's blocks of sh and console, and those in its code spans that are ours or a flag.
func shown(document string) []command {
	var all []command
	for _, b := range blocks(document) {
		switch {
		case b.kind == code && (b.words == "sh" || b.words == "console"):
			folder := "."
			for _, line := range strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n") {
				if line, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok || b.words == "sh" {
					var found []command
					found, folder = commandsOf(line, folder)
					all = append(all, found...)
				}
			}
		case b.kind != code:
			for _, s := range span.FindAllString(b.text, -1) {
				words := strings.Fields(strings.Trim(s, "`"))
				if len(words) > 0 && (strings.HasPrefix(words[0], "--") || program(words[0]) != "") {
					all = append(all, command{folder: ".", words: words})
				}
			}
		}
	}
	return all
}

// commandsOf are those of one line of a shell, and the folder that the next line is run in.
func commandsOf(line, folder string) ([]command, string) {
	var all []command
	for _, part := range between.Split(comment.ReplaceAllString(line, ""), -1) {
		words := strings.Fields(part)
		for len(words) > 0 && (assigned.MatchString(words[0]) || words[0] == "sudo" || words[0] == "env" ||
			words[0] == "time") {
			words = words[1:]
		}
		if len(words) > 3 && words[0] == "nice" {
			words = words[3:]
		}
		if len(words) == 0 {
			continue
		}
		all = append(all, command{folder: folder, words: words})
		if words[0] == "cd" && len(words) > 1 {
			folder = path.Join(folder, words[1])
		}
	}
	return all, folder
}

// program is the name of the command of ours that a word is, or "".
func program(word string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(word, "./"), "bin/")
	if strings.HasPrefix(word, "./bin/") || strings.HasPrefix(word, "bin/") ||
		name == word && slices.Contains([]string{"ps", "trainer", "psbench"}, word) {
		return name
	}
	return ""
}

// commands are what this repository has to run.
type commands struct {
	flags   map[string]map[string]bool // by command; "" has those of packages that several commands use
	below   map[string]map[string]bool // commands of a command, by its name
	targets map[string]bool            // of make
	folders map[string]bool            // at the top
}

var (
	declares = regexp.MustCompile(
		`^(String|Bool|Int|Int64|Uint|Uint32|Uint64|Float32|Float64|Duration|StringArray|StringSlice|Text|Count|Func|BoolFunc)?(Var)?P?F?$`)
	tagged     = regexp.MustCompile("`flag:\"([a-z0-9-]+)\"")
	flagName   = regexp.MustCompile(`^[a-z][a-z0-9-]+$`)
	flagWord   = regexp.MustCompile(`^--([a-z][a-z0-9-]*)`)
	uses       = regexp.MustCompile(`\bUse:\s+"([a-z-]+)`)
	subcommand = regexp.MustCompile(`^[a-z][a-z-]+$`)
	rule       = regexp.MustCompile(`(?m)^([a-z][a-z -]*):`)
)

func readCommands(t *testing.T) commands {
	t.Helper()
	known := commands{flags: map[string]map[string]bool{"": {"help": true, "version": true}},
		below: map[string]map[string]bool{}, targets: map[string]bool{}, folders: map[string]bool{}}
	for file, data := range sources(t) {
		if filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		of := ""
		if folder, ok := strings.CutPrefix(file, "cmd/"); ok {
			of, _, _ = strings.Cut(folder, "/")
		} else if strings.HasPrefix(file, "bench/") {
			of = "psbench"
		}
		if known.flags[of] == nil {
			known.flags[of] = map[string]bool{}
		}
		if known.below[of] == nil {
			known.below[of] = map[string]bool{"help": true, "completion": true}
		}
		for _, m := range uses.FindAllSubmatch(data, -1) {
			known.below[of][string(m[1])] = true
		}
		maps.Copy(known.flags[of], declared(t, file, data))
		for _, m := range tagged.FindAllSubmatch(data, -1) {
			known.flags[of][string(m[1])] = true
		}
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range rule.FindAllStringSubmatch(string(makefile), -1) {
		for _, target := range strings.Fields(m[1]) {
			known.targets[target] = true
		}
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"bin", "build", "data"}, e.Name()) {
			known.folders[e.Name()] = true
		}
	}
	if len(known.flags["ps"]) < 20 || len(known.flags["trainer"]) < 20 || len(known.targets) < 8 {
		t.Fatalf("found the flags and targets %v only", known)
	}
	return known
}

// declared are the names of flags that a file declares.
func declared(t *testing.T, name string, data []byte) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	add := func(e ast.Expr) {
		if literal, ok := e.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil && flagName.MatchString(text) {
				found[text] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if named, ok := n.(*ast.ValueSpec); ok && strings.HasSuffix(named.Names[0].Name, "Flag") && len(named.Values) == 1 {
			add(named.Values[0])
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if method, ok := call.Fun.(*ast.SelectorExpr); !ok || !declares.MatchString(method.Sel.Name) || len(call.Args) < 3 {
			return true
		}
		for _, arg := range call.Args[:2] {
			add(arg)
		}
		return true
	})
	return found
}

// check lists what of a command does not exist.
func (known commands) check(c command) []string {
	var wrong []string
	first := c.words[0]
	name := program(first)
	switch {
	case name != "":
		if known.flags[name] == nil {
			return []string{"no command " + name}
		}
		if len(c.words) > 1 && first != name { // a bare ps may be procps's, or a word of a message
			wrong = append(wrong, known.checkBelow(name, c.words[1])...)
		}
	case first == "make":
		for _, w := range c.words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") && !known.targets[w] {
				wrong = append(wrong, "make has no target "+w)
			}
		}
	}
	for i, w := range c.words {
		w = strings.Trim(w, `"'(),`)
		top, _, below := strings.Cut(strings.TrimPrefix(w, "./"), "/")
		ours := strings.HasPrefix(w, "./") && name == "" && top != "bin" || known.folders[top]
		at := path.Join(c.folder, strings.TrimSuffix(w, "/..."))
		if (below || strings.HasPrefix(w, "./")) && ours && !strings.ContainsAny(w, "<>$:=") && !stands(at) &&
			!stands(strings.TrimSuffix(w, "/...")) || first == "cd" && i == 1 && known.folders[top] && !stands(at) {
			wrong = append(wrong, "there is no "+w)
		}
		if flag := flagWord.FindStringSubmatch(w); flag != nil && !known.has(c, name, flag[1]) {
			wrong = append(wrong, "no flag --"+flag[1])
		}
	}
	return wrong
}

// checkBelow lists what is wrong with the word behind the name of one of our commands.
func (known commands) checkBelow(of, word string) []string {
	if subcommand.MatchString(word) && !known.below[of][word] && !known.below[""][word] {
		return []string{of + " has no command " + word}
	}
	return nil
}

// has tells whether a command has a flag. Those of programs that are not of this repository are not known.
func (known commands) has(c command, name, flag string) bool {
	switch first := c.words[0]; {
	case name != "":
		return known.flags[name][flag] || known.flags[""][flag]
	case strings.HasPrefix(first, "--"):
		for _, of := range known.flags {
			if of[flag] {
				return true
			}
		}
		return false
	case strings.HasSuffix(first, ".py"), strings.HasSuffix(first, ".sh"):
		data, err := os.ReadFile(path.Join(c.folder, first))
		return err != nil || strings.Contains(string(data), "--"+flag)
	}
	return true
}
