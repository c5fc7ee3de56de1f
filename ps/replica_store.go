package ps

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/internal/process"
	"gradbus/schema"
	"gradbus/shard"
)

// replicaStore keeps in memory what some shards of jobs on several ps have, its own and those of others, as coordinators
// say (schema.Keep). All who keep shards of a job have one version of them. When a ps is lost, the job begins a new run
// with it: each shard where it is kept.
//
// The control loop calls its methods, and fabric's goroutines hand in what shards tell.
type replicaStore struct {
	server *Server
	done   sync.WaitGroup

	mu     sync.Mutex // a leaf, but for what state's tables do
	closed bool       // no goroutine begins any more
	runs   map[schema.RunID]*replicaJob
}

// replicaJob is the replica of a run. mu of the store guards it.
type replicaJob struct {
	told    schema.Keep // the last
	job     *schema.Job
	run     schema.RunID
	own     []int                            // shards that are kept, ascending
	from    map[schema.Member]*replicaSource // who tells what they have
	state   *shard.Replica                   // nil while it is made
	ready   bool                             // it is there, and ways to those who tell
	failure string
	memory  Memory
	cancel  context.CancelFunc
	unwatch func()           // the coordinator's process
	heard   liveness.Silence // the coordinator
	over    liveness.Silence // the run, whose trainers come back
	waits   time.Duration    // for them
	changed bool             // the coordinator is to be told
	taken   bool             // its shards begin with it: it takes no memory of its own
}

// replicaSource is a ps that tells what its shards have.
type replicaSource struct {
	server   schema.DataServer
	conn     *fabric.Conn
	receiver receiver
}

func newReplicaStore(s *Server) *replicaStore {
	return &replicaStore{server: s, runs: map[schema.RunID]*replicaJob{}}
}

// keep takes the word of a coordinator.
func (k *replicaStore) keep(name schema.JobName, run schema.RunID, told *schema.Keep, mirrors *assignment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runs[run]
	if r != nil && (told.Serial < r.told.Serial || told.Series < r.told.Series || r.taken) || told.Job == nil && r == nil {
		return
	}
	if r == nil || told.Series > r.told.Series {
		job := told.Job
		if job == nil {
			job = r.job
		}
		k.drop(run)
		r = k.begin(name, run, job, told)
	}
	r.told, r.changed = *told, true
	r.heard.Begin(k.server.now())
	if !told.Last { // which is said again after the run has ended
		r.over.End()
	}
	if r.state != nil && r.failure == "" && told.Whole > 0 && r.state.Whole() == told.Whole {
		k.fail(r, r.state.Commit())
	}
	if mirrors != nil && r.failure == "" {
		mirrors.mirrorTo(told)
	}
}

// mirrorTo tells those who keep the shards here what these have.
func (a *assignment) mirrorTo(told *schema.Keep) {
	if a.mirroring == nil || a.series != told.Series {
		a.unmirror()
		a.series = told.Series
		a.mirroring = newReplicaSender(a, told.To, told.Series)
	}
	a.mirroring.name(told.At, told.Since)
}

// begin makes room for what is to be kept, where there is any. mu is held.
func (k *replicaStore) begin(name schema.JobName, run schema.RunID, job *schema.Job, told *schema.Keep) *replicaJob {
	s := k.server
	r := &replicaJob{told: *told, job: job, run: run, from: map[schema.Member]*replicaSource{}, cancel: func() {},
		unwatch: func() {}}
	k.runs[run] = r
	for _, d := range told.From {
		r.from[schema.ServerMember(d.ID)] = &replicaSource{server: d, receiver: newReceiver()}
		r.own = append(r.own, d.Shards...)
	}
	slices.Sort(r.own)
	if job.Name != name {
		k.fail(r, fmt.Errorf("manifest of job %s told as job %s", job.Name, name))
		return r
	}
	if refused := k.server.config.checkManifest(job); refused != nil {
		k.fail(r, errors.New(refused.Text))
		return r
	}
	for old, one := range k.runs { // of which the coordinator has begun another
		if old != run && one.job.Name == name && !one.taken {
			k.drop(old)
		}
	}
	if len(r.own) == 0 { // it only tells what its own shards have
		r.ready = true
		return r
	}
	need := MemoryOf(s.config, job, len(r.own), told.Shards)
	if err := k.fits(name, need); err != nil {
		k.fail(r, err)
		return r
	}
	r.memory = need
	if told.Process != "" && told.Process != s.process {
		stop, err := process.Watch(told.Process, func() {
			select {
			case s.loop.ends <- run:
			case <-s.loop.done:
			}
		})
		if err == nil { // else it is elsewhere
			r.unwatch = stop
		}
	}
	s.log.Info("storing replica of job", "job", name, "shards", len(r.own), "bytes", need.Bytes())
	if !k.closed {
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(s.running)
		shards := told.Shards
		k.done.Go(func() { k.build(ctx, r, shards, need) })
	}
	return r
}

