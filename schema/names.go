package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// level is an object or array that is open.
type level struct {
	object bool
	from   int                 // index of its first name
	many   map[string]struct{} // its names, where they are more than fewNames
}

// fewNames is up to how many names an object's are compared one by one.
const fewNames = 48

// names walks a JSON text without making anything of its values.
type names struct {
	levels [jsonDepthMax + 1]level
	depth  int
	seen   [][]byte // names of open objects, those of the innermost last; parts of the text
}

// checkNames refuses names that are not lower case or stand twice in one object, what is nested too deeply, and what
// follows an object or array. It judges nothing else: what is no JSON it may let pass, and the reader refuses. io.EOF
// says that the text ends within a value.
//
// Each byte is looked at once; by tokens of encoding/json it took as long as everything else that is done with a
// report.
func checkNames(b []byte) error {
	var n names
	isName, any := false, false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case ':':
			isName = false
			continue
		case ',':
			isName = n.depth > 0 && n.levels[n.depth-1].object
			continue
		case '}', ']':
			if n.close() {
				return checkEnd(b[i+1:])
			}
			isName = false
			continue
		}
		any = true
		if n.depth > jsonDepthMax && !(c == '"' && isName) {
			return fmt.Errorf("JSON nested deeper than %d", jsonDepthMax)
		}
		switch c {
		case '{', '[':
			n.open(c == '{')
			isName = c == '{'
		case '"':
			end := stringEnd(b, i+1)
			if end < 0 {
				return io.EOF
			}
			if isName {
				if err := n.add(b[i : end+1]); err != nil {
					return err
				}
			}
			i, isName = end, false
		}
	}
	if n.depth > 0 || !any {
		return io.EOF
	}
	return nil
}

// checkEnd refuses what follows a value, but for white space.
func checkEnd(b []byte) error {
	if len(bytes.TrimLeft(b, " \t\n\r")) > 0 {
		return errors.New("something follows the JSON value: want exactly one")
	}
	return nil
}

func (n *names) open(object bool) {
	n.levels[n.depth] = level{object: object, from: len(n.seen)}
	n.depth++
}

// close reports whether that was the end of the value, or no JSON.
func (n *names) close() bool {
	if n.depth > 0 {
		n.depth--
		n.seen = n.seen[:n.levels[n.depth].from]
	}
	return n.depth == 0
}

// add takes a name with its quotes.
func (n *names) add(quoted []byte) error {
	name := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		var plain string
		if err := json.Unmarshal(quoted, &plain); err != nil {
			return err
		}
		name = []byte(plain)
	}
	if !lower(name) {
		return fmt.Errorf("JSON name %q: want lower case", name)
	}
	if n.has(&n.levels[n.depth-1], name) {
		return fmt.Errorf("JSON name %q twice in one object", name)
	}
	n.seen = append(n.seen, name)
	return nil
}

// has reports whether an object has a name, and keeps it where that is by a map.
func (n *names) has(of *level, name []byte) bool {
	if of.many != nil {
		_, has := of.many[string(name)]
		of.many[string(name)] = struct{}{}
		return has
	}
	all := n.seen[of.from:]
	for _, other := range all {
		if bytes.Equal(other, name) {
			return true
		}
	}
	if len(all) >= fewNames {
		of.many = map[string]struct{}{string(name): {}}
		for _, other := range all {
			of.many[string(other)] = struct{}{}
		}
	}
	return false
}

func lower(name []byte) bool {
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			return false
		}
		if c >= 0x80 {
			return string(name) == strings.ToLower(string(name))
		}
	}
	return true
}

// stringEnd is the index of the quote that ends the string whose text begins at from; -1 where there is none.
func stringEnd(b []byte, from int) int {
	for i := from; ; i++ {
		quote := bytes.IndexByte(b[i:], '"')
		if quote < 0 {
			return -1
		}
		i += quote
		escapes := 0
		for i-escapes > from && b[i-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
}
