package ps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

const (
	// leaseTime is how long a lease lasts without renewal; a ps renews its own four times as often. A lease
	// decides who gets shards of a new job; running jobs have their own deadline.
	leaseTime = 8 * time.Second
	// aloneAfter is for how many leases no other ps has been announced where this one speaks for all. A ps on a busy
	// machine may renew its lease late, and meanwhile its trainers are not to hear from another ps that their job is
	// unknown.
	aloneAfter = 4
	renewals   = 4
	// readEvery is the number of renewals between two full reads of both buckets, which find what the watches missed. A
	// sweep follows each. deadLooks is the number of sweeps that must find a job without a coordinator before its key is
	// deleted, and goneLooks the number for the key of a job that has ended: a late join may come until then.
	readEvery = 15
	deadLooks = 2
	goneLooks = 3

	// Bounds of the buckets: lease records of some hundred bytes, and manifests of some kilobytes, at most 1 MiB.
	serversBytesMax = 8 << 20
	jobsBytesMax    = 128 << 20
	// acquireWithin bounds the work on one acquisition; where the control server does not answer meanwhile, trainers
	// repeat their join.
	acquireWithin = 5 * time.Second
	// renewWithin bounds the work of one renewal.
	renewWithin = leaseTime / renewals
	// acquiresMax bounds the jobs that wait to be acquired; beyond, trainers repeat their join.
	acquiresMax = 64
)

// leaseRecord is what a ps says of itself, in the bucket of the servers.
type leaseRecord struct {
	ID          string `json:"id"`
	Incarnation uint64 `json:"incarnation,string"` // drawn at its start
	URL         string `json:"url"`                // of its data server; "": the server that has the bucket
	Shards      int    `json:"shards"`
	MemoryBytes int64  `json:"memory_bytes"`      // free for jobs
	Host        string `json:"host"`              // host name and process id, for people
	Leaving     bool   `json:"leaving"`           // its last word: it has no shards any more
	Stands      bool   `json:"stands,omitempty"`  // it keeps shards of others
	Process     string `json:"process,omitempty"` // so that its end is seen on the same machine
	Fingerprint string `json:"fingerprint"`       // schema.Fingerprint of its program; "" of those that had none
}

// jobRecord says who coordinates a job and where its shards are; or, without a coordinator, that none does any more.
type jobRecord struct {
	RunID       schema.RunID        `json:"run_id,string"`
	Generation  schema.Generation   `json:"generation"`
	Coordinator string              `json:"coordinator"` // id of the ps
	Incarnation uint64              `json:"incarnation,string"`
	Servers     []schema.DataServer `json:"servers"`
	Job         *schema.Job         `json:"job"`
	Ended       []endedRun          `json:"ended,omitempty"` // earlier runs, the latest first
	LR          []schema.LRChange   `json:"lr,omitempty"`    // changes of the learning rates while the job runs
	// Voters are those of a run with a replica: with one of them another ps takes the record. nil: none is named yet.
	Voters []schema.Voter `json:"voters"`
}

// registry writes down, where all ps of a control server see it, which of them there are and who coordinates which job.
// Its goroutine does all that waits for the control server, so that the control loop never does.
type registry struct {
	control  *fabric.Control
	self     leaseRecord
	log      *slog.Logger
	free     func() int64                      // memory, for the lease record
	runHere  func(schema.JobName) schema.RunID // the run of a job with shards here; 0 is none
	lease    time.Duration
	acquires chan acquireRequest
	results  chan acquisition // to the control loop
	places   chan placement
	assigns  chan assignRequest
	answers  chan assignRequest // to the control loop
	news     chan registryNews
	done     chan struct{}

	renewed moment // when our lease record was last written; zero: not yet
	now     func() time.Time
	measure func(*schema.Job)      // of an assignment that is the coordinator's, before the control loop makes its shards
	lost    atomic.Pointer[string] // which bucket is lost and cannot be made anew; nil: none

	listed atomic.Pointer[[]string] // ids of all that were announced at the last look; nil before

	alone atomic.Bool // no other ps is announced, nor was one lately, as of the last look

	changed chan struct{} // has room for one: a lease record was added, changed or removed

	// What follows belongs to the goroutine, and to open before it runs.
	servers, jobs   *fabric.Bucket
	leases, records *fabric.Watch // copies of servers and jobs; nil before open
	revision        uint64        // of our lease record
	own             map[schema.JobName]*ownJob
	dead            map[string]deadJob // jobs without a coordinator
	rival           rival              // the ps that last wrote our lease record in our place
	company         time.Time          // when another ps was announced last; zero: never
	remade          time.Time          // when a bucket that was lost was made anew; zero: never
	left            []leftEnded        // what we wrote of jobs that have ended, the oldest first
	leftBytes       int

	back chan struct{} // has room for one: the control server is back, and may have lost everything
	wake chan struct{} // has room for one: jobs have ended, or changed
	mu   sync.Mutex    // guards over, noted, decided and ended
	over []overJob     // jobs that have ended, at most as many as there may be
	// noted is what is to be written into records of jobs
	noted map[schema.JobName]recordChange
	// decided is what operators said of the coordinators of jobs
	decided map[schema.JobName]decision
	// what ps drew at their starts whose processes were seen to end, the latest last, at most endedMax: what they
	// announced holds no more
	ended []uint64
}

