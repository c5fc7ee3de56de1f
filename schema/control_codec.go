package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// TextBytesMax bounds texts for people in control messages and refusals; longer ones are cut when written.
const TextBytesMax = 4096

// EncodeControl returns the sealed frame of a control message. It ignores Kind of the head.
//
//	frame, err := EncodeControl(Head{Job: run, Generation: 1}, Control{Leave: &Leave{}})
func EncodeControl(h Head, c Control) ([]byte, error) {
	name, err := c.only()
	if err != nil {
		return nil, fmt.Errorf("encode control: %w", err)
	}
	c = c.clipped()
	if !greetings[name] {
		return encodeBody(KindControl, h, c)
	}
	this := ThisProgram()
	return encodeBody(KindControl, h, signed{&this, c})
}

// signed is a control message with the program that sent it.
type signed struct {
	Speaks *Speaks `json:"speaks,omitempty"` // first
	Control
}

// clipped returns c with every text for people cut to the length that readers accept, and a manifest with its defaults
// written out. c itself is not changed.
func (c Control) clipped() Control {
	switch {
	case c.Join != nil:
		m := *c.Join
		m.Host = Clip(m.Host)
		if m.Job != nil {
			m.Job = m.Job.normal()
		}
		c.Join = &m
	case c.Refused != nil:
		m := *c.Refused
		m.Field, m.Have, m.Want, m.Text = Clip(m.Field), Clip(m.Have), Clip(m.Want), Clip(m.Text)
		c.Refused = &m
	case c.Leave != nil:
		m := *c.Leave
		m.Reason = Clip(m.Reason)
		c.Leave = &m
	case c.Ended != nil:
		m := *c.Ended
		m.Text = Clip(m.Text)
		c.Ended = &m
	case c.Keep != nil && c.Keep.Job != nil:
		m := *c.Keep
		m.Job = m.Job.normal()
		c.Keep = &m
	}
	return c
}

// DecodeControl reads the body of a verified control frame: strict JSON with exactly one message. It does not validate
// a manifest. A message from a program with another protocol is refused as ReasonUnknownVersion, with both versions,
// before anything else in it is read.
func DecodeControl(v *View) (Control, error) {
	var c Control
	if v.head.Kind != KindControl {
		return c, Refuse(ReasonUnknownKind, "%v frame: want a control frame", v.head.Kind)
	}
	if err := checkSpeaks(v.Body()); err != nil {
		return Control{}, err
	}
	return decodeControl(v.Body())
}

func decodeControl(body []byte) (c Control, refused error) {
	var m signed
	if err := decodeJSON(body, &m); err != nil {
		return Control{}, Refuse(ReasonMalformed, "control: %v", err)
	}
	c = m.Control
	name, err := c.only()
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Control{}, Refuse(ReasonMalformed, "control %s: %v", name, err)
	}
	return c, nil
}

// Name returns the JSON name of the message that is set, or "".
func (c Control) Name() string {
	name, _ := c.only()
	return name
}

// only returns the name of the one message that is set.
func (c Control) only() (name string, err error) {
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			continue
		}
		if name != "" {
			return "", errors.New("more than one message: want exactly one")
		}
		name = jsonName(v.Type().Field(i))
	}
	if name == "" {
		return "", errors.New("no message: want exactly one")
	}
	return name, nil
}

// check checks a message by itself: every field (see checkFields), and the relations between fields.
func (c Control) check() error {
	if err := checkFields(reflect.ValueOf(c), ""); err != nil {
		return err
	}
	switch {
	case c.Join != nil:
		if c.Join.Job == nil {
			return errors.New("no job: want the manifest")
		}
		if d := c.Join.Data; d != "" && d != DataDirect && d != DataCluster {
			return fmt.Errorf("data %q: want %s or %s", Clip(d), DataDirect, DataCluster)
		}
	case c.Joined != nil:
		return c.Joined.check()
	case c.Leave != nil:
		return c.Leave.End.check()
	case c.Ended != nil:
		return c.Ended.End.check()
	case c.Assign != nil:
		return c.Assign.check()
	case c.Group != nil:
		return c.Group.check()
	case c.LR != nil:
		return checkLR(c.LR.Changes)
	case c.Keep != nil:
		return c.Keep.check()
	case c.Kept != nil:
		return c.Kept.check()
	}
	return nil
}

func (j *Joined) check() error {
	if j.LaneCount < 1 || j.DeadlineMS < 1 {
		return fmt.Errorf("%d lanes, deadline %d ms: want at least 1 each", j.LaneCount, j.DeadlineMS)
	}
	return nil
}

// EncodeRefusal returns the sealed frame that refuses a sender's frame. The head is that of the refused frame, so that
// the sender can identify it. The text is clipped, so that it always fits.
func EncodeRefusal(h Head, reason Reason, text string) []byte {
	frame, err := encodeBody(KindRefusal, h, Refusal{Reason: reason.String(), Text: Clip(text)})
	if err != nil {
		panic(fmt.Sprintf("schema: refusal %v: %v", reason, err))
	}
	return frame
}

// DecodeRefusal reads the body of a verified refusal frame. An unknown reason is not an error: its name is in the
// Refusal.
func DecodeRefusal(v *View) (Refusal, error) {
	var r Refusal
	if v.head.Kind != KindRefusal {
		return r, Refuse(ReasonUnknownKind, "%v frame: want a refusal", v.head.Kind)
	}
	if err := decodeJSON(v.Body(), &r); err != nil {
		return Refusal{}, Refuse(ReasonMalformed, "refusal: %v", err)
	}
	if len(r.Reason) > TextBytesMax || len(r.Text) > TextBytesMax || r.Reason == "" {
		return Refusal{},
			Refuse(ReasonMalformed, "refusal with a reason of %d bytes and a text of %d: want 1 to %d and at most as many",
				len(r.Reason), len(r.Text), TextBytesMax)
	}
	return r, nil
}

// Clip cuts a text for people to TextBytesMax bytes and makes it valid UTF-8; JSON would do that later and make it
// longer.
func Clip(text string) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	if len(text) <= TextBytesMax {
		return text
	}
	const dots = "..."
	end := TextBytesMax - len(dots)
	for end > 0 && text[end]&0xc0 == 0x80 { // not within a character
		end--
	}
	return text[:end] + dots
}

func encodeBody(k Kind, h Head, body any) ([]byte, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode %v: %w", k, err)
	}
	return bodyFrame(k, h, b)
}

// bodyFrame returns the sealed frame with a body.
func bodyFrame(k Kind, h Head, b []byte) ([]byte, error) {
	f, err := NewFrame(Layout{Kind: k, Body: len(b)})
	if err != nil {
		return nil, fmt.Errorf("encode %v: %w", k, err)
	}
	f.SetHead(h)
	copy(f.Body(), b)
	return f.Seal(), nil
}
