package schema

import (
	"unsafe"

	"gradbus/lane"
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
		return v, Refuse(ReasonOversized, "%d bytes: want at most %d", len(data), lim.FrameBytesMax)
	}
	t, problem := rootTable(data)
	if problem != "" {
		return v, Refuse(ReasonMalformed, "%s (%d bytes)", problem, len(data))
	}
	headPos, problem := t.field(fieldHead, headBytes, headAlign)
	if problem == "" && headPos == 0 {
		problem = "absent"
	}
	if problem != "" {
		return v, Refuse(ReasonMalformed, "head: %s", problem)
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
		return Refuse(ReasonMalformed, "magic %#08x: want %#08x", m, uint32(magic))
	}
	if n := w.Version(); n != WireVersion {
		return Refuse(ReasonUnknownVersion, "wire version %d: %s speaks %d, and only equal versions "+
			"speak to each other: update the older one", n, ThisProgram(), WireVersion)
	}
	if have, want := w.Crc(), checksum(data, headPos); have != want {
		return Refuse(ReasonDamaged, "checksum %08x, but the bytes give %08x", have, want)
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
	if v.bags, err = locateVector(t, "bags", fieldBags, bagsBytes, 4); err != nil {
		return err
	}
	if v.offsets, err = locateVector(t, "offsets", fieldOffsets, 4, 4); err != nil {
		return err
	}
	if v.body, err = locateVector(t, "body", fieldBody, 1, 1); err != nil {
		return err
	}
	pos, problem := t.field(fieldAck, ackBytes, 8)
	if problem != "" {
		return Refuse(ReasonMalformed, "ack: %s", problem)
	}
	v.ack = pos
	return nil
}

func locateVector(t *flatTable, name string, slot, size, align int) (span, *FrameError) {
	lo, hi, problem := t.vector(slot, size, align)
	if problem != "" {
		return span{}, Refuse(ReasonMalformed, "%s: %s", name, problem)
	}
	return span{lo, hi}, nil
}

// checkParts checks that the parts are those of the kind and fit each other.
func (v *View) checkParts(lim *Limits) *FrameError {
	r := &rules[v.head.Kind]
	keys, sections := v.keys.bytes()/8, v.sections.bytes()/sectionBytes
	switch {
	case v.values.bytes() != 0 && !r.values:
		return Refuse(ReasonMalformed, "values: a %v frame has none", v.head.Kind)
	case sections != 0 && !r.keys, keys != 0 && !r.keys && r.contexts.most == 0:
		return Refuse(ReasonMalformed, "keys or sections: a %v frame has none", v.head.Kind)
	case (v.bags.bytes() != 0 || v.offsets.bytes() != 0) && !r.bags:
		return Refuse(ReasonMalformed, "bags or offsets: a %v frame has none", v.head.Kind)
	case v.bags.bytes() != 0 && v.bags.bytes()/bagsBytes != sections:
		return Refuse(ReasonWrongShape, "%d bags entries of %d sections: want one of each, or none",
			v.bags.bytes()/bagsBytes, sections)
	case (v.ack != 0) != r.ack:
		return Refuse(ReasonMalformed, "ack: an ack frame has one, and no other has; this is a %v frame", v.head.Kind)
	case v.body.bytes() != 0 && r.body == never:
		return Refuse(ReasonMalformed, "body: a %v frame has none", v.head.Kind)
	case v.body.bytes() == 0 && r.body == always:
		return Refuse(ReasonMalformed, "body: a %v frame has one", v.head.Kind)
	case v.body.bytes() > lim.bodyBytesMax:
		return Refuse(ReasonOversized, "body of %d bytes: want at most %d", v.body.bytes(), lim.bodyBytesMax)
	case keys > lim.keysMax:
		return Refuse(ReasonOversized, "%d keys: want at most %d", keys, lim.keysMax)
	case sections > SectionsMax:
		return Refuse(ReasonOversized, "%d sections: want at most %d", sections, SectionsMax)
	case v.values.bytes() != 0 && v.values.bytes()%v.head.DType.Bytes() != 0:
		return Refuse(ReasonWrongShape, "%d bytes of values: want a multiple of %d", v.values.bytes(), v.head.DType.Bytes())
	case v.head.Kind == KindDense && v.values.bytes() == 0 && v.head.Weight != 0:
		return Refuse(ReasonWrongShape, "no values, but a weight of %v", v.head.Weight)
	}
	switch {
	case r.module:
		return v.checkContexts(r)
	case v.head.Kind == KindPull:
		return v.checkPull(keys, sections)
	}
	return v.checkSections(keys, r.rows || r.someRow && sections > 0)
}

// checkPull: a pull of a table has one section, and the key to go on from; other pulls have neither.
func (v *View) checkPull(keys, sections int) *FrameError {
	if keys != sections || keys > 1 {
		return Refuse(ReasonWrongShape, "pull with %d sections and %d keys: want one of each, or none", sections, keys)
	}
	for _, s := range v.Sections() {
		if s.Dim < 1 || s.Dim > DimMax || s.Count < 1 || s.Count > keysMax {
			return Refuse(ReasonWrongShape, "pull of %d rows of dim %d: want 1 to %d rows, dim 1 to %d", s.Count, s.Dim,
				keysMax, DimMax)
		}
	}
	return nil
}

