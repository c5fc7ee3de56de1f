package ps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/schema"
)

// acquireRequest asks for a job without a coordinator.
type acquireRequest struct {
	job    *schema.Job
	left   trainersLeft  // for whom it is to have places
	joiner schema.Member // who wants to join
	voter  uint64        // schema.Join.Number of who comes back from a run; else 0
	resume bool          // it wants the newest durable version
	back   schema.RunID  // the run that it comes back from; 0: none
	alone  bool          // all its shards are to be here
	over   schema.RunID  // an earlier run of it with shards here, whose coordinator is no more; 0 is none
}

// acquisition is the outcome: this ps coordinates the job, or another does, or none can, or the joiner had its run.
type acquisition struct {
	job     *schema.Job
	left    trainersLeft
	resume  bool
	back    schema.RunID
	record  *jobRecord    // nil where another ps has the job, the join came too late, or err is set
	servers []leaseRecord // that the record names, in its order
	peers   []leaseRecord // that may keep its shards
	ended   []endedRun    // of the name, where the join came too late
	waits   string        // why the job of another ps is not taken yet; empty: it is
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
		c, err := r.tryAcquire(ctx, q)
		if err == nil {
			c.resume, c.back, c.left = q.resume, q.back, q.left
			return c
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
	none := acquisition{job: job}
	r.bindDecisions()
	err := r.writeLease(ctx)
	if err == nil {
		err = r.settle(ctx)
	}
	if err == nil { // the watch then has every ps that was announced before our write
		err = r.leases.Reach(ctx, r.revision)
	}
	if err != nil {
		return none, err
	}
	all := r.list()
	servers := slices.DeleteFunc(slices.Clone(all), func(a leaseRecord) bool { return !r.speaks(a) })
	peers := servers
	if q.alone {
		servers = slices.DeleteFunc(slices.Clone(servers), func(a leaseRecord) bool { return a.ID != r.self.ID })
	}
	run, err := newRunID()
	if err != nil {
		return none, err
	}
	o := &ownJob{record: jobRecord{RunID: run, Generation: generationFirst, Coordinator: r.self.ID,
		Incarnation: r.self.Incarnation, Servers: dataServers(servers), Job: job}}
	e, err := r.jobs.Get(ctx, string(job.Name))
	ended := endedOf(e)
	switch {
	case errors.Is(err, fabric.ErrNoKey):
		err = r.write(o, func(value []byte) (uint64, error) { return r.jobs.Create(ctx, string(job.Name), value) })
	case err != nil:
		return none, err
	case tookPart(ended, q.joiner):
		return acquisition{job: job, ended: ended}, nil
	case len(ended) > 0:
		o.record.Ended = ended
		err = r.write(o, func(value []byte) (uint64, error) { return r.jobs.Update(ctx, e.Key, value, e.Revision) })
	case r.alive(all, e):
		return none, nil
	default: // Its coordinator is not there. The first ps to write has the job.
		var there jobRecord
		if json.Unmarshal(e.Value, &there) == nil &&
			!mayTake(there.Voters, q.voter, r.isKnownToHaveEnded(all, job.Name, &there)) {
			return acquisition{job: job, waits: there.waits(job.Name)}, nil
		}
		err = r.write(o, func(value []byte) (uint64, error) { return r.jobs.Update(ctx, e.Key, value, e.Revision) })
	}
	switch {
	case err == nil:
		return acquisition{job: job, record: &o.record, servers: servers, peers: peers}, nil
	case errors.Is(err, fabric.ErrKeyExists): // another ps was faster
		err = errAgain
	}
	return none, err
}

// mayTake reports whether a ps may take the record of a job whose coordinator is not announced: one of the voters that
// the record names follows it, or none was named, or the coordinator is known to have ended.
func mayTake(voters []schema.Voter, follower uint64, ended bool) bool {
	return ended || voters == nil || slices.ContainsFunc(voters, func(v schema.Voter) bool {
		return v.Number == follower && follower != 0
	})
}

// isKnownToHaveEnded reports whether the coordinator of a job is known to have ended: its process was seen to, a ps was
// started again with its id, or an operator says so.
func (r *registry) isKnownToHaveEnded(announced []leaseRecord, name schema.JobName, of *jobRecord) bool {
	return of.Incarnation == r.self.Incarnation || r.hasGone(of.Incarnation) || r.isDecided(name, of.RunID) ||
		slices.ContainsFunc(announced, func(a leaseRecord) bool {
			return a.ID == of.Coordinator && a.Incarnation != of.Incarnation
		})
}

// decision is an operator's word that the coordinator of a run has ended. It says nothing about later runs of the job.
type decision struct {
	at  time.Time
	run schema.RunID // 0: the registry's goroutine has not looked yet which run the record has
}

// isDecided reports whether an operator said lately that the coordinator of a run has ended.
func (r *registry) isDecided(name schema.JobName, run schema.RunID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.decided[name]
	return ok && d.run == run && r.now().Sub(d.at) < resumeWindow
}

// decide notes that an operator says that the coordinator of a job has ended.
func (r *registry) decide(name schema.JobName) {
	r.mu.Lock()
	r.decided[name] = decision{at: r.now()}
	maps.DeleteFunc(r.decided, func(_ schema.JobName, d decision) bool { return r.now().Sub(d.at) > resumeWindow })
	r.mu.Unlock()
	nudge(r.wake)
}

// bindDecisions has new decisions be about the runs that the records have now, of jobs whose coordinators are not
// announced. Records are read only if there are such decisions.
func (r *registry) bindDecisions() {
	runs := map[schema.JobName]schema.RunID{}
	r.mu.Lock()
	for name, d := range r.decided {
		if d.run == 0 {
			runs[name] = 0
		}
	}
	r.mu.Unlock()
	if len(runs) == 0 {
		return
	}
	announced := r.list()
	for _, e := range r.records.All() {
		var there jobRecord
		name := schema.JobName(e.Key)
		if _, decided := runs[name]; decided && json.Unmarshal(e.Value, &there) == nil && !r.alive(announced, e) {
			runs[name] = there.RunID
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, run := range runs {
		if d, ok := r.decided[name]; ok && d.run == 0 {
			r.decided[name] = decision{d.at, run}
		}
	}
}

// waits says what a job waits for whose coordinator is not announced, and what decides without it.
func (j *jobRecord) waits(name schema.JobName) string {
	var voters []string
	for _, v := range j.Voters {
		voters = append(voters, string(v.Member))
	}
	return fmt.Sprintf("ps %s, which has the job, is not announced, and may still run it. The job continues at another "+
		"ps when one of its trainers joins: %s. If that ps has ended: %s takeover %s", j.Coordinator,
		cmp.Or(strings.Join(voters, " "), "none is left"), process.Invoked("ps"), name)
}

// placement is a change of the servers in the record of a job, which begins with replicas.
type placement struct {
	name    schema.JobName
	run     schema.RunID
	servers []schema.DataServer
	done    chan error // has room for one
}

// place has the servers of a job written into its record, and waits for that.
func (r *registry) place(ctx context.Context, name schema.JobName, run schema.RunID,
	servers []schema.DataServer) error {
	p := placement{name, run, servers, make(chan error, 1)}
	select {
	case r.places <- p:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeServers is place, on the registry's goroutine.
func (r *registry) writeServers(ctx context.Context, p *placement) error {
	o := r.own[p.name]
	if o == nil || o.record.RunID != p.run {
		return fmt.Errorf("job %s: %w", p.name, errAgain)
	}
	o.record.Servers = p.servers
	within, cancel := context.WithTimeout(ctx, acquireWithin)
	defer cancel()
	return r.write(o,
		func(value []byte) (uint64, error) { return r.jobs.Update(within, string(p.name), value, o.revision) })
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

// assignRequest asks whether an assignment that came from elsewhere is that of the coordinator whom the registry names.
type assignRequest struct {
	message message
	run     schema.RunID
	control *schema.Control // assign or keep
	err     error           // the answer: errForged, or that it is not known; nil: it is
}

// assignsMax bounds the assignments that wait for an answer. A coordinator says its own again each second.
const assignsMax = 64

// errForged says that an assignment does not agree with the registry.
var errForged = errors.New("the registry says otherwise")

// answer looks an assignment up, and tells the control loop.
func (r *registry) answer(ctx context.Context, q assignRequest) {
	within, cancel := context.WithTimeout(ctx, renewWithin)
	q.err = r.check(within, &q)
	cancel()
	select {
	case r.answers <- q:
	case <-ctx.Done():
	}
}

// check compares an assignment with the job's record, which its coordinator has written before it said anything.
func (r *registry) check(ctx context.Context, q *assignRequest) error {
	e, err := r.jobs.Get(ctx, string(q.message.job))
	if errors.Is(err, fabric.ErrNoKey) {
		return fmt.Errorf("assign: %w: no such job", errForged)
	} else if err != nil {
		return err
	}
	var record jobRecord
	if err := json.Unmarshal(e.Value, &record); err != nil || record.Job == nil || record.RunID != q.run ||
		record.Incarnation == r.self.Incarnation {
		return fmt.Errorf("assign: %w: another run, or one of this ps", errForged)
	}
	job, own, of := (*schema.Job)(nil), []int(nil), 0
	if keep := q.control.Keep; keep != nil {
		job, of = keep.Job, keep.Shards
	} else {
		job, own, of = q.control.Assign.Job, q.control.Assign.Own, q.control.Assign.Shards
	}
	// the coordinator may have had room for smaller ones only
	wanted := record.Job.WithChunkBytes(min(record.Job.ChunkBytes, job.ChunkBytes))
	if field, have, want, differs := wanted.Diff(job); differs {
		return fmt.Errorf("assign: %w: %s is %s, not %s", errForged, field, have, want)
	}
	shards := 0
	for _, s := range record.Servers {
		shards += len(s.Shards)
	}
	ours := slices.IndexFunc(record.Servers, func(s schema.DataServer) bool { return s.ID == r.self.ID })
	if r.measure != nil {
		r.measure(job)
	}
	if shards != of || q.control.Assign != nil && (ours < 0 || !slices.Equal(record.Servers[ours].Shards, own)) {
		return fmt.Errorf("assign: %w: shards %v of %d are not those of ps %s", errForged, own, of, r.self.ID)
	}
	return nil
}
