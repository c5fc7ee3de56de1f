package ps

import (
	"context"
	"crypto/sha256"
	"encoding/json"
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
	// verdictsMax is how many manifests are remembered that were checked: more than wait to be acquired.
	verdictsMax = 4 * acquiresMax
)

// manifests reads large joins, and checks the manifests of jobs that are not registered, on a goroutine of its own: a
// check may take tenths of a second, for which the control loop would stand. Each content is checked once. One join of
// a sender is in work at a time; what finds too many others is dropped, and trainers repeat it.
type manifests struct {
	check   func(*schema.Job) *schema.Refused
	todo    chan *message
	results chan *message // to the control loop
	checks  atomic.Uint64 // that were made

	mu     sync.Mutex // a leaf
	inWork map[joinSender]struct{}
	bytes  int

	// What follows belongs to the goroutine.
	verdicts map[[sha256.Size]byte]*schema.Refused
	order    [][sha256.Size]byte // the oldest first
}

// joinSender is who wants to join what.
type joinSender struct {
	job  schema.JobName
	from schema.Member
}

func newManifests(check func(*schema.Job) *schema.Refused) *manifests {
	return &manifests{check: check, todo: make(chan *message, joinsMax), results: make(chan *message),
		inWork: map[joinSender]struct{}{}, verdicts: map[[sha256.Size]byte]*schema.Refused{}}
}

// offer takes a join whose manifest is to be checked, and reports whether it did. It never waits.
func (f *manifests) offer(m *message) bool {
	sender := joinSender{m.job, m.from}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, busy := f.inWork[sender]; busy || f.bytes+m.bytes > checkingBytesMax {
		return false
	}
	select {
	case f.todo <- m:
		f.inWork[sender] = struct{}{}
		f.bytes += m.bytes
		return true
	default:
		return false
	}
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
		select {
		case m := <-f.todo:
			f.read(m)
			select {
			case f.results <- m:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// read decodes a join and checks its manifest.
func (f *manifests) read(m *message) {
	if m.control == nil {
		c, err := schema.DecodeControl(&m.view)
		if err == nil && c.Join == nil {
			err = schema.Refuse(schema.ReasonOversized, "control %s of %d bytes: want at most %d", c.Name(), m.bytes,
				largeControlBytes)
		}
		m.control, m.invalid, m.view = &c, err, schema.View{}
		if err != nil {
			return
		}
	}
	join := m.control.Join
	text, err := json.Marshal(join.Job)
	if err != nil { // a number that is not finite, which JSON does not have
		m.invalid = err
		return
	}
	digest := sha256.Sum256(text)
	refused, known := f.verdicts[digest]
	if !known {
		refused = f.check(join.Job)
		f.checks.Add(1)
		if len(f.order) == verdictsMax {
			delete(f.verdicts, f.order[0])
			f.order = f.order[1:]
		}
		f.verdicts[digest], f.order = refused, append(f.order, digest)
	}
	m.checked, m.refused = true, refused
}
