package module

import (
	"gradbus/schema"
	"gradbus/shard/round"
)

// A context belongs to one trainer. It is busy while a request uses it; if it is ended while busy it is only marked,
// and removed when the request is done.

// open returns a new busy context, unless the trainer has as many as the manifest allows. One further context may pin a
// version for reading.
func (d *hosted) open(contributor int, reads bool) (*pass, *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if held := d.held[contributor]; held > d.spec.Contexts || held == d.spec.Contexts && !reads {
		return nil, schema.Refuse(schema.ReasonOverBudget,
			"%s has %d contexts of module %q, and the manifest allows %d: step, or give one back",
			d.set.config.Contributors[contributor].Member, d.held[contributor], d.spec.Name, d.spec.Contexts)
	}
	d.held[contributor]++
	d.last++
	c := &pass{id: d.last, contributor: contributor, busy: true}
	d.contexts[c.id] = c
	return c, nil
}

// use returns contexts of a trainer and marks them busy: all of them or none.
func (d *hosted) use(contributor int, ids []uint64) ([]*pass, *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cs := make([]*pass, len(ids))
	for i, id := range ids {
		c := d.contexts[id]
		switch {
		case c == nil && d.why[contributor] != "":
			return nil, schema.Refuse(schema.ReasonUnknownContext, "context %d of module %q: it was stepped, or expired: %s", id,
				d.spec.Name, d.why[contributor])
		case c == nil:
			return nil, schema.Refuse(schema.ReasonUnknownContext,
				"context %d of module %q: there is none, or it was stepped or given back", id, d.spec.Name)
		case c.contributor != contributor:
			return nil, schema.Refuse(schema.ReasonUnknownContext, "context %d of module %q is another trainer's", id,
				d.spec.Name)
		}
		cs[i] = c
	}
	for _, c := range cs {
		c.busy = true
	}
	return cs, nil
}

// free makes contexts usable by the next request.
func (d *hosted) free(cs ...*pass) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		if c.busy = false; c.over {
			d.endLocked(c)
		}
	}
}

// end ends contexts that the caller has made busy; it skips nil.
func (d *hosted) end(cs ...*pass) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		if c != nil {
			d.endLocked(c)
		}
	}
}

func (d *hosted) endLocked(c *pass) {
	if d.contexts[c.id] != c {
		return
	}
	delete(d.contexts, c.id)
	d.held[c.contributor]--
	d.unpinLocked(c.version)
	if c.net != nil {
		d.nets = append(d.nets, c.net)
	}
	if c.sum != nil {
		d.idle = append(d.idle, c.sum)
	}
	round.Release(c.payload)
	c.version, c.net, c.sum, c.payload, c.input = nil, nil, nil, nil, nil
}

// passDone releases what a context held for its backward pass, and keeps the gradients.
func (d *hosted) passDone(c *pass, sum *tensors) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unpinLocked(c.version)
	round.Release(c.payload)
	c.version, c.net, c.payload, c.input, c.sum = nil, nil, nil, nil, sum
}

// undo removes the context that a request opened, after its trainer has stopped waiting for the answer.
func (d *hosted) undo(contributor int, a *answer) {
	if a == nil || !a.opened {
		return
	}
	if cs, refused := d.use(contributor, []uint64{a.context}); refused == nil {
		d.end(cs...)
	}
}

// expire ends all contexts of a trainer and drops a request of it that is incomplete.
func (d *hosted) expire(contributor int, cause string) (contexts int) {
	s := &d.slots[contributor]
	s.mu.Lock()
	if s.request != nil && s.request.missing > 0 {
		s.request.drop()
		s.request = nil
		s.sealed = nil
	}
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.contexts { // in any order: nothing depends on it
		if c.contributor != contributor {
			continue
		}
		contexts++
		if c.busy {
			c.over = true
			continue
		}
		d.endLocked(c)
	}
	if contexts > 0 {
		d.why[contributor] = cause
	}
	return contexts
}
