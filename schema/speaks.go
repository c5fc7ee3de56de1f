package schema

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"gradbus"
)

// Speaks identifies the program that sent a control message. It is the first field of the body and is decoded by
// itself, so a reader that cannot decode the message can still report why. Its form never changes.
type Speaks struct {
	Version     string `json:"version"`     // of the program, for people
	Fingerprint string `json:"fingerprint"` // of its protocol: see Fingerprint
}

// greetings are the messages with which two programs begin to communicate, by their JSON names. They must have Speaks.
var greetings = map[string]bool{"join": true, "follow": true, "assign": true, "keep": true, "query": true,
	"lr": true, "drain": true}

// String returns the program and its version, for people.
func (s Speaks) String() string {
	return fmt.Sprintf("gradbus %s (protocol %s)", s.Version, s.Fingerprint)
}

// ThisProgram returns the Speaks of this program.
func ThisProgram() Speaks { return Speaks{gradbus.Version, Fingerprint} }

// OlderProgram names a program that does not state its version.
const OlderProgram = "gradbus 0.1.0 or older (it does not tell which)"

// checkSpeaks refuses a message of a program with another protocol.
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

// MessageOf returns the name of the message in a verified control frame, whatever the version of its sender.
func MessageOf(v *View) string {
	_, name := envelope(v.Body())
	return name
}

// envelope reads the sender of a body, and the name of the message in it, of any version. theirs is nil if the body
// does not have it. It reads nothing after that name.
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
	_ = decodeNewerJSON(said, theirs) // what cannot be read is of another version
	theirs.Version, theirs.Fingerprint = brief(theirs.Version), brief(theirs.Fingerprint)
	if name, err = d.ReadToken(); err == nil && name.Kind() == '"' {
		message = brief(name.String())
	}
	return theirs, message
}

// brief shortens a word of another program for a line of text.
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

// RefusedByOlder returns the refusal of a control message by a program with another protocol, for people: a program
// from before Speaks takes it for an unknown message name. It is nil for any other refusal.
func RefusedByOlder(v *View) *Refused {
	r, err := DecodeRefusal(v)
	if err != nil || r.Reason != ReasonMalformed.String() || !strings.Contains(r.Text, "speaks") {
		return nil
	}
	return &Refused{Reason: ReasonUnknownVersion.String(), Text: Clip(fmt.Sprintf(
		"%s does not speak with %s, which the ps is: update the ps", ThisProgram(), OlderProgram))}
}

// CheckVersions returns why no version of a job can be written, or nil. It does not repeat the checks of Validate.
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

// CheckCheckpoint returns why a trainer cannot request a durable version of a job, or nil. The request comes between
// two batches, when shards have all of a common version.
func (j *Job) CheckCheckpoint() error {
	switch p := j.Plan(); {
	case j.Moments():
		return fmt.Errorf("job %s: its shards have no common version: want consistency %s or %s", j.Name, ConsistencySync,
			ConsistencyBounded)
	case p.Owner != ByShards || len(j.Modules) > 0:
		return fmt.Errorf("job %s: trainers or modules have a part of its state: want apply %s, and no modules", j.Name,
			ApplyUpdate)
	}
	return j.CheckVersions()
}

// rewindsAlike reports whether a job that rewinds has the bits of an undisturbed one, with any number of trainers:
// batches are in step, sums are not rounded in transit, and no trainer has state of its own.
func (j *Job) rewindsAlike() bool {
	p := j.Plan()
	return j.Rewinds() && p.Sync() && !j.Moments() && p.DType == DTypeFloat32 && len(j.Modules) == 0
}

// Moments reports whether a checkpoint of the job is fuzzy, at least in part: it contains the current state of each
// shard (Plan.Moments), or of rows of tables whose gradients are applied as they arrive.
func (j *Job) Moments() bool {
	p := j.Plan()
	return p.Moments() || !p.ClockOf(ByShards).Common()
}

// Moments reports whether checkpoints are fuzzy: they contain the current state of each shard, instead of the state of
// all after the same batches. They are fuzzy if the trainers' batches differ, or if nothing is aggregated.
func (p *Plan) Moments() bool { return !p.Clock.Common() || p.Roundless }
