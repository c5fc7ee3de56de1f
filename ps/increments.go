package ps

import "gradbus/schema"

// incrementsMax bounds how many increments are over a full checkpoint: a restore reads all of them.
const incrementsMax = 32

// chain is what a durable version goes on from, and what tells whether the next one is to be an increment over it.
type chain struct {
	full    int64 // bytes of the full checkpoint; 0: there is none
	over    int64 // of the increments over it
	length  int   // how many they are
	touched int64 // what the newest increment took, or would have taken
}

// goesOn says whether an increment over it is worth while: until all of them take as much as a full checkpoint, so that
// a restore reads twice that at most.
func (k chain) goesOn() bool {
	return k.full > 0 && k.length < incrementsMax && k.over+k.touched < k.full
}

// with is the chain with a version of so many bytes.
func (k chain) with(increment bool, bytes, touched int64) chain {
	if !increment {
		return chain{full: bytes, touched: touched}
	}
	return chain{full: k.full, over: k.over + bytes, length: k.length + 1, touched: touched}
}

// completing is what Completed is told where the version of which all parts have come becomes durable.
func (c *Coordinator) completing() completion {
	a := &c.checkpoints.asked[0]
	done := completion{version: a.version, asked: a.at}
	touched := int64(0)
	for _, p := range a.parts {
		done.bytes += p.Bytes
		touched += p.Touched
	}
	if a.since == 0 {
		touched = 0 // since when is not known, so it is all
	}
	done.chain = a.chain.with(a.increment, done.bytes, touched)
	return done
}

// base is the version since which it is told what was touched, and whether nothing else is written.
func (k *checkpointing) base() (since schema.Version, increment bool) {
	return k.durable.version, k.durable.version > 0 && k.chain.goesOn()
}
