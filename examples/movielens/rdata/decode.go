package rdata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrFormat says that bytes are no object of R, or one that this package does not read; the text says what and where.
var ErrFormat = errors.New("not an R object that is known here")

// value is an object of R: one of the vectors is set, or none where it is NULL or of a kind without values.
type value struct {
	Ints    []int32 // also of factors, whose names are in attribute levels, and of logicals
	Reals   []float64
	Texts   []string
	List    []*value
	Symbol  string
	Attribs map[string]*value
}

// na is the missing value of integers and logicals.
const na = math.MinInt32

// Types of items, in the low byte of their flags.
const (
	typeSymbol    = 1
	typePairs     = 2
	typeChars     = 9
	typeLogical   = 10
	typeInts      = 13
	typeReals     = 14
	typeTexts     = 16
	typeList      = 19
	typeAltRep    = 238
	typeAttrPairs = 239
	typeGlobal    = 253
	typeNull      = 254
	typeReference = 255

	flagAttributes = 1 << 9
	flagTag        = 1 << 10
)

const (
	depthMax   = 64      // of lists within lists
	valuesMax  = 1 << 16 // objects; of four bytes in a file, each takes 128 in memory. A column is one
	pairsMax   = 1 << 16 // of one list of pairs
	headerSize = 14      // "X\n" and three integers
)