// build makes the tables that are filled then, and the ways to those who tell.
func (k *replicaStore) build(ctx context.Context, r *replicaJob, shards int, memory Memory) {
	s := k.server
	var configs []shard.Config
	place := schema.NewPlacement(r.job, shards)
	for _, i := range r.own {
		configs = append(configs, s.shardConfig(r.job, place, i))
	}
	state, err := shard.NewReplica(ctx, len(r.own), configs, memory.Bytes()-memory.Tables)
	k.mu.Lock()
	if gone := k.runs[r.run] != r; gone || err != nil {
		if k.fail(r, err); err == nil {
			state.Close()
		}
		k.mu.Unlock()
		return
	}
	r.state = state
	k.mu.Unlock()
	for _, member := range slices.Sorted(maps.Keys(r.from)) {
		t, said := r.from[member], false
		for err := k.listen(ctx, r, t); err != nil && sleep(ctx, followEvery) == nil; err = k.listen(ctx, r, t) {
			if !said {
				s.log.Warn("replica delayed, primary unreachable", "job", r.job.Name, "server",
					t.server.ID, "err", err)
			}
			said = true
		}
	}
	k.mu.Lock()
	r.ready, r.changed = true, true
	k.mu.Unlock()
	nudge(s.loop.changed)
	ticker := time.NewTicker(fabric.AckDelayMax / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			k.acknowledgeLate(r)
		case <-ctx.Done():
			for _, t := range r.from {
				if t.conn != nil {
					t.conn.Close()
				}
			}
			return
		}
	}
}

// listen connects to a ps that tells what its shards have.
func (k *replicaStore) listen(ctx context.Context, r *replicaJob, t *replicaSource) error {
	s := k.server
	config := fabric.Config{URL: t.server.URL, Bus: s.bus, Name: "keeper/" + s.ID(), Key: s.config.Key, Log: s.log}
	byControl := t.server.URL == "" // it is part of the control server
	if t.server.ID == s.ID() {
		config.Server = s.nats
	} else if byControl {
		config.URL = cmp.Or(s.config.NATS, s.config.Peer)
	}
	conn, err := fabric.Dial(ctx, renewing(config, func() (string, *tls.Config) {
		c := s.trust.Load()
		if byControl {
			return c.Token, c.NATSTLS
		}
		return c.Token, c.PeerTLS
	}))
	if err != nil {
		return err
	}
	from := schema.ServerMember(t.server.ID)
	k.mu.Lock()
	t.conn = conn
	k.mu.Unlock()
	pattern := fabric.Pattern(string(r.job.Name), string(from), fabric.KindState, string(s.member), true)
	err = conn.Subscribe(pattern, func(m fabric.Message) {
		m.Keep()
		if !k.take(r, t, &m) {
			m.Release()
		}
	})
	if err != nil {
		conn.Close()
	}
	return err
}