// overJob is a job of ours that has ended.
type overJob struct {
	name schema.JobName
	run  endedRun
}

// deadJob is a key without a coordinator: the revision at which it was seen, and how often.
type deadJob struct {
	revision uint64
	looks    int
}

// ownJob is a job that this ps coordinates.
type ownJob struct {
	record   jobRecord
	value    []byte
	revision uint64
}

// registryNews is what the control loop has to know of the other ps.
type registryNews struct {
	servers []leaseRecord  // all that are announced
	stolen  schema.JobName // a job of ours that another ps has registered, after the registry was lost; else ""
	changed recordChange   // what is recorded now; of no run where nothing is
	taken   error          // another ps goes by our id: this one has to end; else nil
}

func newRegistry(control *fabric.Control, self leaseRecord, lease time.Duration, free func() int64,
	keeps func(schema.JobName) schema.RunID, log *slog.Logger) *registry {
	return &registry{
		control: control, self: self, lease: lease, log: log, free: free, runHere: keeps,
		acquires: make(chan acquireRequest, acquiresMax), results: make(chan acquisition), places: make(chan placement),
		assigns: make(chan assignRequest, assignsMax), answers: make(chan assignRequest),
		news: make(chan registryNews), done: make(chan struct{}), own: map[schema.JobName]*ownJob{},
		dead: map[string]deadJob{},
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), now: time.Now,
		noted: map[schema.JobName]recordChange{}, decided: map[schema.JobName]decision{},
	}
}

// peersOf returns what coordinators are told of the announced ps.
func peersOf(servers []leaseRecord) (all []coordinator.Peer) {
	for _, s := range servers {
		all = append(all, coordinator.Peer{ID: s.ID, Incarnation: s.Incarnation, Keeps: s.Stands && !s.Leaving})
	}
	return all
}

// renewEvery is the time between two renewals of the lease.
func (r *registry) renewEvery() time.Duration { return r.lease / renewals }

// errTaken says that another ps goes by our id.
var errTaken = errors.New("id taken")

// open finds or makes the buckets and announces this ps. It takes up to leaseTime where an earlier ps of this id, at
// another address, was lost without a word.
func (r *registry) open(ctx context.Context) error {
	if err := r.openBuckets(ctx); err != nil {
		return err
	}
	for looked := time.Now(); ; {
		e, err := r.servers.Get(ctx, r.self.ID)
		if errors.Is(err, fabric.ErrNoKey) {
			r.revision, err = r.servers.Create(ctx, r.self.ID, r.encodeLease())
			if err == nil || !errors.Is(err, fabric.ErrKeyExists) {
				return r.wrote(err)
			}
			continue
		}
		if err != nil {
			return err
		}
		var there leaseRecord
		broken := json.Unmarshal(e.Value, &there) != nil
		// Our address is ours: who announced it before is no more. So is who announces nothing for so long.
		if broken || there.Leaving || there.URL == r.self.URL || time.Since(looked) > 3*r.renewEvery() &&
			e.Revision == r.revision {
			if r.revision, err = r.servers.Update(ctx, r.self.ID, r.encodeLease(), e.Revision); err == nil ||
				!errors.Is(err, fabric.ErrKeyExists) {
				return r.wrote(err)
			}
			continue
		}
		if r.revision != 0 && e.Revision != r.revision {
			return fmt.Errorf("acquire the lease of ps %s at %s: %w: another ps of that id runs on %s, at %s: want another id",
				r.self.ID, r.control.Address(), errTaken, there.Host, there.URL)
		}
		if r.revision == 0 {
			r.revision = e.Revision
			r.log.Info("waiting for the lease of an earlier ps of this id", "server", r.self.ID, "host", there.Host,
				"url", there.URL)
		}
		if err := sleep(ctx, r.renewEvery()/8); err != nil {
			return err
		}
	}
}