// decode reads one serialized object, which must be all of data. It fails with ErrFormat.
func decode(data []byte) (*value, error) {
	d := decoder{rest: data, size: len(data)}
	v, err := d.whole()
	if err == nil && len(d.rest) > 0 {
		err = d.fail("%d bytes follow the object", len(d.rest))
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

type decoder struct {
	rest   []byte
	size   int
	values int      // objects that were made
	refs   []*value // symbols, in the order in which they came
}

func (d *decoder) fail(format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrFormat, d.size-len(d.rest), fmt.Sprintf(format, args...))
}

func (d *decoder) whole() (*value, error) {
	if len(d.rest) < headerSize || !bytes.HasPrefix(d.rest, []byte("X\n")) {
		return nil, d.fail("no header of R's XDR format")
	}
	d.rest = d.rest[2:]
	version, _ := d.int()
	d.rest = d.rest[8:] // the versions of R that wrote it, and that can read it
	switch version {
	case 2:
	case 3:
		if _, err := d.chars(); err != nil { // the native encoding
			return nil, err
		}
	default:
		return nil, d.fail("version %d: want 2 or 3", version)
	}
	return d.item(0)
}

func (d *decoder) int() (int32, error) {
	if len(d.rest) < 4 {
		return 0, d.fail("cut: %d bytes where an integer is", len(d.rest))
	}
	n := int32(binary.BigEndian.Uint32(d.rest))
	d.rest = d.rest[4:]
	return n, nil
}

// count reads a length and holds it to what can follow: so many values of at least width bytes each.
func (d *decoder) count(width int) (int, error) {
	n, err := d.int()
	if err == nil && (n < 0 || int(n) > len(d.rest)/width) {
		err = d.fail("%d values of %d bytes or more, and %d bytes follow", n, width, len(d.rest))
	}
	return int(n), err
}

// chars reads a text that is preceded by its length. A missing one, of length -1, is NA.
func (d *decoder) chars() (string, error) {
	if len(d.rest) >= 4 && int32(binary.BigEndian.Uint32(d.rest)) == -1 {
		d.rest = d.rest[4:]
		return "NA", nil
	}
	n, err := d.count(1)
	if err != nil {
		return "", err
	}
	text := string(d.rest[:n])
	d.rest = d.rest[n:]
	return text, nil
}

// item reads an object with its attributes.
func (d *decoder) item(depth int) (*value, error) {
	if depth > depthMax {
		return nil, d.fail("more than %d objects within each other", depthMax)
	}
	if d.values++; d.values > valuesMax {
		return nil, d.fail("more than %d objects", valuesMax)
	}
	flags, err := d.int()
	if err != nil {
		return nil, err
	}
	v := &value{}
	kind := flags & 0xff
	switch kind {
	case typeNull, typeGlobal:
		return v, nil
	case typeSymbol:
		if v.Symbol, err = d.text(); err == nil {
			d.refs = append(d.refs, v)
		}
		return v, err
	case typeReference:
		return d.reference(flags)
	case typePairs, typeAttrPairs:
		v.Attribs, err = d.pairs(flags, depth)
		return v, err
	case typeAltRep:
		return d.altRep(depth)
	case typeLogical, typeInts:
		v.Ints, err = d.ints()
	case typeReals:
		v.Reals, err = d.reals()
	case typeTexts:
		v.Texts, err = d.texts()
	case typeList:
		v.List, err = d.list(depth)
	default:
		return nil, d.fail("an object of type %d: want integers, reals, texts or a list", kind)
	}
	if err == nil && flags&flagAttributes != 0 {
		var attributes *value
		if attributes, err = d.item(depth + 1); err == nil {
			v.Attribs = attributes.Attribs
		}
	}
	return v, err
}

func (d *decoder) reference(flags int32) (*value, error) {
	at := flags >> 8
	if at == 0 {
		var err error
		if at, err = d.int(); err != nil {
			return nil, err
		}
	}
	if at < 1 || int(at) > len(d.refs) {
		return nil, d.fail("reference %d: there are %d", at, len(d.refs))
	}
	return d.refs[at-1], nil
}

// text reads an item that must be a text.
func (d *decoder) text() (string, error) {
	flags, err := d.int()
	if err != nil {
		return "", err
	}
	if flags&0xff != typeChars {
		return "", d.fail("type %d where a text is", flags&0xff)
	}
	return d.chars()
}

func (d *decoder) ints() ([]int32, error) {
	n, err := d.count(4)
	if err != nil {
		return nil, err
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(binary.BigEndian.Uint32(d.rest[4*i:]))
	}
	d.rest = d.rest[4*n:]
	return out, nil
}

func (d *decoder) reals() ([]float64, error) {
	n, err := d.count(8)
	if err != nil {
		return nil, err
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = math.Float64frombits(binary.BigEndian.Uint64(d.rest[8*i:]))
	}
	d.rest = d.rest[8*n:]
	return out, nil
}

func (d *decoder) texts() ([]string, error) {
	n, err := d.count(8)
	if err != nil {
		return nil, err
	}
	out := make([]string, n)
	for i := range out {
		if out[i], err = d.text(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *decoder) list(depth int) ([]*value, error) {
	n, err := d.count(4)
	if err != nil {
		return nil, err
	}
	var out []*value // which grows as they come: lists within lists could each claim all that follows
	for range n {
		v, err := d.item(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// pairs reads a list of pairs, the first of which has these flags, as a map by their tags; those without one are "0",
// "1" and so on.
func (d *decoder) pairs(flags int32, depth int) (map[string]*value, error) {
	all := map[string]*value{}
	for n := range pairsMax {
		name := fmt.Sprint(n)
		if flags&flagAttributes != 0 {
			if _, err := d.item(depth + 1); err != nil {
				return nil, err
			}
		}
		if flags&flagTag != 0 {
			tag, err := d.item(depth + 1)
			if err != nil {
				return nil, err
			}
			name = tag.Symbol
		}
		value, err := d.item(depth + 1)
		if err != nil {
			return nil, err
		}
		all[name] = value
		if flags, err = d.int(); err != nil {
			return nil, err
		}
		switch flags & 0xff {
		case typePairs, typeAttrPairs:
		case typeNull:
			return all, nil
		default:
			return nil, d.fail("type %d within a list of pairs", flags&0xff)
		}
	}
	return nil, d.fail("a list of more than %d pairs", pairsMax)
}

// altRep reads an object in one of R's compact forms: a sequence of integers, or a vector with notes on whether it is
// sorted.
func (d *decoder) altRep(depth int) (*value, error) {
	var parts [3]*value // its class, its state, its attributes
	for i := range parts {
		var err error
		if parts[i], err = d.item(depth + 1); err != nil {
			return nil, err
		}
	}
	v, state := &value{Attribs: parts[2].Attribs}, parts[1]
	class := ""
	if first := parts[0].Attribs["0"]; first != nil {
		class = first.Symbol
	}
	switch class {
	case "compact_intseq":
		if len(state.Reals) != 3 || !(state.Reals[0] >= 0 && state.Reals[0] <= math.MaxInt32) {
			return nil, d.fail("a sequence that is none")
		}
		v.Ints = []int32{int32(state.Reals[0])} // only its length is used: row names
		return v, nil
	case "wrap_integer", "wrap_real", "wrap_string", "wrap_logical", "wrap_list":
		vector := state.Attribs["0"]
		if len(state.List) > 0 {
			vector = state.List[0]
		}
		if vector == nil {
			return nil, d.fail("%s without a vector", class)
		}
		v.Ints, v.Reals, v.Texts, v.List = vector.Ints, vector.Reals, vector.Texts, vector.List
		return v, nil
	}
	return nil, d.fail("compact form %q", class)
}
