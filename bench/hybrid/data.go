package hybrid

import "gradbus/philox"

// batch is one trainer's: ids, where each bag of them begins and the last one ends, and the class of each bag.
type batch struct {
	ids     []uint64
	offsets []int64 // [bags+1]
	targets []int32 // [bags]
}

// draw makes the batch of a number and a lane: 20 to 50 ids, cut into bags of 1 to 10, the last of which may be
// shorter. It is a pure function of its arguments, and reuses the memory.
func (x *batch) draw(seed uint64, number uint64, lane uint64, embeddings int) {
	random := philox.New(seed, "hybrid", number, lane, 0)
	n := idsMin + int(random.Below(idsMax-idsMin+1))
	x.ids, x.offsets, x.targets = x.ids[:0], x.offsets[:0], x.targets[:0]
	for range n {
		x.ids = append(x.ids, uint64(random.Below(uint32(embeddings))))
	}
	for at := 0; at < n; at += 1 + int(random.Below(bagMax)) {
		x.offsets, x.targets = append(x.offsets, int64(at)), append(x.targets, int32(random.Below(classes)))
	}
	x.offsets = append(x.offsets, int64(n))
}