// take adds a frame of a replica, and reports whether another function releases it.
func (k *replicaStore) take(r *replicaJob, t *replicaSource, m *fabric.Message) bool {
	subject, view, ok := k.readState(m)
	if !ok {
		return false
	}
	h := view.Head()
	k.mu.Lock()
	defer k.mu.Unlock()
	at, known := slices.BinarySearch(r.own, int(subject.Bucket))
	if k.runs[r.run] != r || r.state == nil || r.failure != "" || r.taken || h.Job != r.run || !known ||
		r.over.Lasts() || h.Generation != schema.Generation(r.told.Series) ||
		!slices.Contains(t.server.Shards, int(subject.Bucket)) {
		return false
	}
	defer k.acknowledge(r, t, (*fabric.Receipt).Due)
	if !t.receiver.accept(&h, len(m.Data)) {
		return false
	}
	whole, err := r.state.Take(at, &view, m.Lease())
	if k.fail(r, err); whole {
		r.changed = true
		nudge(k.server.loop.changed)
	}
	return true
}

// fail notes that nothing more is kept of a run; nil does nothing. mu is held.
func (k *replicaStore) fail(r *replicaJob, err error) {
	if err == nil || r.failure != "" {
		return
	}
	r.failure, r.changed = schema.ClipFailure(err.Error()), true
	k.server.log.Warn("replica not stored", "job", r.job.Name, "err", err)
	nudge(k.server.loop.changed)
}

// acknowledge tells who tells what has come, where that is due. mu is held.
func (k *replicaStore) acknowledge(r *replicaJob, t *replicaSource, due func(*fabric.Receipt) bool) {
	if t.conn == nil {
		return
	}
	of := schema.Head{Job: r.run, Generation: schema.Generation(r.told.Series)}
	t.receiver.acknowledge(k.server, t.conn, r.job.Name, of, schema.ServerMember(t.server.ID), due)
}

// acknowledgeLate tells what has waited for long enough.
func (k *replicaStore) acknowledgeLate(r *replicaJob) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range r.from {
		k.acknowledge(r, t, (*fabric.Receipt).Tick)
	}
}

// kept returns the state of the replica of a run, or of one that continued it.
func (k *replicaStore) kept(run schema.RunID) schema.Kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.runs[run]
	for _, id := range slices.Sorted(maps.Keys(k.runs)) {
		if r := k.runs[id]; slices.Contains(r.told.Runs, run) {
			of = r
		}
	}
	if of != nil {
		return k.keptOf(of)
	}
	return schema.Kept{Server: k.server.ID(), Incarnation: k.server.registry.self.Incarnation, Run: run}
}

// keptOf returns the report of a replica. mu is held.
func (k *replicaStore) keptOf(r *replicaJob) schema.Kept {
	said := schema.Kept{Server: k.server.ID(), Incarnation: k.server.registry.self.Incarnation, Run: r.run,
		Series: r.told.Series, Shards: r.told.Shards, Own: r.own, Ready: r.ready, Serial: r.told.Serial, LR: r.told.LR, Runs: r.told.Runs,
		Failure: r.failure}
	if r.state != nil && r.failure == "" && !r.taken {
		said.Version, said.Next = r.state.Version(), r.state.Whole()
	}
	return said
}

// jobOf names the job of a run.
func (k *replicaStore) jobOf(run schema.RunID) schema.JobName {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.runs[run]; r != nil {
		return r.job.Name
	}
	return ""
}

// version is the one of which all shards of a run are here; 0: none is.
func (k *replicaStore) version(run schema.RunID) schema.Version {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runs[run]
	if r == nil || r.state == nil || r.failure != "" || r.taken || len(r.own) < r.told.Shards {
		return 0
	}
	return r.state.Version()
}

// manifest returns the manifest of a run; nil: there is no replica of it.
func (k *replicaStore) manifest(run schema.RunID) *schema.Job {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.runs[run]; r != nil {
		return r.job
	}
	return nil
}

// forget drops what is kept of a run.
func (k *replicaStore) forget(run schema.RunID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(run)
}

// yields takes it that shards begin with what is kept of a run: it is promised no memory beside theirs. stays undoes it,
// where they do not begin after all.
func (k *replicaStore) yields(run schema.RunID) (stays func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runs[run]
	if r == nil {
		return func() {}
	}
	was := r.memory
	r.memory = Memory{}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		r.memory = was
	}
}

// tellOf has the coordinator of a run told what is kept of it.
func (k *replicaStore) tellOf(run schema.RunID) {
	k.mu.Lock()
	if r := k.runs[run]; r != nil {
		r.changed = true
	}
	k.mu.Unlock()
	nudge(k.server.loop.changed)
}

