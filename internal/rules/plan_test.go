package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// modeWord names the constants of a manifest's mode words.
var modeWord = regexp.MustCompile(
	`^(Consistency(Sync|Bounded|Async|Grouped)|Reduce(Shards|Trainers)|Sum(Fused|Close)|Apply(Update|Mean)|` +
		`Gradients(Float32|BFloat16|Float16)|Placement(Rows|Columns|Tables)|Pooling(Sum|Mean)|Nonfinite(Fail|Skip))$`)

// modeField names the fields of manifests, settings and telemetry reports that hold them.
var modeField = regexp.MustCompile(
	`^(Consistency|TableConsistency|Apply|Reduce|Gradients|Placement|Pooling|OnNonfinite)$`)

// isWord reports whether an expression is a text that is not empty.
func isWord(e ast.Expr) bool {
	text, ok := e.(*ast.BasicLit)
	return ok && text.Kind == token.STRING && len(text.Value) > len(`""`)
}

// readsModes are the files that read mode words: the plan, what makes and checks manifests, and what checks the flags
// of those that make them.
var readsModes = regexp.MustCompile(
	`^(schema/(plan|job|job_defaults|[a-z]+_check)|internal/settings/[a-z]+|examples/[a-z]+/settings|bench/hybrid/job)\.go$`)

// A manifest's mode words are read in one place. Others may write them, and ask schema.Plan.
func TestModesAreReadByThePlan(t *testing.T) {
	read := 0
	for path, data := range sources(t) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			continue
		}
		at := modesRead(t, path, data)
		if readsModes.MatchString(filepath.ToSlash(path)) {
			read += len(at)
			continue
		}
		for _, where := range at {
			t.Errorf("%s compares a mode word: want schema.Plan asked", where)
		}
	}
	if read < 30 {
		t.Errorf("found %d comparisons in the files that may have them", read)
	}
}

// asksClock names what a plan says of the consistency mode itself, and clocks are the files that may ask: the plan,
// the clocks of rounds, and what a coordinator does about the lost.
var (
	asksClock = regexp.MustCompile(`^(Clock(Bounded|Each|Grouped)|AsyncTables)$`)
	clocks    = regexp.MustCompile(`^(schema/(plan|lr_change)|shard/round/clock|ps/coordinator/loss)\.go$`)
)

// What depends on the consistency mode is asked of few files; all others ask what a clock does.
func TestClocksAreAskedInFewPlaces(t *testing.T) {
	asked := 0
	for path, data := range sources(t) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			continue
		}
		at := clocksAsked(t, path, data)
		if clocks.MatchString(filepath.ToSlash(path)) {
			asked += len(at)
			continue
		}
		for _, where := range at {
			t.Errorf("%s asks for the consistency mode: want a clock asked what it does", where)
		}
	}
	if asked < 10 {
		t.Errorf("found %d questions in the files that may have them", asked)
	}
}

// clocksAsked lists where a file names a mode.
func clocksAsked(t *testing.T, path string, data []byte) (at []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok && asksClock.MatchString(name.Name) {
			at = append(at, files.Position(n.Pos()).String())
		}
		return true
	})
	return at
}

// modesRead lists where a file compares mode words: with == or !=, and as a case.
func modesRead(t *testing.T, path string, data []byte) (at []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	look := func(e ast.Expr) {
		if s, ok := e.(*ast.SelectorExpr); ok {
			e = s.Sel
		}
		if name, ok := e.(*ast.Ident); ok && modeWord.MatchString(name.Name) {
			at = append(at, files.Position(e.Pos()).String())
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				look(n.X)
				look(n.Y)
				if s, ok := n.X.(*ast.SelectorExpr); ok && modeField.MatchString(s.Sel.Name) && isWord(n.Y) {
					at = append(at, files.Position(n.Pos()).String())
				}
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				look(e)
			}
		}
		return true
	})
	return at
}

// asksTime names what reads the clock, or waits.
var asksTime = regexp.MustCompile(`\btime\.(Now|Since|Until|After|AfterFunc|Sleep|Tick|NewTicker|NewTimer)\b`)

// Time comes to a coordinator with every event, so that scripts and the simulation decide what it is.
func TestCoordinatorsAskNoClock(t *testing.T) {
	seen := 0
	for path, data := range sources(t) {
		if filepath.ToSlash(filepath.Dir(path)) != "ps/coordinator" || filepath.Ext(path) != ".go" ||
			strings.HasSuffix(path, "_test.go") {
			continue
		}
		seen++
		if at := asksTime.Find(data); at != nil {
			t.Errorf("%s has %s: want the time of the event", path, at)
		}
	}
	if seen == 0 {
		t.Error("ps/coordinator has no files")
	}
}
