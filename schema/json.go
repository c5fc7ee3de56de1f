package schema

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// jsonDepthMax bounds the nesting of a body: a table's init within a join is at depth five.
const jsonDepthMax = 8

// decodeJSON reads exactly one JSON value that is UTF-8, within bodyBytesMax and jsonDepthMax, and whose names are
// known to the type, in lower case and not repeated: two readers may interpret differently what encoding/json alone
// accepts. The reader is version 2 of encoding/json with the semantics of version 1, which takes half the time.
func decodeJSON(b []byte, to any) error { return decode(b, to, true) }

// decodeNewerJSON is decodeJSON that skips unknown names with their values: the writer may be newer. They count against
// every bound.
func decodeNewerJSON(b []byte, to any) error { return decode(b, to, false) }

func decode(b []byte, to any, strict bool) error {
	if len(b) > bodyBytesMax {
		return fmt.Errorf("%d bytes of JSON: want at most %d", len(b), bodyBytesMax)
	}
	if !utf8.Valid(b) {
		return errors.New("JSON that is not UTF-8")
	}
	if err := checkNames(b); errors.Is(err, io.EOF) {
		return errors.New("JSON that ends early")
	} else if err != nil {
		return err
	}
	return json.Unmarshal(b, to, jsonv1.DefaultOptionsV1(), json.RejectUnknownMembers(strict))
}
