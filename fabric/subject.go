package fabric

import (
	"fmt"
	"strconv"
	"strings"
)

// Kinds of message, the fifth token of a subject. Acks, control, heartbeats, pulls and lookups use the control
// connection, all others the bulk connection of the sender and the results connection of the receiver.
const (
	KindDense     = "dense"
	KindSparse    = "sparse"
	KindReduce    = "reduce" // dense and sparse contributions from trainer to trainer
	KindMean      = "mean"
	KindLookup    = "lookup"
	KindPool      = "pool" // a lookup on the bulk connection, read together with earlier contributions
	KindRows      = "rows"
	KindPull      = "pull"
	KindAck       = "ack"
	KindCtl       = "ctl"
	KindHeartbeat = "beat"    // with a telemetry report when one is due
	KindState     = "state"   // state of a shard, to a replica
	KindReplica   = "replica" // parameters that trainers own, to and from the shard that stores them
	KindModule    = "module"  // to and from a hosted module, whose name ends the subject

	// KindFill is padding that the data connection occasionally publishes without a subscriber; it is no frame.
	KindFill = "fill"
)

// Any matches every value of a token in a pattern.
const Any = "*"

const (
	subjectRoot      = "gradbus.v1."
	tokenBytesMax    = 63
	subjectTokensMax = 8 // gradbus v1 job from kind to batch bucket
)

// Subject is the address of a message: sender, kind, receiver and round.
//
//	gradbus.v1.{job}.{from}.{kind}.{to}[.{batch}[.{bucket}]]
//	gradbus.v1.{job}.{from}.module.{to}.{name}
type Subject struct {
	Job, From, Kind, To string
	Name                string // of a module; for kind module only, and required there
	Batch               uint64 // valid if HasBatch
	Bucket              uint32 // valid if HasBucket
	HasBatch, HasBucket bool   // HasBucket implies HasBatch
}

// At returns the subject without a batch. The tokens are checked by Publish.
func At(job, from, kind, to string) Subject {
	return Subject{Job: job, From: from, Kind: kind, To: to}
}

// OfModule returns the subject of kind module with the name of a module.
func (s Subject) OfModule(name string) Subject {
	s.Kind, s.Name = KindModule, name
	return s
}

// WithBatch returns the subject with a batch.
func (s Subject) WithBatch(batch uint64) Subject {
	s.Batch, s.HasBatch = batch, true
	s.Bucket, s.HasBucket = 0, false
	return s
}

// WithBucket returns the subject with a batch and a bucket.
func (s Subject) WithBucket(batch uint64, bucket uint32) Subject {
	s.Batch, s.HasBatch = batch, true
	s.Bucket, s.HasBucket = bucket, true
	return s
}

// Patterns for Guard, for all subjects of this package, and for those of NATS's service protocol.
const (
	All         = subjectRoot + ">"
	AllServices = "$SRV.>"
)

// AllFrom returns the pattern of everything that a member sends, in any job.
func AllFrom(member string) string { return subjectRoot + Any + "." + member + ".>" }

// check reports the first token that is not of the form [a-z0-9-]{1,63}.
func (s Subject) check() error {
	for _, t := range [...]struct{ what, token string }{
		{"job", s.Job}, {"sender", s.From}, {"kind", s.Kind}, {"receiver", s.To},
	} {
		if !validToken(t.token) {
			return fmt.Errorf("%w: %s %q: want 1 to 63 of a-z, 0-9 and -", ErrSubject, t.what, t.token)
		}
	}
	if s.Kind == KindModule && (!validToken(s.Name) || s.HasBatch) || s.Kind != KindModule && s.Name != "" {
		return fmt.Errorf("%w: module %q in a subject of kind %s: want 1 to 63 of a-z, 0-9 and - in kind %s alone, "+
			"and no batch", ErrSubject, s.Name, s.Kind, KindModule)
	}
	if s.HasBucket && !s.HasBatch {
		return fmt.Errorf("%w: bucket %d without a batch", ErrSubject, s.Bucket)
	}
	return nil
}

// append appends the subject's text to b. It allocates only if b has no room.
func (s Subject) append(b []byte) []byte {
	b = append(b, subjectRoot...)
	b = append(b, s.Job...)
	b = append(b, '.')
	b = append(b, s.From...)
	b = append(b, '.')
	b = append(b, s.Kind...)
	b = append(b, '.')
	b = append(b, s.To...)
	if s.Name != "" {
		b = append(b, '.')
		b = append(b, s.Name...)
	}
	if s.HasBatch {
		b = append(b, '.')
		b = strconv.AppendUint(b, s.Batch, 10)
		if s.HasBucket {
			b = append(b, '.')
			b = strconv.AppendUint(b, uint64(s.Bucket), 10)
		}
	}
	return b
}

// String returns the subject's text, with one allocation. Tokens are not checked.
func (s Subject) String() string {
	var room [128]byte
	return string(s.append(room[:0]))
}

