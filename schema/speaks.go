package schema

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"gradbus"
)

// Speaks says which program has sent a control message. It stands first in the body, before the message itself, and is
// read by itself: a reader that cannot decode the message can still say why. Its form never changes.
type Speaks struct {
	Version     string `json:"version"`     // of the program, for people
	Fingerprint string `json:"fingerprint"` // of what it reads: see Fingerprint
}

// greetings are the messages with which two programs begin to speak, by their JSON names. They must say Speaks.
var greetings = map[string]bool{"join": true, "follow": true, "assign": true, "keep": true, "query": true,
	"scale_lr": true, "drain": true}

// This is how people know this program.
func (s Speaks) String() string {
	return fmt.Sprintf("gradbus %s (protocol %s)", s.Version, s.Fingerprint)
}

// ThisProgram is what this program says.
func ThisProgram() Speaks { return Speaks{gradbus.Version, Fingerprint} }

// OlderProgram stands for one that does not tell its version.
const OlderProgram = "gradbus 0.1.0 or older (it does not tell which)"

// checkSpeaks refuses a message of a program that reads another protocol than this one.
func checkSpeaks(body []byte) *FrameError {
	theirs, message := envelope(body)
	switch {
	case theirs == nil && !greetings[message], theirs != nil && theirs.Fingerprint == Fingerprint:
		return nil
	case theirs == nil:
		return Refuse(ReasonUnknownVersion, "%s does not speak with %s, which sent %s: update that one", ThisProgram(),
			OlderProgram, message)
	case theirs.Version == gradbus.Version:
		return Refuse(ReasonUnknownVersion, "%s does not speak with %s, which sent %s: they were built from different "+
			"sources, update the older one", ThisProgram(), theirs, message)
	}
	return Refuse(ReasonUnknownVersion, "%s does not speak with %s, which sent %s: update the older one", ThisProgram(),
		theirs, message)
}

// MessageOf is the name of the message in a verified control frame, of whatever version its sender is.
func MessageOf(v *View) string {
	_, name := envelope(v.Body())
	return name
}

// envelope reads who has sent a body, and the name of the message in it, of whatever version that is: nil where it does
// not say. It reads no further than that name.
func envelope(body []byte) (theirs *Speaks, message string) {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if open, err := d.ReadToken(); err != nil || open.Kind() != '{' {
		return nil, ""
	}
	name, err := d.ReadToken()
	if err != nil || name.Kind() != '"' {
		return nil, ""
	}
	if message = name.String(); message != "speaks" {
		return nil, brief(message)
	}
	said, err := d.ReadValue()
	if err != nil {
		return nil, ""
	}
	theirs = new(Speaks)
	_ = decodeNewerJSON(said, theirs) // what cannot be read is not ours
	theirs.Version, theirs.Fingerprint = brief(theirs.Version), brief(theirs.Fingerprint)
	if name, err = d.ReadToken(); err == nil && name.Kind() == '"' {
		message = brief(name.String())
	}
	return theirs, message
}

// brief is a word of another program as a line for people may have it.
func brief(word string) string {
	word = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, word)
	const most = 64
	return word[:min(len(word), most)]
}

// RefusedByOlder is what a refusal of a control message says to people, where the program that sent it reads another
// protocol: one from before Speaks takes it for a name that no message has. It is nil of any other refusal.
func RefusedByOlder(v *View) *Refused {
	r, err := DecodeRefusal(v)
	if err != nil || r.Reason != ReasonMalformed.String() || !strings.Contains(r.Text, "speaks") {
		return nil
	}
	return &Refused{Reason: ReasonUnknownVersion.String(), Text: Clip(fmt.Sprintf(
		"%s does not speak with %s, which the ps is: update the ps", ThisProgram(), OlderProgram))}
}

// CheckVersions says why no version of a job can be written down, or nothing. What Validate refuses is not for it to
// say.
func (j *Job) CheckVersions() error {
	plan := j.Plan()
	switch {
	case j.Moments() && plan.exact:
		return fmt.Errorf("job %s: exact rows of shards at versions of their own: want consistency %s or %s", j.Name,
			ConsistencySync, ConsistencyBounded)
	case !plan.Roundless && !plan.Reduces(ByShards):
		return fmt.Errorf("job %s: its shards add up nothing, so no ps can save or resume a version of it: begin a new job "+
			"with a saved model, or with one that ./bin/ps checkpoints export writes, by --load", j.Name)
	}
	return nil
}

// rewindsAlike reports whether a job that rewinds has the bits of one to which nothing happens, with however many
// trainers it goes on: batches are in step, sums are not rounded on the way, and no trainer has anything of its own.
func (j *Job) rewindsAlike() bool {
	p := j.Plan()
	return j.Rewinds() && p.Sync() && !j.Moments() && p.DType == DTypeFloat32 && len(j.Modules) == 0
}

// Moments reports whether anything of what is written down as a version is what a shard has at a moment: all of it
// (Plan.Moments), or rows alone, of tables whose gradients are applied as they arrive.
func (j *Job) Moments() bool {
	p := j.Plan()
	return p.Moments() || !p.ClockOf(ByShards).Common()
}

// Moments reports whether what is written down as a version is what each shard has at a moment, and not what all of
// them have after the same batches: these are not the same for all trainers then, or nothing is added up.
func (p *Plan) Moments() bool { return !p.Clock.Common() || p.Roundless }
