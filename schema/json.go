package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// jsonDepthMax is how deep a body nests at most: a table's init within a join is at five.
const jsonDepthMax = 8

// decodeJSON reads exactly one JSON value that is UTF-8, within BodyBytesMax and jsonDepthMax, and whose names are known
// to the type, in lower case and not repeated: what encoding/json alone lets pass, two readers may understand in two ways.
func decodeJSON(b []byte, to any) error { return decode(b, to, true) }

// decodeNewerJSON is decodeJSON, and passes over names that are not known, with whatever stands under them: whoever writes may be newer.
// They count for every bound.
func decodeNewerJSON(b []byte, to any) error { return decode(b, to, false) }

func decode(b []byte, to any, strict bool) error {
	if len(b) > BodyBytesMax {
		return fmt.Errorf("%d bytes of JSON: want at most %d", len(b), BodyBytesMax)
	}
	if !utf8.Valid(b) {
		return errors.New("JSON that is not UTF-8")
	}
	if err := checkNames(b); errors.Is(err, io.EOF) {
		return errors.New("JSON that ends early")
	} else if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the JSON value: want exactly one")
	}
	return nil
}
