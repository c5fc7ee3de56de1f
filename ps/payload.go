package ps

// Payload is the memory that a frame lies in, and a lease of it: who is done with the bytes calls Release, once. Its bytes
// are private to the receiver, who may write to them.
type Payload interface{ Release() }

// release gives a payload back where there is one.
func release(p Payload) {
	if p != nil {
		p.Release()
	}
}
