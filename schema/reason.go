package schema

import (
	"errors"
	"fmt"
	"strconv"
)

// Reason is the result of a frame: accepted, or why it was refused. Refusals and counters use names, not numbers.
type Reason uint8

const (
	ReasonOK              Reason = iota // accepted
	ReasonDuplicate                     // accepted before; answered again, not counted again
	ReasonStaleBatch                    // of a batch that has closed
	ReasonEarlyBatch                    // of a batch that has not begun
	ReasonForeignJob                    // of another run of the job, or of one that has ended
	ReasonJobUnknown                    // no such job here
	ReasonOldGeneration                 // from before the last change of membership
	ReasonEarlyGeneration               // from a change of membership that is not known here yet
	ReasonUnknownSender                 // not a member of the job
	ReasonWrongSender                   // a member, but not of these lanes; or in the name of another member
	ReasonWrongShape                    // lengths or counts do not fit each other or the job
	ReasonWrongDType                    // values of a type that the kind does not have, or that is not the job's
	ReasonWrongNode                     // not a node of the lane tree, or one that overlaps what is already there
	ReasonWrongWeight                   // a weight that is negative, or differs from the batch's
	ReasonWrongChunk                    // chunk not below chunks, or chunks not as the job has them
	ReasonNonFinite                     // a value or a weight is NaN or infinite
	ReasonDamaged                       // the checksum does not match
	ReasonMalformed                     // not a frame, or one with fields that its kind does not have
	ReasonOversized                     // above a limit
	ReasonUnknownVersion                // of a version that this program does not read
	ReasonUnknownKind                   // of a kind that is not known, or not taken here
	ReasonUnknownBucket                 // no such bucket, or not of this shard
	ReasonUnknownTable                  // no such table
	ReasonUnknownKey                    // no such key, or not of this shard
	ReasonUnsortedKeys                  // sections or keys that are not strictly ascending
	ReasonOverBudget                    // would need more memory than the budget
	ReasonUnknownModule                 // no such module, or not on this shard
	ReasonUnknownContext                // no such context: never opened, stepped, released, expired, or foreign
	reasonCount
)

// ReasonCount is the number of reasons: a counter for each is an array of that size.
const ReasonCount = int(reasonCount)

var reasonNames = [reasonCount]string{
	ReasonOK: "ok", ReasonDuplicate: "duplicate", ReasonStaleBatch: "stale_batch", ReasonEarlyBatch: "early_batch",
	ReasonForeignJob: "foreign_job", ReasonJobUnknown: "job_unknown", ReasonOldGeneration: "old_generation",
	ReasonEarlyGeneration: "early_generation", ReasonUnknownSender: "unknown_sender", ReasonWrongSender: "wrong_sender",
	ReasonWrongShape: "wrong_shape", ReasonWrongDType: "wrong_dtype", ReasonWrongNode: "wrong_node",
	ReasonWrongWeight: "wrong_weight", ReasonWrongChunk: "wrong_chunk", ReasonNonFinite: "non_finite",
	ReasonDamaged: "damaged", ReasonMalformed: "malformed", ReasonOversized: "oversized",
	ReasonUnknownVersion: "unknown_version", ReasonUnknownKind: "unknown_kind", ReasonUnknownBucket: "unknown_bucket",
	ReasonUnknownTable: "unknown_table", ReasonUnknownKey: "unknown_key", ReasonUnsortedKeys: "unsorted_keys",
	ReasonOverBudget: "over_budget", ReasonUnknownModule: "unknown_module", ReasonUnknownContext: "unknown_context",
}

// String returns the reason's name on the wire and in counters, or its number if it has none.
func (r Reason) String() string {
	if r < reasonCount {
		return reasonNames[r]
	}
	return "reason " + strconv.Itoa(int(r))
}

// FrameError reports why a frame was refused. Nothing in the frame has been used.
type FrameError struct {
	Reason Reason
	Detail string // what was found and what would be right
}

// Error implements error.
func (e *FrameError) Error() string { return fmt.Sprintf("frame refused (%v): %s", e.Reason, e.Detail) }

// Refuse returns a FrameError; the arguments are those of fmt.Sprintf.
func Refuse(r Reason, format string, args ...any) *FrameError {
	return &FrameError{r, fmt.Sprintf(format, args...)}
}

// Refusing returns the FrameError within err; if there is none, one with the text of err.
func Refusing(err error) *FrameError {
	if e, ok := errors.AsType[*FrameError](err); ok {
		return e
	}
	return &FrameError{ReasonOf(err), err.Error()}
}

// ReasonOf returns the reason within err: that of a FrameError, ReasonOK for nil, and ReasonMalformed for any other
// error.
func ReasonOf(err error) Reason {
	if err == nil {
		return ReasonOK
	}
	if e, ok := errors.AsType[*FrameError](err); ok {
		return e.Reason
	}
	return ReasonMalformed
}
