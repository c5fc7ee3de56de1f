// Package schema builds, checks and reads everything that goes over the wire: one FlatBuffers message, the frame, for
// every kind of traffic, the job's manifest, the control messages, and the placement of parameters and tables.
//
// # Use
//
// To write a frame, NewFrame lays it out once; SetHead, Float32s, Keys and SetSection refill it in place; and Seal adds
// the checksum and returns the bytes. To read a frame, Verify checks all of its bytes first, and returns a View that
// refers to them without a copy:
//
//	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, Values: 4 * len(gradient)})
//	f.SetHead(schema.Head{Batch: 7, Chunks: 1, Node: lane.Node{Count: 1}, Lanes: 4, Weight: 32})
//	copy(f.Float32s(), gradient)
//	publish(f.Seal())
//
//	v, err := schema.Verify(message, schema.Limits{})
//	sum(v.Float32s())
//
// A Telemetry (telemetry.go, telemetry_codec.go, telemetry_check.go) is a member's report about itself: JSON in a
// frame. Every number, text, name and list is checked when a report is written and when it is read, so readers need no
// checks of their own.
//
// # What it knows and what it must not know
//
// It knows the bytes, and the rules for a single frame or manifest. It must not know sockets, subjects, time,
// membership, or any arithmetic. The packages above it (ps, trainer) use Head, View and Frame; only this package uses
// the generated accessors in schema/wire.
//
// The format is gradbus.fbs; docs/protocol.md describes it for other languages. scripts/generate.sh generates
// schema/wire, and `make verify` compares. Values are little-endian and are viewed in place, so the package compiles
// for little-endian machines only.
//
// A newcomer may add a control message (control.go), a reason (reason.go) or a check of the manifest (job_check.go). A
// change of gradbus.fbs, of the rules of a kind or of the checksum needs a new version number, golden frames in
// testdata beside the old ones, and a change of docs/protocol.md.
package schema