// wrote notes that our lease record was written, unless err says that it was not.
func (r *registry) wrote(err error) error {
	if err == nil {
		r.renewed.set(r.now())
	}
	return err
}

func (r *registry) openBuckets(ctx context.Context) error {
	servers, err := r.control.OpenBucket(ctx, fabric.BucketConfig{Name: schema.ServersBucket, BytesMax: serversBytesMax,
		TTL: r.lease})
	if err != nil {
		return err // what was open before stays, and says for itself that it is no more
	}
	jobs, err := r.control.OpenBucket(ctx, fabric.BucketConfig{Name: schema.JobsBucket, BytesMax: jobsBytesMax})
	if err != nil {
		return err
	}
	r.servers, r.jobs = servers, jobs
	return r.watch(ctx)
}

// watch reads both buckets and starts to watch them.
func (r *registry) watch(ctx context.Context) error {
	leases, err := r.servers.Watch(ctx, func() { nudge(r.changed) })
	if err != nil {
		return err // the earlier watches continue
	}
	records, err := r.jobs.Watch(ctx, func() {})
	if err != nil {
		leases.Close()
		return err
	}
	r.leases.Close()
	r.records.Close()
	r.leases, r.records = leases, records
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *registry) encodeLease() []byte {
	a := r.self
	a.MemoryBytes = r.free()
	text, _ := json.Marshal(a) // strings and numbers always can be
	return text
}

// run is the registry's goroutine. It ends with ctx, after it has taken our lease and our jobs back.
func (r *registry) run(ctx context.Context) {
	defer close(r.done)
	defer r.drain(context.WithoutCancel(ctx))
	ticker, reads := time.NewTicker(r.renewEvery()), time.NewTicker(readEvery*r.renewEvery())
	defer ticker.Stop()
	defer reads.Stop()
	r.look(ctx)
	for {
		select {
		case <-ticker.C: // first, however many acquisitions wait: a lease outlasts one of them and one renewal
			r.keep(ctx, false)
			continue
		case <-r.back: // our jobs are there again before others look for them
			r.keep(ctx, true)
			continue
		default:
		}
		select {
		case <-r.changed:
			r.look(ctx)
		case q := <-r.acquires:
			within, cancel := context.WithTimeout(ctx, acquireWithin)
			c := r.acquire(within, &q)
			cancel()
			select {
			case r.results <- c:
			case <-ctx.Done():
			}
		case p := <-r.places:
			p.done <- r.writeServers(ctx, &p)
		case q := <-r.assigns:
			r.answer(ctx, q)
		case <-r.wake:
			r.bindDecisions()
			r.dropAll(ctx)
			r.recordNoted(ctx)
		case <-ticker.C:
			r.keep(ctx, false)
		case <-r.back:
			r.keep(ctx, true)
		case <-reads.C:
			r.keep(ctx, true)
			r.sweep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// keep renews the lease, reads both buckets in full if read is set, and reports which ps are announced.
func (r *registry) keep(ctx context.Context, read bool) {
	within, cancel := context.WithTimeout(ctx, renewWithin)
	defer cancel()
	err := r.renew(within)
	if err == nil && read {
		err = r.watch(within)
	}
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("registry not renewed", "server", r.self.ID, "err", err)
		}
		if errors.Is(err, errTaken) {
			r.tell(ctx, registryNews{taken: err})
		}
		return
	}
	r.recordNoted(within)
	r.look(within)
}

// list is who is announced, by id, without those that are leaving.
func (r *registry) list() []leaseRecord {
	return slices.DeleteFunc(r.listAll(), func(a leaseRecord) bool { return a.Leaving })
}

func (r *registry) listAll() (all []leaseRecord) {
	for _, e := range r.leases.All() {
		var a leaseRecord
		if json.Unmarshal(e.Value, &a) == nil && a.ID == e.Key && a.Shards > 0 && !r.hasGone(a.Incarnation) {
			a.Stands = a.Stands && r.speaks(a)
			all = append(all, a)
		}
	}
	return all
}

// gone takes it that the process of a ps has ended.
func (r *registry) gone(incarnation uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended = append(r.ended, incarnation); len(r.ended) > endedMax {
		r.ended = r.ended[1:]
	}
}

// speaks reports whether a ps reads the protocol of this one. Others coordinate jobs of their own, and have no part in
// those of this one.
func (r *registry) speaks(a leaseRecord) bool { return a.Fingerprint == r.self.Fingerprint }

func (r *registry) hasGone(incarnation uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.ended, incarnation)
}

