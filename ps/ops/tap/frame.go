// Package tap shows the frames that pass a NATS server, one line each, for people and programs.
//
// It knows subjects, frames and the connection that it listens on. It must not know what sends frames or what they lead
// to, and it says nothing to anybody: a job that is watched runs as one that is not. A newcomer may add what a line
// says.
package tap

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// Frame is what a line says of one message.
type Frame struct {
	Time   time.Time `json:"time"` // of its arrival here
	Job    string    `json:"job"`
	From   string    `json:"from"`
	Kind   string    `json:"kind"` // of the subject
	To     string    `json:"to"`
	Module string    `json:"module,omitempty"`
	// of the subject, or of the frame where the subject has none and its kind has one
	Batch  *uint64 `json:"batch,omitempty"`
	Bucket *uint32 `json:"bucket,omitempty"`
	Bytes  int     `json:"bytes"`
	OK     bool    `json:"ok"`            // size, offsets, version and checksum are as they should be
	Why    string  `json:"why,omitempty"` // where they are not: the reason, and what was found

	// What follows is of frames that are OK.
	Is     string        `json:"is,omitempty"` // the frame's own kind
	Chunk  uint32        `json:"chunk,omitempty"`
	Chunks uint32        `json:"chunks,omitempty"`
	DType  string        `json:"dtype,omitempty"`
	Keys   int           `json:"keys,omitempty"`
	Count  int           `json:"count,omitempty"`  // values
	Values []schema.Real `json:"values,omitempty"` // a sample of them
}

// Read looks at a message. samples is how many of its values to take, evenly over all of them.
func Read(at time.Time, subject fabric.Subject, data []byte, samples int) Frame {
	f := Frame{Time: at, Job: subject.Job, From: subject.From, Kind: subject.Kind, To: subject.To, Module: subject.Name,
		Bytes: len(data)}
	if subject.HasBatch {
		f.Batch = &subject.Batch
	}
	if subject.HasBucket {
		f.Bucket = &subject.Bucket
	}
	v, err := schema.Verify(data, schema.Limits{})
	if err != nil {
		refused := schema.Refusing(err)
		f.Why = refused.Reason.String() + ": " + refused.Detail
		return f
	}
	h := v.Head()
	f.OK, f.Is, f.Keys = true, h.Kind.String(), len(v.Keys())
	if h.Chunks > 0 {
		f.Chunk, f.Chunks = uint32(h.Chunk), uint32(h.Chunks)
	}
	if f.Batch == nil && (h.Kind == schema.KindPull || h.Kind == schema.KindRefusal || h.Kind == schema.KindHeartbeat) {
		batch := uint64(h.Batch)
		f.Batch = &batch
	}
	if h.DType != schema.DTypeNone {
		f.DType, f.Count = h.DType.String(), len(v.Values())/h.DType.Bytes()
		f.Values = sample(&v, samples)
	}
	return f
}

// sample takes n of a frame's values, the first among them; all where it has no more.
func sample(v *schema.View, n int) []schema.Real {
	var value func(i int) float32
	count := 0
	switch h := v.Head(); h.DType {
	case schema.DTypeFloat32:
		all := v.Float32s()
		count, value = len(all), func(i int) float32 { return all[i] }
	case schema.DTypeBFloat16:
		all := v.Halves()
		count, value = len(all), func(i int) float32 { return math.Float32frombits(uint32(all[i]) << 16) }
	case schema.DTypeFloat16:
		all := v.Halves()
		count, value = len(all), func(i int) float32 { return float16(all[i]) }
	}
	n = min(n, count)
	if n <= 0 {
		return nil
	}
	values := make([]schema.Real, n)
	for i := range values {
		values[i] = schema.Real(value(i * count / n))
	}
	return values
}

// float16 is the value of an IEEE 754 binary16.
func float16(bits uint16) float32 {
	sign, exponent, mantissa := 1.0, int(bits>>10&31), float64(bits&1023)
	if bits>>15 == 1 {
		sign = -1
	}
	switch {
	case exponent == 31 && mantissa != 0:
		return float32(math.NaN())
	case exponent == 31:
		return float32(math.Inf(int(sign)))
	case exponent == 0:
		return float32(sign * math.Ldexp(mantissa, -24))
	}
	return float32(sign * math.Ldexp(1024+mantissa, exponent-25))
}

// String is the line for people: time, job, from, to, kind, place, size and whether the frame is whole.
//
//	07:45:42.123456 packages t0 > s1 dense batch 12 bucket 3 chunk 1/2 float32 65536 262272 B ok
func (f *Frame) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s > %s %s", f.Time.Format("15:04:05.000000"), f.Job, f.From, f.To, f.Kind)
	if f.Is != "" && f.Is != f.Kind && f.Kind != fabric.KindCtl {
		b.WriteString(" (" + f.Is + ")")
	}
	if f.Module != "" {
		b.WriteString(" " + f.Module)
	}
	if f.Batch != nil {
		b.WriteString(" batch " + strconv.FormatUint(*f.Batch, 10))
	}
	if f.Bucket != nil {
		b.WriteString(" bucket " + strconv.FormatUint(uint64(*f.Bucket), 10))
	}
	if f.Chunks > 1 {
		fmt.Fprintf(&b, " chunk %d/%d", f.Chunk+1, f.Chunks)
	}
	if f.Keys > 0 {
		fmt.Fprintf(&b, " %d keys", f.Keys)
	}
	if f.DType != "" {
		fmt.Fprintf(&b, " %d %s", f.Count, f.DType)
	}
	fmt.Fprintf(&b, " %d B", f.Bytes)
	if !f.OK {
		b.WriteString(" BAD " + f.Why)
		return b.String()
	}
	b.WriteString(" ok")
	for i, v := range f.Values {
		if i == 0 {
			b.WriteString(" :")
		}
		b.WriteString(" " + strconv.FormatFloat(float64(v), 'g', 6, 32))
	}
	return b.String()
}