// ParseSubject parses a subject's text, without allocating if it is valid. String returns the same text: numbers have
// no leading zeros and no sign.
func ParseSubject(text string) (Subject, error) {
	rest, ok := strings.CutPrefix(text, subjectRoot)
	if !ok {
		return Subject{}, fmt.Errorf("%w %q: want it to begin with %s", ErrSubject, clip(text), subjectRoot)
	}
	var s Subject
	more := true
	for _, token := range [...]*string{&s.Job, &s.From, &s.Kind, &s.To} {
		if *token, rest, more = strings.Cut(rest, "."); !validToken(*token) {
			return Subject{}, fmt.Errorf("%w %q: want gradbus.v1.job.from.kind.to, each of a-z, 0-9 and -",
				ErrSubject, clip(text))
		}
	}
	if s.Kind == KindModule {
		if s.Name = rest; !more || !validToken(rest) {
			return Subject{}, fmt.Errorf("%w %q: want gradbus.v1.job.from.module.to.name", ErrSubject, clip(text))
		}
		return s, nil
	}
	if !more {
		return s, nil
	}
	number, rest, more := strings.Cut(rest, ".")
	if s.Batch, s.HasBatch = decimal(number, 1<<64-1); !s.HasBatch {
		return Subject{}, fmt.Errorf("%w %q: batch %q is not a number", ErrSubject, clip(text), clip(number))
	}
	if !more {
		return s, nil
	}
	bucket, ok := decimal(rest, 1<<32-1)
	if !ok {
		return Subject{}, fmt.Errorf("%w %q: bucket %q is not a number of 32 bits", ErrSubject, clip(text), clip(rest))
	}
	s.Bucket, s.HasBucket = uint32(bucket), true
	return s, nil
}

// ListenAt returns the patterns that together match everything addressed to a member: first subjects without a batch
// (acks, control, heartbeats, pulls), then each kind with a batch, and those of modules. No message matches two of
// them. job may be Any.
func ListenAt(job, to string) []string {
	patterns := []string{Pattern(job, Any, Any, to, false)}
	for _, kind := range []string{KindLookup, KindPool, KindDense, KindSparse, KindReduce, KindMean, KindRows,
		KindModule, KindReplica} {
		patterns = append(patterns, Pattern(job, Any, kind, to, true))
	}
	return patterns
}

// Pattern returns a pattern over subjects of one kind, with or without a batch. Any token may be Any.
func Pattern(job, from, kind, to string, keyed bool) string {
	p := Subject{Job: job, From: from, Kind: kind, To: to}.String()
	if keyed {
		p += ".>"
	}
	return p
}

// route returns the connection that sends a kind.
func route(kind string) lineIndex {
	if small(kind) {
		return controlLine
	}
	return bulkLine
}

// small reports whether a kind must not wait behind bulk. A lookup's keys are a hundredth of the rows that answer it.
func small(kind string) bool {
	switch kind {
	case KindAck, KindCtl, KindHeartbeat, KindPull, KindLookup:
		return true
	}
	return false
}

// routePattern checks a pattern and returns the connection that delivers it. If the kind is a wildcard, subjects with a
// batch count as bulk and others as small.
func routePattern(pattern string) (lineIndex, error) {
	tokens := strings.Split(pattern, ".")
	bad := func(why string) (lineIndex, error) {
		return 0, fmt.Errorf("%w: pattern %q: %s", ErrSubject, clip(pattern), why)
	}
	if len(tokens) < 3 || tokens[0]+"."+tokens[1]+"." != subjectRoot {
		return bad("want it to begin with " + subjectRoot)
	}
	if len(tokens) > subjectTokensMax {
		return bad("more than 8 tokens")
	}
	for i, token := range tokens {
		if token == ">" && i == len(tokens)-1 || token == Any || validToken(token) {
			continue
		}
		return bad(fmt.Sprintf("token %d, %q: want 1 to 63 of a-z, 0-9 and -, or * (or > at the end)", i+1, clip(token)))
	}
	wild := len(tokens) < 5 || tokens[4] == Any || tokens[4] == ">"
	if !wild && small(tokens[4]) || wild && len(tokens) == 6 && tokens[5] != ">" {
		return controlLine, nil
	}
	return resultsLine, nil
}

func validToken(token string) bool {
	if len(token) == 0 || len(token) > tokenBytesMax {
		return false
	}
	for i := 0; i < len(token); i++ {
		c := token[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// decimal parses digits without sign or leading zeros, up to a limit.
func decimal(text string, limit uint64) (uint64, bool) {
	if text == "" || len(text) > 1 && text[0] == '0' {
		return 0, false
	}
	var n uint64
	for i := 0; i < len(text); i++ {
		d := uint64(text[i] - '0')
		if d > 9 || n > (limit-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// clip shortens foreign text in an error.
func clip(text string) string {
	const bytesMax = 100
	if len(text) > bytesMax {
		return text[:bytesMax] + "..."
	}
	return text
}