// look tells the control loop who is announced.
func (r *registry) look(ctx context.Context) {
	all := r.listAll()
	var ids []string
	for _, a := range all {
		if ids = append(ids, a.ID); a.ID != r.self.ID {
			r.company = time.Now()
		}
	}
	r.listed.Store(&ids)
	r.alone.Store(time.Since(r.company) > aloneAfter*r.lease) // long since, where there never was any
	r.tell(ctx, registryNews{servers: all})
}

func (r *registry) tell(ctx context.Context, n registryNews) {
	select {
	case r.news <- n:
	case <-ctx.Done():
	}
}

// end notes that a job of ours has ended, and who took part. It never waits.
func (r *registry) end(name schema.JobName, run endedRun) {
	r.mu.Lock()
	r.over = append(r.over, overJob{name, run})
	r.mu.Unlock()
	nudge(r.wake)
}

func (r *registry) dropAll(ctx context.Context) {
	r.mu.Lock()
	over := r.over
	r.over = nil
	r.mu.Unlock()
	for i := range over {
		r.drop(ctx, &over[i])
	}
}

// drop takes a job of ours that has ended out of the registry, or leaves there who took part: a join of theirs that
// comes late, to whichever ps, is not to register the name again.
func (r *registry) drop(ctx context.Context, over *overJob) {
	name := over.name
	o, ok := r.own[name]
	if !ok {
		return
	}
	delete(r.own, name)
	within, cancel := context.WithTimeout(ctx, renewWithin)
	defer cancel()
	err := r.leaveEnded(within, string(name), o.revision, withEnded(over.run, o.record.Ended))
	if err != nil && errors.Is(ctx.Err(), context.Canceled) { // this ps ends: drain does it, in a time of its own
		r.own[name] = o
		r.end(name, over.run)
		return
	}
	if err != nil && !errors.Is(err, fabric.ErrNoBucket) && !errors.Is(err, fabric.ErrKeyExists) {
		r.log.Warn("job record not removed now, but later", "job", name, "err", err)
	}
}

// sweep deletes the jobs whose coordinator has been gone for a while, and restores our own.
func (r *registry) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewWithin)
	defer cancel()
	r.restore(ctx)
	servers, seen := r.list(), map[string]deadJob{}
	for _, e := range r.records.All() {
		if r.alive(servers, e) || r.waitsForVoters(servers, e) {
			continue
		}
		d := r.dead[e.Key]
		if d.revision != e.Revision {
			d = deadJob{revision: e.Revision}
		}
		if d.looks++; d.looks < deadLooks || d.looks < goneLooks && hasEnded(e) {
			seen[e.Key] = d
			continue
		}
		if err := r.jobs.Delete(ctx, e.Key, e.Revision); err == nil && !hasEnded(e) {
			r.log.Info("job without a coordinator taken out of the registry", "job", e.Key)
		}
	}
	r.dead = seen
}

// waitsForVoters reports whether a job waits for a trainer of its, or an operator: its coordinator may still run it.
func (r *registry) waitsForVoters(servers []leaseRecord, e fabric.Entry) bool {
	var there jobRecord
	return json.Unmarshal(e.Value, &there) == nil &&
		!mayTake(there.Voters, 0, r.isKnownToHaveEnded(servers, schema.JobName(e.Key), &there))
}