// checkSections checks that counts add up to the keys and, with rows, dims to the values; that tables ascend, and that
// keys do within each, or, with bags, lanes and offsets.
func (v *View) checkSections(keys int, rows bool) *FrameError {
	all, bags, offsets := v.Keys(), v.Bags(), v.Offsets()
	var values uint64
	var before Bags
	for i, s := range v.Sections() {
		var b Bags
		if bags != nil {
			b = bags[i]
		}
		switch {
		case i > 0 && s.Table <= v.Section(i-1).Table && !follows(s, b, v.Section(i-1), before):
			return Refuse(ReasonUnsortedKeys,
				"section %d is of table %d after table %d: want tables ascending, or lanes with bags of one table",
				i, s.Table, v.Section(i-1).Table)
		case s.Dim < 1 || s.Dim > DimMax:
			return Refuse(ReasonWrongShape, "section %d: dim %d: want 1 to %d", i, s.Dim, DimMax)
		case s.Count > uint64(len(all)):
			return Refuse(ReasonWrongShape, "section %d: %d keys where the frame has %d left", i, s.Count, len(all))
		case uint64(b.Count) > min(s.Count, uint64(len(offsets))) && !rules[v.head.Kind].pooled:
			return Refuse(ReasonWrongShape, "section %d: %d bags of %d keys where the frame has %d offsets left", i, b.Count,
				s.Count, len(offsets))
		}
		own := all[:s.Count]
		all = all[s.Count:]
		if b.Count > 0 && rules[v.head.Kind].pooled {
			if err := checkPooled(i, s, len(offsets)); err != nil {
				return err
			}
			before = b
			values += uint64(b.Count) * uint64(s.Dim) // below 2^49, of at most 2^12 sections
			continue
		}
		if b.Count > 0 {
			if err := checkBags(i, b, offsets[:b.Count], len(own), &v.head); err != nil {
				return err
			}
			offsets, before = offsets[b.Count:], b
			values += uint64(b.Count) * uint64(s.Dim) // at most keysMax * DimMax in all
			continue
		}
		if b.Lane != 0 {
			return Refuse(ReasonMalformed, "section %d: lane %d without bags", i, b.Lane)
		}
		before = b
		values += s.Count * uint64(s.Dim)
		for k := 1; k < len(own); k++ {
			if own[k] <= own[k-1] {
				return Refuse(ReasonUnsortedKeys, "table %d: key %d after key %d: want keys strictly ascending", s.Table,
					own[k], own[k-1])
			}
		}
	}
	switch {
	case len(all) != 0:
		return Refuse(ReasonWrongShape, "%d keys, of which %d are in no section", keys, len(all))
	case len(offsets) != 0:
		return Refuse(ReasonWrongShape, "%d offsets, of which %d are of no bag", len(v.Offsets()), len(offsets))
	}
	want := values * uint64(v.head.DType.Bytes())
	if bytes := uint64(v.values.bytes()); rows && bytes != want {
		return Refuse(ReasonWrongShape, "%d bytes of values: want %d for the sections' rows", bytes, want)
	}
	return nil
}

// follows reports whether a section with bags may follow one of the same table: with those of a later lane.
func follows(s Section, b Bags, last Section, before Bags) bool {
	return s.Table == last.Table && b.Count > 0 && before.Count > 0 && b.Lane > before.Lane
}

// checkBags checks one section's bags: their lane is one of the node's, and each has a key of its own.
func checkBags(i int, b Bags, offsets []uint32, keys int, h *Head) *FrameError {
	if rules[h.Kind].node == never && b.Lane >= lane.LanesMax {
		return Refuse(ReasonWrongNode, "section %d: bags of lane %d: want one below %d", i, b.Lane, lane.LanesMax)
	}
	if rules[h.Kind].node != never && (b.Lane < uint32(h.Node.First) || uint64(b.Lane) >= uint64(h.Node.End())) {
		return Refuse(ReasonWrongNode, "section %d: bags of lane %d in a frame of lanes %v", i, b.Lane, h.Node)
	}
	if offsets[0] != 0 {
		return Refuse(ReasonWrongShape, "section %d: the first bag begins at key %d: want 0", i, offsets[0])
	}
	for k := 1; k < len(offsets); k++ {
		if offsets[k] <= offsets[k-1] {
			return Refuse(ReasonWrongShape,
				"section %d: bag %d begins at key %d, the one before it at %d: want a key in each bag",
				i, k, offsets[k], offsets[k-1])
		}
	}
	if last := offsets[len(offsets)-1]; uint64(last) >= uint64(keys) {
		return Refuse(ReasonWrongShape, "section %d: the last bag begins at key %d of %d", i, last, keys)
	}
	return nil
}

// CheckJob checks that the frame is of this run of the job and of its present membership.
func (v *View) CheckJob(run RunID, generation Generation) error {
	switch {
	case v.head.Job != run:
		return Refuse(ReasonForeignJob, "run id %016x: want %016x", uint64(v.head.Job), uint64(run))
	case v.head.Generation < generation:
		return Refuse(ReasonOldGeneration, "generation %d: the job is at %d", v.head.Generation, generation)
	case v.head.Generation > generation:
		return Refuse(ReasonEarlyGeneration, "generation %d: the job is at %d here", v.head.Generation, generation)
	}
	return nil
}