// changes are the runs of which coordinators are to be told something.
func (k *replicaStore) changes() (all []schema.Kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(k.runs)) {
		if r := k.runs[id]; r.changed && !r.taken {
			r.changed = false
			all = append(all, k.keptOf(r))
		}
	}
	return all
}

// resume gives what shards begin with: of a run, at a version. Whatever else is kept of the run is free then.
func (k *replicaStore) resume(job *schema.Job, run schema.RunID, v schema.Version, own []int) (func(int) *shard.Resumed,
	error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runs[run]
	if r == nil || r.state == nil || r.failure != "" || r.taken {
		return nil, fmt.Errorf("%w %d: nothing is kept of run %d", shard.ErrResume, v, run)
	}
	if field, have, want, differs := r.job.WithChunkBytes(job.ChunkBytes).Diff(job); differs {
		return nil, fmt.Errorf("%w %d: %s is %s, want %s", shard.ErrResume, v, field, have, want)
	}
	if r.state.Whole() == v {
		k.fail(r, r.state.Commit())
	}
	for _, i := range own {
		if _, kept := slices.BinarySearch(r.own, i); !kept || r.state.Version() != v {
			return nil, fmt.Errorf("%w %d: shards %v are kept at version %d, want %v", shard.ErrResume, v, r.own,
				r.state.Version(), own)
		}
	}
	r.taken, r.memory = true, Memory{}
	r.cancel()
	r.unwatch()
	for at, i := range r.own {
		if !slices.Contains(own, i) {
			r.state.Drop(at)
		}
	}
	return func(i int) *shard.Resumed {
		at, _ := slices.BinarySearch(r.own, i)
		return r.state.Resumed(at)
	}, nil
}

// ended takes it that a run is over. Where its trainers come back, what is kept of it stays for a while.
func (k *replicaStore) ended(run schema.RunID, back bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runs[run]
	switch {
	case r == nil:
	case back:
		r.over.Begin(k.server.now())
		r.waits = resumeWindow
	default:
		k.drop(run)
	}
}

// await keeps a run that is over for its trainers.
func (k *replicaStore) await(run schema.RunID, within time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.runs[run]; r != nil {
		r.over.Begin(k.server.now())
		r.waits = within
	}
}

// lost takes it that the coordinator of a run has ended, and names the job and what the coordinator's ps drew at its
// start. The name is empty of a run that is over already.
func (k *replicaStore) lost(run schema.RunID) (name schema.JobName, incarnation uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runs[run]
	if r == nil || r.taken || r.over.Lasts() {
		return "", 0
	}
	r.over.Begin(k.server.now())
	r.waits = resumeWindow
	return r.job.Name, r.told.Incarnation
}

// tick drops replicas of runs whose trainers do not rejoin.
func (k *replicaStore) tick(now time.Time, pause time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, r := range k.runs {
		r.heard.Excuse(pause, now)
		r.over.Excuse(pause, now)
		silent := r.heard.For(now) > k.server.config.Deadline+graceOfCoordinator+resumeWindow
		if r.over.Lasts() && r.over.For(now) > r.waits || !r.over.Lasts() && silent {
			k.drop(id)
		}
	}
}

// drop forgets a run. mu is held.
func (k *replicaStore) drop(run schema.RunID) {
	r := k.runs[run]
	if r == nil {
		return
	}
	delete(k.runs, run)
	r.cancel()
	r.unwatch()
	if r.state != nil && !r.taken {
		r.state.Close()
	}
}

// promised returns the memory that is promised to jobs, without those whose shards begin with the replica. mu is held.
func (k *replicaStore) promised() (n int64) {
	for _, r := range k.runs {
		n += r.memory.Bytes()
	}
	return n
}

// memories lists the memory that is promised to jobs.
func (k *replicaStore) memories() (all []Memory) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.runs {
		all = append(all, r.memory)
	}
	return all
}

// close ends all. The server runs no more.
func (k *replicaStore) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.done.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.runs {
		k.drop(id)
	}
}

// knows reports that something is kept of a run, or was to be.
func (k *replicaStore) knows(run schema.RunID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runs[run] != nil
}