// drain takes back what we have written. The lease record stays as a last word, until its time is over: a
// coordinator elsewhere may have given us shards a moment ago.
func (r *registry) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	defer r.leases.Close()
	defer r.records.Close()
	r.dropAll(ctx)
	for name := range r.own {
		r.drop(ctx, &overJob{name: name})
	}
	r.self.Leaving = true
	if _, err := r.servers.Update(ctx, r.self.ID, r.encodeLease(), r.revision); err != nil {
		r.log.Debug("lease not released, it expires", "server", r.self.ID, "err", err)
	}
}

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
	r.log.Warn("bucket lost, creating it again", "control", r.control.Address(), "err", why)
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
		if err := r.watch(ctx); err != nil {
			return err
		}
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
			r.log.Warn("job record not rewritten", "job", name, "err", err)
			continue
		}
		r.findStolen(ctx, name, o)
	}
}

// findStolen finds out whether another ps has the record of a job of ours.
func (r *registry) findStolen(ctx context.Context, name schema.JobName, o *ownJob) {
	e, err := r.jobs.Get(ctx, string(name))
	var there jobRecord
	if err == nil && json.Unmarshal(e.Value, &there) == nil && there.RunID != o.record.RunID {
		delete(r.own, name)
		r.tell(ctx, registryNews{stolen: name})
	}
}

// rival is a ps that has written our lease record: one that lives writes it again after we did.
type rival struct {
	incarnation uint64
	seen        time.Time
}

// rivalFor is for how many renewals a rival is remembered.
const rivalFor = 4

// reacquire finds out who has written our lease record, and writes it again, unless that is a ps that does the same.
func (r *registry) reacquire(ctx context.Context) error {
	e, err := r.servers.Get(ctx, r.self.ID)
	if err != nil {
		return err
	}
	var there leaseRecord
	if err := json.Unmarshal(e.Value, &there); err != nil || there.Incarnation != r.self.Incarnation {
		now := time.Now()
		if err == nil && there.Incarnation == r.rival.incarnation && now.Sub(r.rival.seen) < rivalFor*r.renewEvery() {
			return fmt.Errorf("%w: another ps of id %s was started on %s, at %s", errTaken, r.self.ID, there.Host, there.URL)
		}
		r.rival = rival{there.Incarnation, now}
		r.log.Warn("lease record written by another process; it is written again", "server", r.self.ID, "host", there.Host,
			"url", there.URL)
	}
	revision, err := r.servers.Update(ctx, r.self.ID, r.encodeLease(), e.Revision)
	if err != nil {
		return err // the next renewal finds the process that was faster
	}
	r.revision = revision
	return nil
}

// endedRun is a run of a job that is over, and the names under which its trainers joined. Each of them has drawn its
// name for that run alone, so a join that comes again, to a ps that was slow, is meant for no other.
type endedRun struct {
	RunID   schema.RunID    `json:"run_id,string"`
	Joiners []schema.Member `json:"joiners"`
}

const (
	// endedRunsMax and endedJoinersMax bound what is remembered of the earlier runs of a name.
	endedRunsMax    = 8
	endedJoinersMax = 4096
	// recordBytesMost is how large a job's record may be that also tells of earlier runs: others' servers take messages of
	// 1 MiB.
	recordBytesMost = 768 << 10
	// leftMax and leftBytesMax bound what one ps leaves of jobs that have ended, until it is swept: however many begin and
	// end, they take an eighth of the bucket, and a sweep reads them all.
	leftMax      = 512
	leftBytesMax = jobsBytesMax / 8
)

// leftEnded is a key that says who took part in a job.
type leftEnded struct {
	name     string
	revision uint64
	bytes    int
}

// withEnded puts a run before earlier ones, of which the oldest are forgotten. One without trainers is
// none.
func withEnded(run endedRun, earlier []endedRun) []endedRun {
	all := slices.Clone(earlier)
	if len(run.Joiners) > 0 {
		all = slices.Insert(all, 0, run)
	}
	joiners := 0
	for i := range all {
		if joiners += len(all[i].Joiners); i == endedRunsMax || joiners > endedJoinersMax && i > 0 {
			return all[:i]
		}
	}
	return all
}

