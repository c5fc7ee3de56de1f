package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// jsonDepthMax is how deep a body nests at most: a table's init within a join is at five.
const jsonDepthMax = 8

// decodeJSON reads exactly one JSON value that is UTF-8, within BodyBytesMax and jsonDepthMax, and whose names are known
// to the type, in lower case and not repeated: what encoding/json alone lets pass, two readers may understand in two ways.
func decodeJSON(b []byte, to any) error {
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
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the JSON value: want exactly one")
	}
	return nil
}

// checkNames walks the tokens of a JSON value.
func checkNames(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return checkValue(d, 0)
}

func checkValue(d *json.Decoder, depth int) error {
	if depth > jsonDepthMax {
		return fmt.Errorf("JSON nested deeper than %d", jsonDepthMax)
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		seen := map[string]bool{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return err
			}
			s, _ := name.(string)
			if seen[s] {
				return fmt.Errorf("JSON name %q twice in one object", s)
			}
			if s != strings.ToLower(s) {
				return fmt.Errorf("JSON name %q: want lower case", s)
			}
			seen[s] = true
			if err := checkValue(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	case json.Delim('['):
		for d.More() {
			if err := checkValue(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	}
	return err
}
