package checkpoint

import (
	"fmt"
	"sort"
)

// covered is which numbers have come, of those from 0 on: spans that ascend and do not touch. Pieces of a snapshot come
// nearly in order, so they are few.
type covered []span

type span struct{ lo, hi int64 }

// add fails where any of [lo, hi) has come before, and then changes nothing.
func (c *covered) add(lo, hi int64) error {
	if lo >= hi {
		return nil
	}
	all := *c
	at := sort.Search(len(all), func(i int) bool { return all[i].hi >= lo })
	if at < len(all) && all[at].hi == lo {
		if at+1 < len(all) && all[at+1].lo < hi {
			return fmt.Errorf("%d comes twice", all[at+1].lo)
		}
		all[at].hi = hi
		if at+1 < len(all) && all[at+1].lo == hi {
			all[at].hi = all[at+1].hi
			*c = append(all[:at+1], all[at+2:]...)
		}
		return nil
	}
	switch {
	case at < len(all) && all[at].lo < hi:
		return fmt.Errorf("%d comes twice", max(lo, all[at].lo))
	case at < len(all) && all[at].lo == hi:
		all[at].lo = lo
	default:
		all = append(all, span{})
		copy(all[at+1:], all[at:])
		all[at] = span{lo, hi}
		*c = all
	}
	return nil
}

// missing is the first of [0, n) that has not come; false where all have.
func (c covered) missing(n int64) (int64, bool) {
	switch {
	case n == 0:
		return 0, false
	case len(c) == 0 || c[0].lo > 0:
		return 0, true
	}
	return c[0].hi, c[0].hi < n
}
