package ps

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"gradbus/schema"
)

const (
	// largeControlBytes is from which size on a control message is no longer read by the control loop itself: decoding
	// takes 10 us for each KiB. Of members only joins, which carry a manifest, may be as large.
	largeControlBytes = 64 << 10
	// checkingBytesMax bounds the frames of joins whose manifests wait to be checked, and those of joins that wait for the
	// registry, besides joinsMax.
	checkingBytesMax = 16 << 20
	// largeBytesMax is the part of it that joins of more than largeControlBytes may have.
	largeBytesMax = checkingBytesMax / 4 * 3
	// verdictsMax bounds the number of remembered checked manifests: more than wait to be acquired.
	verdictsMax = 4 * acquiresMax
)

// manifests reads large joins, and checks the manifests of jobs that are not registered, on a goroutine of its own: a
// check may take tenths of a second, for which the control loop would stand. Each content is checked once. One join of
// a sender is in work at a time; what finds too many others is dropped, and trainers repeat it. Joins are decoded
// first, so that none whose manifest is known waits for checks of others, and the small ones before the large ones: see
// next. Large ones leave room for small ones.
type manifests struct {
	check   func(*schema.Job) *schema.Refused
	wake    chan struct{} // has room for one: there is a join to read
	results chan *message // to the control loop
	checks  atomic.Uint64 // that were made

	mu      sync.Mutex // a leaf
	inWork  map[joinSender]struct{}
	bytes   int
	waiting []*waitingJoin // in the order in which they came

	// What follows belongs to the goroutine.
	turns    int
	verdicts map[[sha256.Size]byte]*schema.Refused
	order    [][sha256.Size]byte // the oldest first
}

// waitingJoin is a join that waits to be decoded or, as its manifest is not known, to be checked.
type waitingJoin struct {
	*message
	digest *[sha256.Size]byte // of the manifest, where it is decoded
}

// joinSender is who wants to join what.
type joinSender struct {
	job  schema.JobName
	from schema.Member
}

func newManifests(check func(*schema.Job) *schema.Refused) *manifests {
	return &manifests{check: check, wake: make(chan struct{}, 1), results: make(chan *message),
		inWork: map[joinSender]struct{}{}, verdicts: map[[sha256.Size]byte]*schema.Refused{}}
}

// offer takes a join whose manifest is to be checked, and reports whether it did. It never waits.
func (f *manifests) offer(m *message) bool {
	sender, most := joinSender{m.job, m.from}, checkingBytesMax
	if m.bytes > largeControlBytes {
		most = largeBytesMax
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, busy := f.inWork[sender]; busy || f.bytes+m.bytes > most || len(f.inWork) == joinsMax {
		return false
	}
	f.waiting = append(f.waiting, &waitingJoin{message: m})
	f.inWork[sender] = struct{}{}
	f.bytes += m.bytes
	nudge(f.wake)
	return true
}

// taken notes that the control loop has a result.
func (f *manifests) taken(m *message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.inWork, joinSender{m.job, m.from})
	f.bytes -= m.bytes
}

// run is the goroutine. It ends with ctx.
func (f *manifests) run(ctx context.Context) {
	for {
		w := f.next()
		if w == nil {
			select {
			case <-f.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if !f.read(w) {
			f.mu.Lock()
			f.waiting = append(f.waiting, w)
			f.mu.Unlock()
			continue
		}
		select {
		case f.results <- w.message:
		case <-ctx.Done():
			return
		}
	}
}

// oldestTurn is the number of joins after which the longest waiting one is read, so that none waits forever.
const oldestTurn = 16

// next takes the join that is read next: the smallest of those that are to be decoded, else of those that are to be
// checked; the oldest of equals, and now and then the oldest of all. It is nil where there is none.
func (f *manifests) next() *waitingJoin {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) == 0 {
		return nil
	}
	at := 0
	if f.turns++; f.turns%oldestTurn != 0 {
		for i, w := range f.waiting {
			is := f.waiting[at]
			if decode, before := w.digest == nil, is.digest == nil; decode && !before ||
				decode == before && w.bytes < is.bytes {
				at = i
			}
		}
	}
	w := f.waiting[at]
	f.waiting = slices.Delete(f.waiting, at, at+1)
	return w
}

// read decodes a join, or checks its manifest where it is decoded, and reports whether that is done with: a manifest
// that is not known yet waits for a turn of its own.
func (f *manifests) read(w *waitingJoin) (done bool) {
	if w.digest == nil {
		return f.decode(w)
	}
	refused, known := f.verdicts[*w.digest] // another join may have had it checked
	if !known {
		refused = f.check(w.control.Join.Job)
		f.checks.Add(1)
		if len(f.order) == verdictsMax {
			delete(f.verdicts, f.order[0])
			f.order = f.order[1:]
		}
		f.verdicts[*w.digest], f.order = refused, append(f.order, *w.digest)
	}
	w.checked, w.refused = true, refused
	return true
}

// decode decodes a join, and reports whether it has to be checked no more: it is wrong, or its manifest is known.
func (f *manifests) decode(w *waitingJoin) (done bool) {
	if w.control == nil {
		if c, err := w.message.decode(); err == nil && c.Join == nil {
			w.invalid = schema.Refuse(schema.ReasonOversized, "control %s of %d bytes: want at most %d", c.Name(), w.bytes,
				largeControlBytes)
		}
		if w.invalid != nil {
			return true
		}
	}
	text, err := json.Marshal(w.control.Join.Job)
	if err != nil { // a number that is not finite, which JSON does not have
		w.invalid = err
		return true
	}
	digest := sha256.Sum256(text)
	w.digest = &digest
	w.refused, w.checked = f.verdicts[digest]
	return w.checked
}
