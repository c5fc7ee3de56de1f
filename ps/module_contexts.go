package ps

import (
	"gradbus/round"
	"gradbus/schema"
)

// A context belongs to one trainer. It is busy while a request works with it; whoever ends it meanwhile only marks it, and it goes
// when the request is done with it.

// open makes a context, busy, unless the trainer has as many as the manifest allows.
func (d *hosted) open(host int) (*moduleContext, *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held[host] >= d.spec.Contexts {
		return nil, schema.Refuse(schema.ReasonOverBudget, "%s has %d contexts of module %q, and the manifest allows %d: step, or give one back",
			d.modules.config.Hosts[host].Member, d.held[host], d.spec.Name, d.spec.Contexts)
	}
	d.held[host]++
	d.last++
	c := &moduleContext{id: d.last, host: host, busy: true}
	d.contexts[c.id] = c
	return c, nil
}

// use finds contexts of a trainer and makes them busy: all, or none.
func (d *hosted) use(host int, ids []uint64) ([]*moduleContext, *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cs := make([]*moduleContext, len(ids))
	for i, id := range ids {
		c := d.contexts[id]
		switch {
		case c == nil && d.why[host] != "":
			return nil, schema.Refuse(schema.ReasonUnknownContext, "context %d of module %q: it was stepped, or expired: %s", id, d.spec.Name, d.why[host])
		case c == nil:
			return nil, schema.Refuse(schema.ReasonUnknownContext, "context %d of module %q: there is none, or it was stepped or given back", id, d.spec.Name)
		case c.host != host:
			return nil, schema.Refuse(schema.ReasonUnknownContext, "context %d of module %q is another trainer's", id, d.spec.Name)
		}
		cs[i] = c
	}
	for _, c := range cs {
		c.busy = true
	}
	return cs, nil
}

// free makes contexts usable by the next request.
func (d *hosted) free(cs ...*moduleContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		if c.busy = false; c.over {
			d.endLocked(c)
		}
	}
}

// end ends contexts that the caller has made busy; nil ones are passed over.
func (d *hosted) end(cs ...*moduleContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		if c != nil {
			d.endLocked(c)
		}
	}
}

func (d *hosted) endLocked(c *moduleContext) {
	if d.contexts[c.id] != c {
		return
	}
	delete(d.contexts, c.id)
	d.held[c.host]--
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

// passDone lets go of what a context held for its backward pass, and keeps the gradients.
func (d *hosted) passDone(c *moduleContext, sum *tensors) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unpinLocked(c.version)
	round.Release(c.payload)
	c.version, c.net, c.payload, c.input, c.sum = nil, nil, nil, nil, sum
}

// undo takes back what a request did whose answer nobody waits for any more: the context that it opened.
func (d *hosted) undo(host int, a *moduleAnswer) {
	if a == nil || !a.opened {
		return
	}
	if cs, refused := d.use(host, []uint64{a.context}); refused == nil {
		d.end(cs...)
	}
}

// expire ends all contexts of a trainer, and forgets a request of it that has not come whole.
func (d *hosted) expire(host int, cause string) (contexts int) {
	s := &d.seats[host]
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
		if c.host != host {
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
		d.why[host] = cause
	}
	return contexts
}
