package trainer

import (
	"errors"
	"fmt"

	"gradbus/schema"
)

// Refused is the error of a request that the coordinator or a shard refused: a join, a change of
// learning rates, a checkpoint, a request to a hosted module, or a frame. A refused frame ends the session; any other refusal changes nothing. If the
// session stays readable after a refused frame (Session.Err), its weights are those before the batch. Otherwise some
// shards may have applied their part of the batch.
//
//	if r, ok := errors.AsType[*trainer.Refused](err); ok && r.Reason == "job_differs" {
type Refused struct {
	Reason string // reason code, listed in docs/protocol.md: "job_differs", "job_full", "non_finite"
	Field  string // manifest field that differs from the registered job, with "job_differs"
	Text   string // details for people
	frame  string // sender and coordinates of the refused frame; empty if the request was no frame
	server string // address of the ps that has the job, with schema.RefusedElsewhere
}

// errReplaced matches the refusal of a trainer whose slot was assigned to another one.
var errReplaced = &Refused{Reason: schema.RefusedReplaced}

// Error implements error.
func (r *Refused) Error() string {
	if r.frame != "" {
		return fmt.Sprintf("frame refused: %s: %s: %s", r.frame, r.Reason, r.Text)
	}
	return fmt.Sprintf("refused (%s): %s", r.Reason, r.Text)
}

// Is reports whether target is a Refused with the same reason and field; an empty field of target matches any.
func (r *Refused) Is(target error) bool {
	t, ok := target.(*Refused)
	return ok && (t.Reason == "" || t.Reason == r.Reason) && (t.Field == "" || t.Field == r.Field)
}

// refusedBy returns the error for a coordinator's refusal. If manifests differ, its text names the field and both
// values.
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

// refusedFrame returns the error for a shard's refusal. frame names the shard and the frame.
func refusedFrame(frame, reason, text string) *Refused {
	if reason == schema.ReasonNonFinite.String() {
		text += "; where the loss had been growing, a smaller learning rate helps"
	}
	return &Refused{Reason: reason, Text: text, frame: frame}
}

// replacedBy returns the error of a trainer whose slot was assigned to another one.
func replacedBy(job schema.JobName, text string) *Refused {
	return &Refused{Reason: schema.RefusedReplaced, Text: fmt.Sprintf("job %s: %s", job, text)}
}

// isFrameRefused reports whether a shard refused a frame, so no result of it will come.
func isFrameRefused(err error) bool {
	r, ok := errors.AsType[*Refused](err)
	return ok && r.frame != ""
}
