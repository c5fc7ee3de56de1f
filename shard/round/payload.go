package round

// Payload is the memory that a frame lies in, and a lease of it: who is done with the bytes calls Release, once. Its
// bytes are private to the receiver, who may write to them.
type Payload interface{ Release() }

// Release gives a payload back where there is one.
func Release(p Payload) {
	if p != nil {
		p.Release()
	}
}

// Held counts the bytes of payloads that open rounds hold, by who sent them. It is not safe for concurrent use.
type Held struct {
	byContributor []int64
	total         int64
}

// NewHeld counts for a number of contributors.
func NewHeld(contributors int) *Held { return &Held{byContributor: make([]int64, contributors)} }

// add counts bytes of a contributor; a negative number releases them.
func (h *Held) add(contributor int, bytes int64) {
	h.byContributor[contributor] += bytes
	h.total += bytes
}

// Bytes is what all senders' payloads hold, Of what a contributor's do.
func (h *Held) Bytes() int64 { return h.total }

// Of is the part of Bytes that came from a contributor.
func (h *Held) Of(contributor int) int64 { return h.byContributor[contributor] }
