package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// pkg is a package of this module, as go list describes it.
type pkg struct {
	ImportPath, Dir                              string
	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports           []string
	Module                                       struct{ Path string }
}

// list reads the packages of the module.
func (r *runner) list() error {
	out, err := exec.Command("go", "list", "-json", "-tags", r.tags, "./...").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	r.packages = map[string]*pkg{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		p := new(pkg)
		if err := decoder.Decode(p); err != nil {
			return err
		}
		r.packages[p.ImportPath] = p
	}
	return nil
}

// testers are the packages with tests that see a package: itself, then those that import it, the nearest first.
func (r *runner) testers(path string) (found []string) {
	seen := map[string]bool{path: true}
	for wave := []string{path}; len(wave) > 0; {
		var next []string
		for _, at := range wave {
			if p := r.packages[at]; len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && !strings.Contains(at, "/e2e/plants") {
				found = append(found, at)
			}
			for _, p := range r.packages {
				by := slices.Contains(p.Imports, at) || slices.Contains(p.TestImports, at) || slices.Contains(p.XTestImports, at)
				if by && !seen[p.ImportPath] {
					seen[p.ImportPath] = true
					next = append(next, p.ImportPath)
				}
			}
		}
		slices.Sort(next)
		wave = next
	}
	return found
}

// site is one change that can be made: text of a file replaced by another.
type site struct {
	p          *pkg
	file, in   string // the path, and the function
	kind       string
	from, to   int // bytes of the file
	line       int
	old, now   string
	occurrence int // among equal ones of the function
	was        string
}

// key names a change in any commit that has it.
func (s site) key() string {
	if s.p == nil {
		return s.was
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%d", s.p.ImportPath, s.in, s.kind, strings.Join(strings.Fields(s.old), " "), s.occurrence)
}

func (s site) function() string { return s.p.ImportPath + "." + s.in }

// apply returns the file with the change.
func (s site) apply() []byte {
	data, err := os.ReadFile(s.file)
	if err != nil {
		panic(err) // it was read before
	}
	return slices.Concat(data[:s.from], []byte(s.now), data[s.to:])
}

// sites lists every change that can be made in a package. Generated files have none, nor has what only tests import.
func (p *pkg) sites() (all []site, err error) {
	if strings.Contains(p.ImportPath, "/e2e") {
		return nil, nil
	}
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		path := filepath.Join(p.Dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if head, _, _ := bytes.Cut(data, []byte("\n\n")); bytes.Contains(head, []byte("Code generated")) {
			continue
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			c := collector{p: p, file: path, in: functionName(f), files: files, data: data}
			ast.Inspect(f.Body, c.visit)
			all = append(all, c.found...)
		}
	}
	count := map[string]int{}
	for i := range all {
		bare := all[i].key()
		all[i].occurrence = count[bare]
		count[bare]++
	}
	return all, nil
}

func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

// collector gathers the changes of one function.
type collector struct {
	p        *pkg
	file, in string
	files    *token.FileSet
	data     []byte
	found    []site
}

func (c *collector) add(kind string, from, to token.Pos, now string) {
	a, b := c.files.Position(from), c.files.Position(to)
	c.found = append(c.found, site{p: c.p, file: c.file, in: c.in, kind: kind, from: a.Offset, to: b.Offset, line: a.Line,
		old: string(c.data[a.Offset:b.Offset]), now: now})
}

func (c *collector) text(n ast.Node) string {
	return string(c.data[c.files.Position(n.Pos()).Offset:c.files.Position(n.End()).Offset])
}

// neighbors are the operators that one is exchanged for.
var neighbors = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
	token.EQL: "!=", token.NEQ: "==", token.ADD: "-", token.SUB: "+", token.LAND: "||", token.LOR: "&&"}

func (c *collector) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		c.add("negated", n.Cond.Pos(), n.Cond.End(), "!("+c.text(n.Cond)+")")
	case *ast.BinaryExpr:
		if now := neighbors[n.Op]; now != "" {
			c.add("operator", n.Pos(), n.End(), c.text(n.X)+" "+now+" "+c.text(n.Y))
		}
	case *ast.BasicLit:
		if v, err := strconv.Atoi(n.Value); n.Kind == token.INT && err == nil {
			c.add("number", n.Pos(), n.End(), strconv.Itoa(v+1))
		}
	case *ast.ExprStmt:
		c.leaveOut(n)
	case *ast.IncDecStmt:
		c.leaveOut(n)
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			c.leaveOut(n)
		}
	}
	return true
}

// leaveOut replaces a statement by nothing, and keeps what it uses used.
func (c *collector) leaveOut(n ast.Stmt) { c.add("left out", n.Pos(), n.End(), "") }

// profile is which lines of which files tests reach.
type profile map[string][][2]int

func (p profile) has(s site) bool {
	rel := s.p.ImportPath + "/" + filepath.Base(s.file)
	for _, lines := range p[rel] {
		if lines[0] <= s.line && s.line <= lines[1] {
			return true
		}
	}
	return false
}

// readProfile reads what go test -coverprofile writes.
func readProfile(path string) (profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := profile{}
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		// file.go:12.34,15.2 3 1
		name, rest, ok := strings.Cut(scan.Text(), ":")
		if !ok || name == "mode" {
			continue
		}
		var from, to, skip, statements, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &from, &skip, &to, &skip, &statements, &count); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, scan.Text(), err)
		}
		if count > 0 {
			p[name] = append(p[name], [2]int{from, to})
		}
	}
	return p, scan.Err()
}
