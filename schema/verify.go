package schema

import (
	"unsafe"

	"gradbus/schema/wire"
)

// readAlign is what the address of received bytes must be a multiple of for keys to be viewed in place.
const readAlign = 8

// Verify checks that data is a whole frame of this version before anything is read through it: size, identifier, every
// offset, bound and alignment, magic, version, kind, checksum, and that the parts are those of the kind and fit each
// other. After it, no method of the View can read outside data or panic, whatever the bytes were.
//
// What depends on the job is left to the caller: who sent it, run id and generation, and CheckFrame of Placement for
// buckets, tables and lengths. Values are not looked at; NaN and infinities pass.
//
// The View points into data, which must not change while it is used. Only where the address of data is not a multiple
// of 8 the bytes are copied, once; otherwise nothing is allocated. An error is always a *FrameError.
//
//	v, err := Verify(message.Data, Limits{})
func Verify(data []byte, lim Limits) (View, error) {
	v, err := verify(data, lim.orDefault())
	if err != nil {
		return View{}, err
	}
	return v, nil
}

func verify(data []byte, lim Limits) (View, *FrameError) {
	var v View
	if len(data) > lim.FrameBytesMax {
		return v, refused(ReasonOversized, "%d bytes: want at most %d", len(data), lim.FrameBytesMax)
	}
	t, problem := rootTable(data)
	if problem != "" {
		return v, refused(ReasonMalformed, "%s (%d bytes)", problem, len(data))
	}
	headPos, problem := t.field(fieldHead, headBytes, headAlign)
	if problem == "" && headPos == 0 {
		problem = "absent"
	}
	if problem != "" {
		return v, refused(ReasonMalformed, "head: %s", problem)
	}
	if err := checkSeal(data, headPos); err != nil {
		return v, err
	}
	v = View{data: data, head: readHead(data, headPos)}
	if err := checkHead(&v.head); err != nil {
		return v, err
	}
	if err := v.locate(&t); err != nil {
		return v, err
	}
	if uintptr(unsafe.Pointer(&data[0]))%readAlign != 0 {
		v.data, v.copied = alignedBytes(len(data)), true
		copy(v.data, data)
	}
	return v, v.checkParts(&lim)
}

// checkSeal checks what makes the rest of the frame worth reading: magic, version and checksum.
func checkSeal(data []byte, headPos int) *FrameError {
	var w wire.Head
	w.Init(data, flatOffset(headPos))
	if m := w.Magic(); m != magic {
		return refused(ReasonMalformed, "magic %#08x: want %#08x", m, uint32(magic))
	}
	if n := w.Version(); n != WireVersion {
		return refused(ReasonUnknownVersion, "version %d: this program speaks %d", n, WireVersion)
	}
	if have, want := w.Crc(), checksum(data, headPos); have != want {
		return refused(ReasonDamaged, "checksum %08x, but the bytes give %08x", have, want)
	}
	return nil
}

// locate finds the frame's parts.
func (v *View) locate(t *flatTable) (err *FrameError) {
	if v.values, err = locateVector(t, "values", fieldValues, 1, valuesAlign); err != nil {
		return err
	}
	if v.keys, err = locateVector(t, "keys", fieldKeys, 8, 8); err != nil {
		return err
	}
	if v.sections, err = locateVector(t, "sections", fieldSections, sectionBytes, 8); err != nil {
		return err
	}
	if v.body, err = locateVector(t, "body", fieldBody, 1, 1); err != nil {
		return err
	}
	pos, problem := t.field(fieldAck, ackBytes, 8)
	if problem != "" {
		return refused(ReasonMalformed, "ack: %s", problem)
	}
	v.ack = pos
	return nil
}

func locateVector(t *flatTable, name string, slot, size, align int) (span, *FrameError) {
	lo, hi, problem := t.vector(slot, size, align)
	if problem != "" {
		return span{}, refused(ReasonMalformed, "%s: %s", name, problem)
	}
	return span{lo, hi}, nil
}

