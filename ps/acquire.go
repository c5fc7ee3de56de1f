package ps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// acquireRequest asks for a job without a coordinator.
type acquireRequest struct {
	job    *schema.Job
	left   trainersLeft  // for whom it is to have places
	joiner schema.Member // who wants to join
	resume bool          // it wants the newest durable version
	back   schema.RunID  // the run that it comes back from; 0: none
	alone  bool          // all its shards are to be here
	offers []offer       // of replicas, from which a version is complete; nil: none
	heard  []holder      // the ps that have answered which replicas they have
	over   schema.RunID  // an earlier run of it with shards here, whose coordinator is no more; 0 is none
}

// acquisition is the outcome: this ps coordinates the job, or another does, or nobody can, or the joiner had its run.
type acquisition struct {
	job     *schema.Job
	left    trainersLeft
	resume  bool
	back    schema.RunID
	record  *jobRecord    // nil where another ps has the job, the join came too late, or err is set
	servers []leaseRecord // that the record names, in its order
	peers   []leaseRecord // that may keep its shards
	offers  []offer       // of replicas on servers; nil: none
	ended   []endedRun    // of the name, where the join came too late
	err     error
}

// acquire makes this ps the coordinator of a job, unless another ps is.
func (r *registry) acquire(ctx context.Context, q *acquireRequest) acquisition {
	job := q.job
	r.dropAll(ctx)
	for pause := r.renewEvery() / 256; ; pause = min(2*pause, r.renewEvery()/8) {
		if run := r.runHere(job.Name); run != 0 && run != q.over {
			return acquisition{job: job} // another ps was first, and has given us shards of it meanwhile
		}
		err := error(nil)
		if q.offers == nil { // else its run is known to be lost, and whose it was
			err = r.settle(ctx)
		}
		if err == nil {
			var c acquisition
			if c, err = r.tryAcquire(ctx, q); err == nil {
				c.resume, c.back, c.left = q.resume, q.back, q.left
				return c
			}
		}
		if errors.Is(err, fabric.ErrNoBucket) {
			if err := r.renew(ctx); err != nil {
				return acquisition{job: job, err: err}
			}
		} else if !errors.Is(err, errAgain) && !errors.Is(err, fabric.ErrLost) {
			return acquisition{job: job, err: fmt.Errorf("write job %s down: %w", job.Name, err)}
		}
		if sleep(ctx, pause) != nil {
			return acquisition{job: job, err: fmt.Errorf("write job %s down: %w: %w", job.Name, fabric.ErrLost, err)}
		}
	}
}

// settle waits, where a bucket was lost, until all others have noticed at their next renewals and written their jobs
// down again: a name of theirs is not free.
func (r *registry) settle(ctx context.Context) error {
	left := time.Until(r.remade.Add(r.renewEvery() * 3 / 2))
	if left <= 0 || r.alone.Load() {
		return nil
	}
	if err := sleep(ctx, left); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrLost, err)
	}
	return nil
}

// errAgain says that the record has changed under our hands.
var errAgain = errors.New("changed meanwhile")

func (r *registry) tryAcquire(ctx context.Context, q *acquireRequest) (acquisition, error) {
	job := q.job
	nobody := acquisition{job: job}
	servers, err := r.list(ctx)
	if err != nil {
		return nobody, err
	}
	if !slices.ContainsFunc(servers, func(a leaseRecord) bool { return a.ID == r.self.ID }) {
		if err := r.renew(ctx); err != nil {
			return nobody, err
		}
		return nobody, errAgain
	}
	all := servers
	servers = slices.DeleteFunc(slices.Clone(servers), func(a leaseRecord) bool { return !r.speaks(a) })
	peers := servers
	if q.alone {
		servers = slices.DeleteFunc(slices.Clone(servers), func(a leaseRecord) bool { return a.ID != r.self.ID })
	}
	data, offers := dataServers(servers), q.offers
	if c, _ := chooseOffer(offers); c != nil {
		if there, shards := c.placeReplicas(servers); there != nil {
			peers, servers, data = answered(servers, q.heard), there, shards
		} else {
			offers = nil
		}
	}
	run, err := newRunID()
	if err != nil {
		return nobody, err
	}
	o := &ownJob{record: jobRecord{RunID: run, Generation: generationFirst, Coordinator: r.self.ID,
		Incarnation: r.self.Incarnation, Servers: data, Job: job}}
	e, err := r.jobs.Get(ctx, string(job.Name))
	ended := endedOf(e)
	switch {
	case errors.Is(err, fabric.ErrNoKey):
		err = r.write(o, func(value []byte) (uint64, error) { return r.jobs.Create(ctx, string(job.Name), value) })
	case err != nil:
		return nobody, err
	case tookPart(ended, q.joiner):
		return acquisition{job: job, ended: ended}, nil
	case len(ended) > 0:
		o.record.Ended = ended
		err = r.write(o, func(value []byte) (uint64, error) { return r.jobs.Update(ctx, e.Key, value, e.Revision) })
	case r.alive(all, e):
		return nobody, nil
	default: // Its coordinator is no more. Whoever deletes it first, one of those who look creates it next.
		if err = r.jobs.Delete(ctx, e.Key, e.Revision); err == nil {
			err = errAgain
		}
	}
	switch {
	case err == nil:
		return acquisition{job: job, record: &o.record, servers: servers, peers: peers, offers: offers}, nil
	case errors.Is(err, fabric.ErrKeyExists): // somebody was faster
		err = errAgain
	}
	return nobody, err
}

// write writes a job of ours down.
func (r *registry) write(o *ownJob, with func(value []byte) (revision uint64, err error)) (err error) {
	if o.value, err = o.record.encode(); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if o.revision, err = with(o.value); err == nil {
		r.own[o.record.Job.Name] = o
	}
	return err
}

// alive reports whether the coordinator of a job that is written down is announced.
func (r *registry) alive(servers []leaseRecord, e fabric.Entry) bool {
	var record jobRecord
	if json.Unmarshal(e.Value, &record) != nil {
		return false
	}
	if record.Incarnation == r.self.Incarnation {
		_, ours := r.own[schema.JobName(e.Key)]
		return ours
	}
	return slices.ContainsFunc(servers, func(a leaseRecord) bool {
		return a.ID == record.Coordinator && a.Incarnation == record.Incarnation
	})
}

// dataServers gives the shards of a job to the ps that are announced: in the order of their ids, each as many as it
// says.
func dataServers(servers []leaseRecord) []schema.DataServer {
	var all []schema.DataServer
	next := 0
	for _, a := range servers {
		d := schema.DataServer{ID: a.ID, URL: a.URL}
		for range a.Shards {
			d.Shards = append(d.Shards, next)
			next++
		}
		all = append(all, d)
	}
	return all
}
