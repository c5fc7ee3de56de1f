package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// What a driver says to a member, and the other way round.
const (
	opBe   = "be"   // the first order: what to be
	opGo   = "go"   // one Wait returns
	opAsk  = "ask"  // Settings are what Serve is to answer
	opStop = "stop" // Done is closed

	opTell     = "tell"     // Key, Value
	opAnswer   = "answer"   // Value
	opWait     = "wait"     // the member has reached a Wait
	opProgress = "progress" // Count of Total
	opSay      = "say"      // Value is a line
	opEvent    = "event"    // likewise, of the time At in the stream Key; empty: the member feeds the stream
	opPart     = "part"     // Part of the value of the message after the parts
	opResult   = "result"   // Value; the last message
)

// order is one line on a member's standard input.
type order struct {
	Op       string          `json:"op"`
	Role     string          `json:"role,omitempty"`
	Name     string          `json:"name,omitempty"`
	Settings json.RawMessage `json:"settings,omitempty"`
	Profile  string          `json:"profile,omitempty"` // a file, or empty
}

// message is one line on a member's standard output.
type message struct {
	Op    string          `json:"op"`
	Key   string          `json:"key,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
	Part  []byte          `json:"part,omitempty"`
	At    int64           `json:"at,omitempty,string"` // nanoseconds since 1970
	Count int             `json:"count,omitempty"`
	Total int             `json:"total,omitempty"`
}

const (
	// partBytesMax bounds a value in one message: package spawn reads lines of up to 1 MiB, and a part grows by a third on
	// its way.
	partBytesMax = 512 << 10
	// valueBytesMax bounds what a member may say in one value, in memory of the driver.
	valueBytesMax = 256 << 20
)

// split gives the messages that say m, whose value may be longer than a line.
func split(m message) ([]message, error) {
	n := len(m.Value)
	if n <= partBytesMax {
		return []message{m}, nil
	}
	if n > valueBytesMax {
		return nil, fmt.Errorf("%s %s: %d bytes, want at most %d", m.Op, m.Key, n, valueBytesMax)
	}
	var all []message
	for rest := []byte(m.Value); len(rest) > 0; {
		part := rest[:min(partBytesMax, len(rest))]
		all, rest = append(all, message{Op: opPart, Part: part}), rest[len(part):]
	}
	m.Value = nil
	return append(all, m), nil
}

// decode is json.Unmarshal that refuses fields that into does not have, and anything after the value.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%d bytes after the value", len(data)-int(d.InputOffset()))
	}
	return nil
}