// checkParts checks that the parts are those of the kind and fit each other.
func (v *View) checkParts(lim *Limits) *FrameError {
	r := &rules[v.head.Kind]
	keys, sections := v.keys.bytes()/8, v.sections.bytes()/sectionBytes
	switch {
	case v.values.bytes() != 0 && !r.values:
		return refused(ReasonMalformed, "values: a %v frame has none", v.head.Kind)
	case (keys != 0 || sections != 0) && !r.keys:
		return refused(ReasonMalformed, "keys or sections: a %v frame has none", v.head.Kind)
	case (v.ack != 0) != r.ack:
		return refused(ReasonMalformed, "ack: an ack frame has one, and no other has; this is a %v frame", v.head.Kind)
	case v.body.bytes() != 0 && r.body == never:
		return refused(ReasonMalformed, "body: a %v frame has none", v.head.Kind)
	case v.body.bytes() == 0 && r.body == always:
		return refused(ReasonMalformed, "body: a %v frame has one", v.head.Kind)
	case v.body.bytes() > lim.BodyBytesMax:
		return refused(ReasonOversized, "body of %d bytes: want at most %d", v.body.bytes(), lim.BodyBytesMax)
	case keys > lim.KeysMax:
		return refused(ReasonOversized, "%d keys: want at most %d", keys, lim.KeysMax)
	case sections > SectionsMax:
		return refused(ReasonOversized, "%d sections: want at most %d", sections, SectionsMax)
	case v.values.bytes() != 0 && v.values.bytes()%v.head.DType.Bytes() != 0:
		return refused(ReasonWrongShape, "%d bytes of values: want a multiple of %d", v.values.bytes(), v.head.DType.Bytes())
	case v.head.Kind == KindDense && v.values.bytes() == 0 && v.head.Weight != 0:
		return refused(ReasonWrongShape, "no values, but a weight of %v", v.head.Weight)
	}
	if v.head.Kind == KindPull {
		return v.checkPull(keys, sections)
	}
	return v.checkSections(keys, r.rows)
}

// checkPull: a pull of a table has one section, and the key to go on from; other pulls have neither.
func (v *View) checkPull(keys, sections int) *FrameError {
	if keys != sections || keys > 1 {
		return refused(ReasonWrongShape, "pull with %d sections and %d keys: want one of each, or none", sections, keys)
	}
	for _, s := range v.Sections() {
		if s.Dim < 1 || s.Dim > DimMax || s.Count < 1 || s.Count > KeysMax {
			return refused(ReasonWrongShape, "pull of %d rows of dim %d: want 1 to %d rows, dim 1 to %d", s.Count, s.Dim, KeysMax, DimMax)
		}
	}
	return nil
}

// checkSections checks that counts add up to the keys and, with rows, dims to the values; that tables ascend, and that
// keys do within each.
func (v *View) checkSections(keys int, rows bool) *FrameError {
	var all = v.Keys()
	var values uint64
	for i, s := range v.Sections() {
		switch {
		case i > 0 && s.Table <= v.Section(i-1).Table:
			return refused(ReasonUnsortedKeys, "section %d is of table %d after table %d: want tables ascending", i, s.Table, v.Section(i-1).Table)
		case s.Dim < 1 || s.Dim > DimMax:
			return refused(ReasonWrongShape, "section %d: dim %d: want 1 to %d", i, s.Dim, DimMax)
		case s.Count > uint64(len(all)):
			return refused(ReasonWrongShape, "section %d: %d keys where the frame has %d left", i, s.Count, len(all))
		}
		own := all[:s.Count]
		all = all[s.Count:]
		values += s.Count * uint64(s.Dim) // at most KeysMax * DimMax in all
		for k := 1; k < len(own); k++ {
			if own[k] <= own[k-1] {
				return refused(ReasonUnsortedKeys, "table %d: key %d after key %d: want keys strictly ascending", s.Table, own[k], own[k-1])
			}
		}
	}
	if len(all) != 0 {
		return refused(ReasonWrongShape, "%d keys, of which %d are in no section", keys, len(all))
	}
	want := values * uint64(v.head.DType.Bytes())
	if bytes := uint64(v.values.bytes()); rows && bytes != want {
		return refused(ReasonWrongShape, "%d bytes of values: want %d for the sections' rows", bytes, want)
	}
	return nil
}

// CheckJob checks that the frame is of this run of the job and of its present membership.
func (v *View) CheckJob(run RunID, generation Generation) error {
	switch {
	case v.head.Job != run:
		return refused(ReasonForeignJob, "run id %016x: want %016x", uint64(v.head.Job), uint64(run))
	case v.head.Generation < generation:
		return refused(ReasonOldGeneration, "generation %d: the job is at %d", v.head.Generation, generation)
	case v.head.Generation > generation:
		return refused(ReasonEarlyGeneration, "generation %d: the job is at %d here", v.head.Generation, generation)
	}
	return nil
}
