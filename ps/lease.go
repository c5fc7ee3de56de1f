package ps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gradbus/fabric"
)

// renew renews our lease. Where the control server has lost a bucket, be it that of the ps or that of the jobs, it is
// made anew, with all that is ours.
func (r *registry) renew(ctx context.Context) error {
	err := r.writeLease(ctx)
	if err == nil {
		err = r.jobs.Look(ctx)
	}
	if errors.Is(err, fabric.ErrNoBucket) {
		err = r.remake(ctx, err)
	}
	if err == nil {
		r.lost.Store(nil)
	}
	return r.wrote(err)
}

// remake makes what the control server has lost, and writes there what is ours.
func (r *registry) remake(ctx context.Context, why error) error {
	r.log.Warn("the control server has lost a bucket: it is made anew", "control", r.control.Address(), "err", why)
	r.remade = time.Now()
	err := r.openBuckets(ctx)
	if err == nil {
		err = r.writeLease(ctx)
	}
	if err != nil {
		text := fmt.Sprintf("a bucket is lost at %s and cannot be made anew, so no job can be registered: %v",
			r.control.Address(), err)
		r.lost.Store(&text)
		return err
	}
	r.restore(ctx)
	return nil
}

// writeLease renews our lease in the open bucket.
func (r *registry) writeLease(ctx context.Context) error {
	revision, err := r.servers.Update(ctx, r.self.ID, r.encodeLease(), r.revision)
	if err == nil {
		r.revision = revision
	}
	if !errors.Is(err, fabric.ErrKeyExists) {
		return err
	}
	had := r.revision > 0
	if r.revision, err = r.servers.Create(ctx, r.self.ID, r.encodeLease()); errors.Is(err, fabric.ErrKeyExists) {
		return r.reacquire(ctx)
	} else if err != nil {
		return err
	}
	if had { // it is gone, perhaps with everything else: another ps has made the bucket anew
		r.remade = time.Now()
	}
	r.restore(ctx)
	return nil
}

// restore writes our jobs down again where they are not.
func (r *registry) restore(ctx context.Context) {
	for name, o := range r.own {
		revision, err := r.jobs.Create(ctx, string(name), o.value)
		if err == nil {
			o.revision = revision
			continue
		}
		if !errors.Is(err, fabric.ErrKeyExists) {
			r.log.Warn("job not written down again", "job", name, "err", err)
			continue
		}
		if e, err := r.jobs.Get(ctx, string(name)); err == nil {
			var there jobRecord
			if json.Unmarshal(e.Value, &there) == nil && there.RunID != o.record.RunID {
				delete(r.own, name)
				r.tell(ctx, registryNews{stolen: name})
			}
		}
	}
}
