package trainer

import (
	"errors"
	"fmt"

	"gradbus/schema"
)

// Refused is the error of a request that the coordinator or a shard turned away: a join, a change of learning rates, or
// a frame. A refused frame ends the session. If the job stays readable (Session.Err), its weights are those
// before the batch; in other jobs some shards may have applied their parts of it. Any other refusal changes nothing.
//
//	if r, ok := errors.AsType[*trainer.Refused](err); ok && r.Reason == "job_differs" {
type Refused struct {
	Reason string // a fixed word, as docs/protocol.md lists them: "job_differs", "job_full", "non_finite"
	Field  string // the field of the manifest in which a trainer differs from its job, with "job_differs"
	Text   string // the details, for people
	frame  string // sender and coordinates of the refused frame; empty where it is no frame
	server string // the address of the ps that has the job, with the reason schema.RefusedElsewhere
}

// errReplaced matches the refusal of a trainer whose slot is another's by now: the others continued without it.
var errReplaced = &Refused{Reason: schema.RefusedReplaced}

// Error implements error.
func (r *Refused) Error() string {
	if r.frame != "" {
		return fmt.Sprintf("frame refused: %s: %s: %s", r.frame, r.Reason, r.Text)
	}
	return fmt.Sprintf("refused (%s): %s", r.Reason, r.Text)
}

// Is matches a target of the same reason and field, or one without them.
func (r *Refused) Is(target error) bool {
	t, ok := target.(*Refused)
	return ok && (t.Reason == "" || t.Reason == r.Reason) && (t.Field == "" || t.Field == r.Field)
}

// refusedBy words a refusal of the coordinator. Where manifests differ it names the field and both values.
func refusedBy(r *schema.Refused) *Refused {
	e := &Refused{Reason: r.Reason, Field: r.Field, Text: r.Text}
	if r.Reason == schema.RefusedElsewhere {
		e.server = r.Have
		return e
	}
	if r.Text == "" {
		e.Text = fmt.Sprintf("%s: registered %s, this trainer has %s", r.Field, r.Have, r.Want)
	}
	if r.Field == "start.digest" {
		e.Text += ": want all trainers to begin with the same values: seed them alike, or give them one model"
	}
	return e
}

// refusedFrame words a refusal of a frame. frame names the shard and the frame.
func refusedFrame(frame, reason, text string) *Refused {
	if reason == schema.ReasonNonFinite.String() {
		text += "; where the loss had been growing, a smaller learning rate helps"
	}
	return &Refused{Reason: reason, Text: text, frame: frame}
}

// replacedBy words that the slot is another trainer's.
func replacedBy(job schema.JobName, text string) *Refused {
	return &Refused{Reason: schema.RefusedReplaced, Text: fmt.Sprintf("job %s: %s", job, text)}
}

// isFrameRefused reports that a shard refused a frame, which it therefore never answers.
func isFrameRefused(err error) bool {
	r, ok := errors.AsType[*Refused](err)
	return ok && r.frame != ""
}