// tookPart reports whether a trainer joined one of the runs.
func tookPart(runs []endedRun, joiner schema.Member) bool {
	return slices.ContainsFunc(runs, func(r endedRun) bool { return slices.Contains(r.Joiners, joiner) })
}

// endedOf reads what a key says of earlier runs, where it says that no ps coordinates the job any more; else nothing.
func endedOf(e fabric.Entry) []endedRun {
	var record jobRecord
	if json.Unmarshal(e.Value, &record) != nil || record.Coordinator != "" {
		return nil
	}
	return record.Ended
}

func hasEnded(e fabric.Entry) bool { return len(endedOf(e)) > 0 }

// leaveEnded writes earlier runs in place of a job that has ended, or deletes its key where there are none.
func (r *registry) leaveEnded(ctx context.Context, name string, revision uint64, runs []endedRun) error {
	if len(runs) == 0 {
		return r.jobs.Delete(ctx, name, revision)
	}
	value, err := json.Marshal(jobRecord{Ended: runs})
	if err != nil {
		return err
	}
	if revision, err = r.jobs.Update(ctx, name, value, revision); err != nil {
		return err
	}
	r.left = append(r.left, leftEnded{name, revision, len(value)})
	r.leftBytes += len(value)
	for len(r.left) > leftMax || r.leftBytes > leftBytesMax {
		oldest := r.left[0]
		r.left, r.leftBytes = r.left[1:], r.leftBytes-oldest.bytes
		// swept, or written since
		if err := r.jobs.Delete(ctx, oldest.name, oldest.revision); err != nil && !errors.Is(err, fabric.ErrKeyExists) {
			return err
		}
	}
	return nil
}

// encode writes a record, without the earlier runs where it would be too large.
func (j *jobRecord) encode() ([]byte, error) {
	value, err := json.Marshal(j)
	if err == nil && len(value) > recordBytesMost && len(j.Ended) > 0 {
		j.Ended = nil
		value, err = json.Marshal(j)
	}
	return value, err
}

// recordChange is what is to be written into the record of a job.
type recordChange struct {
	name   schema.JobName
	run    schema.RunID
	lr     []schema.LRChange // nil: they stay
	voters []schema.Voter    // nil: they stay
}

// with returns a change together with an earlier one that is not written yet.
func (n recordChange) with(earlier *recordChange) recordChange {
	if earlier.run != n.run {
		return n
	}
	if n.lr == nil {
		n.lr = earlier.lr
	}
	if n.voters == nil {
		n.voters = earlier.voters
	}
	return n
}

// note asks for a change to be recorded. It never waits; the control loop hears when it is done.
func (r *registry) note(n recordChange) {
	r.mu.Lock()
	earlier := r.noted[n.name]
	r.noted[n.name] = n.with(&earlier)
	r.mu.Unlock()
	nudge(r.wake)
}

// recordNoted writes what was noted into the records of jobs that this ps coordinates. What cannot be written now is
// tried again at the next renewal.
func (r *registry) recordNoted(ctx context.Context) {
	r.mu.Lock()
	noted := r.noted
	r.noted = map[schema.JobName]recordChange{}
	r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(noted)) {
		n, o := noted[name], r.own[name]
		if o == nil || o.record.RunID != n.run {
			continue // has ended
		}
		if n.lr != nil {
			o.record.LR = n.lr
		}
		if n.voters != nil {
			o.record.Voters = n.voters
		}
		within, cancel := context.WithTimeout(ctx, renewWithin)
		err := r.write(o,
			func(value []byte) (uint64, error) { return r.jobs.Update(within, string(name), value, o.revision) })
		if errors.Is(err, fabric.ErrKeyExists) {
			r.findStolen(within, name, o)
		}
		cancel()
		if err == nil {
			r.tell(ctx, registryNews{changed: n})
			continue
		}
		r.log.Warn("job record not written, tried again", "job", name, "err", err)
		r.mu.Lock()
		later := r.noted[name]
		later.name, later.run = name, n.run
		r.noted[name] = later.with(&n)
		r.mu.Unlock()
	}
}
