// Package schema is what goes over the wire: one FlatBuffers message, the frame, for every kind of traffic, the job's
// manifest, the control messages and the placement of parameters and tables.
//
// It knows the bytes and the rules that hold for one frame or one manifest on its own. It must not know sockets,
// subjects, time, who is a member, or any arithmetic. Everything above it (ps, trainer) talks of Head, View and Frame;
// only this package touches the generated accessors in schema/wire.
//
// Writing: NewFrame lays a frame out once, SetHead, Float32s, Keys and SetSection refill it in place, and Seal puts the
// checksum in and returns the bytes. Reading: Verify checks all of the bytes before anything is read through them, and
// the View that it returns points into them without a copy:
//
//	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, Values: 4 * len(gradient)})
//	f.SetHead(schema.Head{Batch: 7, Chunks: 1, Node: lane.Node{Count: 1}, Lanes: 4, Weight: 32})
//	copy(f.Float32s(), gradient)
//	publish(f.Seal())
//
//	v, err := schema.Verify(message, schema.Limits{})
//	sum(v.Float32s())
//
// A Pulse (pulse.go, pulse_codec.go, pulse_check.go) is what a member says of itself to whoever watches: JSON in a frame, of which every number,
// text, name and list is checked when it is written and when it is read, so that who shows or exports it need not.
//
// The format is gradbus.fbs; docs/protocol.md says how to speak it from another language. schema/wire is generated:
// scripts/generate.sh writes it again, and `make verify` compares. Values are little-endian and are viewed in place, so
// the package compiles for little-endian machines only.
//
// A newcomer may add a control message (control.go), a reason (reason.go) or a check of the manifest (job_check.go).
// Frames are another matter: whatever changes in gradbus.fbs, in a kind's rules or in the checksum needs a new version
// number, golden frames in testdata beside the old ones, and a word in docs/protocol.md.
package schema
