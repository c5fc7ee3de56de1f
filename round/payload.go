package round

// Payload is the memory that a frame lies in, and a lease of it: who is done with the bytes calls Release, once. Its bytes
// are private to the receiver, who may write to them.
type Payload interface{ Release() }

// Release gives a payload back where there is one.
func Release(p Payload) {
	if p != nil {
		p.Release()
	}
}

// Held counts the bytes of payloads that open rounds hold, by who sent them. It is not safe for concurrent use.
type Held struct {
	byHost []int64
	total  int64
}

// NewHeld counts for a number of hosts.
func NewHeld(hosts int) *Held { return &Held{byHost: make([]int64, hosts)} }

// Add counts bytes of the host-th sender; a negative number lets them go.
func (h *Held) Add(host int, bytes int64) {
	h.byHost[host] += bytes
	h.total += bytes
}

// Bytes is what all senders' payloads hold, Of what the host-th sender's do.
func (h *Held) Bytes() int64 { return h.total }

// Of is the part of Bytes that came from the host-th sender.
func (h *Held) Of(host int) int64 { return h.byHost[host] }
