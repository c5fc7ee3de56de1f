package trainer

import (
	"fmt"
	"math"
)

// keySet finds the distinct keys of one table over all lanes that a trainer hosts. Its memory is reused from batch to
// batch, so what it returns is valid until the next call of find.
type keySet struct {
	keys []uint64 // distinct, ascending: local id i is keys[i]
	ids  []int64  // local id of each occurrence, in the order of the occurrences

	sorted, spare []occurrence
}

// occurrence is one use of a key; the sort carries its position along.
type occurrence struct {
	key uint64
	at  uint32
}

// find sets keys to the distinct values of occurrences, ascending, and ids to the local id of each occurrence. Local
// ids are dense from 0 and in the order of the keys.
//
//	[]uint64{9, 4, 9} -> keys [4 9], ids [1 0 1]
func (s *keySet) find(occurrences []uint64) error {
	n := len(occurrences)
	if n > math.MaxUint32 {
		return fmt.Errorf("%d keys of one table in one batch: want at most %d", n, uint32(math.MaxUint32))
	}
	s.ids, s.keys = grown(s.ids, n), s.keys[:0]
	if n == 0 {
		return nil
	}
	if ascend(occurrences) { // as those do that were found distinct before
		s.keys = append(s.keys, occurrences...)
		for i := range s.ids {
			s.ids[i] = int64(i)
		}
		return nil
	}
	s.sorted, s.spare = grown(s.sorted, n), grown(s.spare, n)
	s.sort(occurrences)
	local := int64(-1)
	for i, o := range s.sorted {
		if i == 0 || o.key != s.sorted[i-1].key {
			local++
			s.keys = append(s.keys, o.key)
		}
		s.ids[o.at] = local
	}
	return nil
}

// ascend reports whether keys are distinct, each above the one before it.
func ascend(keys []uint64) bool {
	for i := 1; i < len(keys); i++ {
		if keys[i] <= keys[i-1] {
			return false
		}
	}
	return true
}

// sort is a radix sort by bytes, lowest first. A byte in which all keys agree is skipped, so that keys below 2^16 take
// two passes. 2,000 keys below 2^16 take 15 us where a comparison sort takes 120.
func (s *keySet) sort(occurrences []uint64) {
	var counts [8][256]uint32
	for i, key := range occurrences {
		s.sorted[i] = occurrence{key, uint32(i)}
		for digit := range counts {
			counts[digit][byte(key>>(8*digit))]++
		}
	}
	for digit := range counts {
		count := &counts[digit]
		if count[byte(occurrences[0]>>(8*digit))] == uint32(len(occurrences)) {
			continue
		}
		var next uint32
		for i, n := range count {
			count[i] = next
			next += n
		}
		for _, o := range s.sorted {
			b := byte(o.key >> (8 * digit))
			s.spare[count[b]] = o
			count[b]++
		}
		s.sorted, s.spare = s.spare, s.sorted
	}
}

// grown gives a slice of n elements that reuses s where it is large enough. The elements are what they happen to be.
func grown[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	return make([]T, n, n+n/4)
}
