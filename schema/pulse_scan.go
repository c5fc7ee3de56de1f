package schema

import (
	"math"
	"reflect"
	"strconv"
)

// scanner reads what the plans write. All its methods say whether there was what is to be read; where not, what was read is worth nothing.
type scanner struct {
	b  []byte
	at int
}

// take passes over a text, if it comes next.
func (s *scanner) take(text string) bool {
	if len(s.b)-s.at < len(text) || string(s.b[s.at:s.at+len(text)]) != text {
		return false
	}
	s.at += len(text)
	return true
}

// next is the byte that comes next, 0 at the end.
func (s *scanner) next() byte {
	if s.at == len(s.b) {
		return 0
	}
	return s.b[s.at]
}

// digits passes over some digits, and counts them.
func (s *scanner) digits() int {
	from := s.at
	for c := s.next(); c >= '0' && c <= '9'; c = s.next() {
		s.at++
	}
	return s.at - from
}

// whole passes over a whole number, which begins with a zero only where that is all.
func (s *scanner) whole() bool {
	zero := s.next() == '0'
	n := s.digits()
	return n == 1 || n > 1 && !zero
}

// text passes over a text of plain characters, and gives what is between the quotes.
func (s *scanner) text() (text []byte, ok bool) {
	if !s.take(`"`) {
		return nil, false
	}
	from := s.at
	for plain(s.next()) {
		s.at++
	}
	text = s.b[from:s.at]
	return text, s.take(`"`)
}

func readFields(s *scanner, v reflect.Value, fields []planField) bool {
	if !s.take("{") {
		return false
	}
	first := true
	for i := range fields {
		f, before := &fields[i], s.at
		if (first || s.take(",")) && s.take(f.head) {
			if first = false; !f.read(s, v.Field(f.index)) {
				return false
			}
			continue
		}
		if s.at = before; !f.omitEmpty && !f.omitZero {
			return false
		}
	}
	return s.take("}")
}

func readBool(s *scanner, v reflect.Value) bool {
	if s.take("true") {
		v.SetBool(true)
		return true
	}
	return s.take("false") // which v is
}

func readUint(s *scanner, v reflect.Value) bool {
	from := s.at
	if !s.whole() {
		return false
	}
	n, err := strconv.ParseUint(string(s.b[from:s.at]), 10, v.Type().Bits())
	v.SetUint(n)
	return err == nil && s.ends()
}

func readInt(s *scanner, v reflect.Value) bool {
	from := s.at
	if s.take("-"); !s.whole() {
		return false
	}
	n, err := strconv.ParseInt(string(s.b[from:s.at]), 10, v.Type().Bits())
	v.SetInt(n)
	return err == nil && s.ends()
}

// ends says that a whole number has no more to it.
func (s *scanner) ends() bool {
	c := s.next()
	return c != '.' && c != 'e' && c != 'E'
}

func readReal(s *scanner, v reflect.Value) bool {
	switch {
	case s.take(`"NaN"`):
		v.SetFloat(math.NaN())
		return true
	case s.take(`"+Inf"`):
		v.SetFloat(math.Inf(1))
		return true
	case s.take(`"-Inf"`):
		v.SetFloat(math.Inf(-1))
		return true
	}
	from := s.at
	if s.take("-"); !s.whole() || s.take(".") && s.digits() == 0 {
		return false
	}
	if s.take("e") {
		if !s.take("+") {
			s.take("-")
		}
		if s.digits() == 0 {
			return false
		}
	}
	f, err := strconv.ParseFloat(string(s.b[from:s.at]), 64)
	v.SetFloat(f)
	return err == nil
}

func readString(s *scanner, v reflect.Value) bool {
	text, ok := s.text()
	if ok {
		v.SetString(string(text))
	}
	return ok
}

// readCounts reads names that rise, so that none comes twice.
func readCounts(s *scanner, v reflect.Value) bool {
	if s.take("null") {
		return true
	}
	if !s.take("{") {
		return false
	}
	v.Set(reflect.MakeMap(v.Type()))
	last := ""
	for first := true; !s.take("}"); first = false {
		if !first && !s.take(",") {
			return false
		}
		name, ok := s.text()
		if !ok || !first && string(name) <= last || !s.take(":") {
			return false
		}
		last = string(name)
		n := reflect.New(v.Type().Elem()).Elem()
		if !readUint(s, n) {
			return false
		}
		v.SetMapIndex(reflect.ValueOf(last).Convert(v.Type().Key()), n)
	}
	return true
}
