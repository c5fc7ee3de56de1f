package ps

import "gradbus/schema"

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
	done.growth = a.growth.With(a.increment, done.bytes, touched)
	return done
}

// base is the version since which it is told what was touched, and whether nothing else is written.
func (k *checkpointing) base() (since schema.Version, increment bool) {
	return k.durable.version, k.durable.version > 0 && k.growth.GoesOn()
}