// receiver takes the frames of a series by which a ps tells what its shards have, each once, and acknowledges them.
type receiver struct {
	receipt *fabric.Receipt
	ack     *schema.Frame
}

func newReceiver() receiver {
	ack, _ := schema.NewFrame(schema.Layout{Kind: schema.KindAck}) // never fails
	return receiver{fabric.NewReceipt(0, fabric.WindowBytesDefault, pieceFrameBytes), ack}
}

// pieceFrameBytes bounds the frames of a series, but for those of very wide rows.
const pieceFrameBytes = 1<<20 + 64<<10

// readState reads a message as a frame of a series; ok is false of any other.
func (k *replicaStore) readState(m *fabric.Message) (subject fabric.Subject, view schema.View, ok bool) {
	subject, err := m.Parse()
	if err != nil {
		return subject, view, false
	}
	view, err = schema.Verify(m.Data, k.server.limits)
	if err != nil || view.Head().Kind != schema.KindState {
		k.server.log.Warn("invalid replica frame", "job", subject.Job, "err", err)
		return subject, view, false
	}
	return subject, view, true
}

// accept reports whether the frame has come for the first time.
func (in *receiver) accept(h *schema.Head, bytes int) bool {
	fresh, _ := in.receipt.Accept(uint64(h.Sequence), bytes, false)
	in.receipt.Holds(0)
	return fresh
}

// acknowledge tells whose shards they are what has come, where that is due.
func (in *receiver) acknowledge(s *Server, conn *fabric.Conn, name schema.JobName, of schema.Head, to schema.Member,
	due func(*fabric.Receipt) bool) {
	if !due(in.receipt) {
		return
	}
	in.ack.SetHead(of)
	in.ack.SetAck(schema.Ack(in.receipt.Ack()))
	s.publish(conn, fabric.At(string(name), string(s.member), fabric.KindAck, string(to)), in.ack.Seal())
}

// fits says why there is no room for what a job needs that is kept for another ps, beside what is promised to others. mu is
// held.
func (k *replicaStore) fits(name schema.JobName, need Memory) error {
	s := k.server
	free := s.config.MemoryBytesMax - k.promised()
	for _, a := range *s.jobs.Load() {
		free -= a.memory.Bytes()
	}
	if need.Bytes() > free {
		return fmt.Errorf("job %s needs %d bytes, and %d of this server's %d are free", name, need.Bytes(), free,
			s.config.MemoryBytesMax)
	}
	return nil
}

// report returns the report of a ps on the replicas that it has for others; there reports that the control server is
// reachable.
func (k *replicaStore) report(there bool) *schema.PrimaryReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &schema.PrimaryReport{Peers: true, Reached: there}
	all := map[schema.JobName]schema.HeldReport{}
	for _, id := range slices.Sorted(maps.Keys(k.runs)) {
		h := k.held(k.runs[id])
		if before, has := all[h.Job]; len(h.Of) > 0 && (!has || before.Lost != "") { // of two runs the one that goes on
			all[h.Job] = h
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(p.Jobs) < schema.TelemetryJobsMax {
			p.Jobs = append(p.Jobs, all[name])
		}
	}
	return p
}

// holds returns the state of the replica of a run of a job.
func (k *replicaStore) holds(name schema.JobName, run schema.RunID) schema.HeldReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.runs[run]; r != nil {
		return k.held(r)
	}
	return schema.HeldReport{Job: name, RunID: run}
}

// held returns the report on the replica of a run, for others; it is empty if its shards have begun with it. mu is
// held.
func (k *replicaStore) held(r *replicaJob) schema.HeldReport {
	h := schema.HeldReport{Job: r.job.Name, RunID: r.run, Failure: r.failure}
	if r.taken {
		return h
	}
	for _, d := range r.told.From {
		if d.ID != k.server.ID() {
			h.Of = append(h.Of, d.ID)
		}
	}
	if r.state != nil && r.failure == "" {
		h.Version = max(r.state.Version(), r.state.Whole())
	}
	if r.over.Lasts() {
		h.Lost = "its run has ended, and its trainers are awaited"
	}
	return h
}
