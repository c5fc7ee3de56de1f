package cuda

// pair is a key and the row that it came with.
type pair struct {
	key uint64
	row int64
}

// sortPairs sorts by key, equal keys in the order they came in, using spare (as long as pairs) as working memory. The
// result lies in one of the two. A radix sort by bytes, from the least: bytes in which all keys agree cost nothing, so
// ids below 2^16 take two passes.
func sortPairs(pairs, spare []pair) []pair {
	if len(pairs) < 48 {
		insertionSort(pairs)
		return pairs
	}
	var differ uint64
	for _, p := range pairs {
		differ |= p.key ^ pairs[0].key
	}
	for shift := 0; shift < 64; shift += 8 {
		if differ>>shift&0xff == 0 {
			continue
		}
		var start [256]int
		for _, p := range pairs {
			start[p.key>>shift&0xff]++
		}
		total := 0
		for i, n := range start {
			start[i] = total
			total += n
		}
		for _, p := range pairs {
			digit := p.key >> shift & 0xff
			spare[start[digit]] = p
			start[digit]++
		}
		pairs, spare = spare, pairs
	}
	return pairs
}

// insertionSort is stable and has no cost of its own, which decides for a handful of pairs.
func insertionSort(pairs []pair) {
	for i := 1; i < len(pairs); i++ {
		p := pairs[i]
		j := i
		for ; j > 0 && pairs[j-1].key > p.key; j-- {
			pairs[j] = pairs[j-1]
		}
		pairs[j] = p
	}
}

// distinct counts the different keys of sorted pairs.
func distinct(pairs []pair) int {
	n := 0
	for i := range pairs {
		if i == 0 || pairs[i].key != pairs[i-1].key {
			n++
		}
	}
	return n
}
