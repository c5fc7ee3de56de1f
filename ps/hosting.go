package ps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/state"
)

// shardHost is the shards on this ps, of all jobs, whichever ps coordinates them, and the memory and windows that they
// are promised. It belongs to the control loop's goroutine. What its methods return is for the coordinator of the job;
// nil: nothing is.
type shardHost struct {
	server  *Server
	jobs    map[schema.JobName]*assignment
	leaving map[*assignment]struct{} // whose shards were told to end and have not yet
	heap    int64                    // bytes that the heap was limited to last
	news    chan shardNews
	done    <-chan struct{} // closed when no more news is read
}

func newShardHost(s *Server, done <-chan struct{}) *shardHost {
	return &shardHost{server: s, jobs: map[schema.JobName]*assignment{}, leaving: map[*assignment]struct{}{},
		news: make(chan shardNews), done: done}
}

// of returns the shards here of a run of a job; nil: there are none.
func (h *shardHost) of(name schema.JobName, run schema.RunID) *assignment {
	if a := h.jobs[name]; a != nil && a.run == run {
		return a
	}
	return nil
}

// failed is the message that shards cannot continue. If they were lost, or the version that they begin with could not be
// read, the trainers rejoin: another version may be found then, or the disk can be read again.
func failed(who schema.Member, err error) *schema.Control {
	back := errors.Is(err, shard.ErrResume) || errors.Is(err, errShardsLost)
	return &schema.Control{Ended: &schema.Ended{Member: who, Text: err.Error(), Back: back}}
}

// assign makes shards of a job, or learns of new routes to its trainers.
func (h *shardHost) assign(ctx context.Context, name schema.JobName, run schema.RunID,
	assign *schema.Assign) *schema.Control {
	a := h.jobs[name]
	if a != nil && a.run != run {
		h.release(a) // whose end was not heard
		a = nil
	}
	if a == nil {
		self := h.server.registry.self.Incarnation
		if assign.Incarnation != 0 && assign.Incarnation != self && !assign.Made {
			return nil // it is for the ps that was here before; its coordinator finds that out by the registry
		}
		var err error
		if a, err = h.makeShards(ctx, name, run, assign); errors.Is(err, errBusy) {
			h.server.log.Info("shards postponed", "job", name, "err", err)
			return nil // it is said again each second
		} else if err != nil {
			h.server.log.Warn("shards not made", "job", name, "err", err)
			return failed(h.server.member, err)
		}
	}
	if err := a.checkChange(assign); err != nil {
		h.server.log.Warn("assignment refused", "job", name, "err", err)
		return nil
	}
	a.coordinator.Begin(time.Now())
	if assign.Serial > a.serial && a.wanted <= a.serial {
		for _, i := range a.own {
			a.workers[i].lr.Store(&assign.LR)
			a.workers[i].wish(assign.Checkpoints)
		}
		a.route(assign, h.news)
		for _, i := range a.own {
			if len(assign.Gone) > 0 {
				a.workers[i].lose(assign.Gone)
			}
			if len(assign.Since) > 0 {
				a.workers[i].rise(assign.Since)
			}
		}
	}
	return a.reported()
}

// errShardsLost says that this ps had the shards and has them no more. What they would begin with is not what they had.
var errShardsLost = errors.New("it was started anew, or heard no coordinator for too long, and has lost its shards")

// errBusy says that there will be room in a moment.
var errBusy = errors.New("not yet")

// makeShards makes shards of a job, where there is room for them.
func (h *shardHost) makeShards(ctx context.Context, name schema.JobName, run schema.RunID,
	assign *schema.Assign) (*assignment, error) {
	if assign.Made && !planted.Is(planted.RemakeShards) {
		return nil, errShardsLost
	}
	if assign.Job.Name != name {
		return nil, fmt.Errorf("manifest of job %s sent as job %s", assign.Job.Name, name)
	}
	if err := assign.Job.Validate(); err != nil {
		return nil, err
	}
	if err := h.server.unfit(); err != nil {
		return nil, err
	}
	of, v, kept := parseReplicaID(assign.Resume)
	if kept {
		h.server.replicas.yields(of)
	}
	r := h.checkRoom(assign.Job, len(assign.Own), assign.Shards, assign.WindowBytes)
	if r != nil && r.Reason == schema.RefusedBusy {
		return nil, fmt.Errorf("%w: %s", errBusy, r.Text)
	} else if r != nil {
		return nil, errors.New(r.Text)
	}
	var resumed func(int) *shard.Resumed
	var err error
	if kept {
		resumed, err = h.server.replicas.resume(assign.Job, of, v, assign.Own)
	} else {
		resumed, err = readCheckpoint(h.server.folder.path(), assign.Job, assign.Resume)
	}
	if err != nil {
		return nil, err
	}
	a := newAssignment(ctx, h.server, run, assign, resumed, h.window(assign.Job, len(assign.Own), h.held()), h.news)
	h.jobs[name] = a
	h.shareJobs()
	h.server.log.Info("shards created", "job", name, "shards", len(a.own), "bytes", a.memory.Bytes())
	return a, nil
}

// readCheckpoint returns, by shard, the version that shards read; nil if they draw version 0.
func readCheckpoint(dir string, job *schema.Job, id string) (func(int) *shard.Resumed, error) {
	if id == "" {
		return func(int) *shard.Resumed { return nil }, nil
	}
	at, err := checkpoint.ParseID(id)
	if err != nil {
		return nil, err
	}
	if dir == "" {
		return nil, fmt.Errorf("job %s cannot be resumed from checkpoint %s: %w", job.Name, id, errNoFolder)
	}
	read := func(tensor func(state.Tensor) error, rows func(state.Rows) error) error {
		m, err := checkpoint.Open(dir, job.Name, at)
		if err != nil {
			return err
		}
		return m.Read(dir, tensor, rows)
	}
	return func(int) *shard.Resumed { return &shard.Resumed{Version: at.Version, Read: read} }, nil
}

// release ends the shards of a job; nil: there are none. It does not wait for them: what the job was promised is free
// when they have ended, as hear learns.
func (h *shardHost) release(a *assignment) {
	if a == nil {
		return
	}
	delete(h.jobs, a.manifest.Name)
	h.leaving[a] = struct{}{}
	h.shareJobs()
	a.cancel()
	h.server.releasing.Go(func() {
		a.wait()
		h.server.ended.add(h.server.now(), a)
		h.server.log.Info("job freed", "job", a.manifest.Name, "bytes", a.memory.Bytes())
		select {
		case h.news <- shardNews{assignment: a, free: true}:
		case <-h.done:
		}
	})
}

// held are the jobs that memory and windows are promised to here, those that end among them.
func (h *shardHost) held() []*assignment {
	return slices.AppendSeq(slices.Collect(maps.Values(h.jobs)), maps.Keys(h.leaving))
}

// shareJobs shows receiving goroutines which jobs there are now.
func (h *shardHost) shareJobs() {
	jobs := maps.Clone(h.jobs)
	h.limitHeap()
	h.server.jobs.Store(&jobs)
	h.noteFree()
}

// noteFree notes how much memory is promised to no job.
func (h *shardHost) noteFree() { h.server.freeBytes.Store(h.freeBytes(h.held())) }

// limitHeap tells how much the heap may hold, where that has changed.
func (h *shardHost) limitHeap() {
	limit := h.server.limitHeap
	if limit == nil {
		return
	}
	var all []Memory
	for _, a := range h.held() {
		all = append(all, a.memory)
	}
	all = append(all, h.server.replicas.memories()...)
	if bytes := heapBytes(h.server.config.Shards, all, h.server.nats.AnonymousBytes()); bytes != h.heap {
		h.heap = bytes
		limit(bytes)
	}
}

// hear takes what a shard has to say about itself, or how the way to the cluster was found.
func (h *shardHost) hear(n shardNews) *schema.Control {
	a := n.assignment
	switch {
	case n.free:
		delete(h.leaving, a)
		h.shareJobs()
		return nil
	case h.jobs[a.manifest.Name] != a: // has ended meanwhile
		return nil
	case n.err != nil && n.member == "":
		return failed(h.server.member, fmt.Errorf("the cluster is no way to its trainers: %w", n.err))
	case n.err != nil:
		return failed(n.member, n.err)
	case n.member == "":
		a.serial = a.wanted
	case a.building > 0:
		a.building--
	}
	if a.building > 0 {
		return nil
	}
	return a.reported()
}

// tick reports on the shards of a job, or gives them up where their coordinator has been silent for too long. here says
// that the coordinator is on this ps.
func (h *shardHost) tick(a *assignment, now time.Time, here bool) *schema.Control {
	if here {
		a.coordinator.Begin(now)
	}
	if a.deserted(now) {
		h.server.log.Warn("shards given up, coordinator silent", "job", a.manifest.Name, "silent",
			liveness.Rounded(a.coordinator.For(now)))
		h.release(a)
		return nil
	}
	if err := h.server.unfit(); err != nil { // this process must not compute any more
		return failed(h.server.member, err)
	}
	return a.reported()
}

// refresh asks the shards how they fare. They have answered by the next tick, unless they are at work for longer.
func (h *shardHost) refresh() {
	for _, a := range h.jobs {
		for _, i := range a.own {
			a.workers[i].refresh()
		}
	}
}

// checkServers refuses a job whose part another ps has said to have no room for, and one of too many shards. fitted is
// its manifest with the chunks that there is room for.
func (h *shardHost) checkServers(c *acquisition, fitted *schema.Job) *schema.Refused {
	if !c.job.NeedsShards() {
		return nil
	}
	shards := 0
	for _, s := range c.servers {
		shards += s.Shards
	}
	if shards > schema.ShardsMax {
		return &schema.Refused{Reason: "server_full",
			Text: fmt.Sprintf("%d shards on %d ps: want at most %d; give fewer with --shards", shards, len(c.servers),
				schema.ShardsMax)}
	}
	for _, s := range c.servers {
		if s.ID == h.server.registry.self.ID {
			if r := h.checkRoom(fitted, s.Shards, shards, 0); r != nil {
				return r
			}
		} else if need := MemoryOf(h.server.config, fitted, s.Shards, shards).Bytes(); need > s.MemoryBytes {
			return h.server.config.noRoom(c.job, "those of ps "+s.ID+" on "+s.Host, need, s.MemoryBytes)
		}
	}
	return nil
}

// mayBegin refuses a job that cannot begin here, and takes over one of the other ps, with the voters that takeOver
// returns. A job without room here is not taken over: its replica stays.
func (h *shardHost) mayBegin(f *foundJob, fitted *schema.Job) (voters []schema.Voter, refused *schema.Refused) {
	c, b := &f.acquisition, h.server.primary
	if refused = checkMessages(c.job, "this server", h.server.config.PayloadBytesMax); refused != nil {
		return nil, refused
	}
	switch {
	case !f.located.fromReplica():
		refused = h.checkServers(c, fitted)
	case b != nil: // else its ps say for themselves whether they have room
		stays := h.server.replicas.yields(f.located.from.run)
		refused = h.checkServers(c, fitted)
		stays()
		if refused != nil {
			refused = &schema.Refused{Reason: schema.RefusedBusy, Text: refused.Text}
		}
	}
	if refused != nil || b == nil || len(f.offers) == 0 {
		return nil, refused
	}
	voters, ok := b.takeOver(c.job.Name, f.offers[0].run)
	if !ok {
		return nil, &schema.Refused{Reason: schema.RefusedBusy, Text: "the ps that has the job is back"}
	}
	return voters, nil
}

// shardsOn returns the number of shards of a job on the ps that coordinates it.
func (c *acquisition) shardsOn(id string) int {
	for _, s := range c.servers {
		if s.ID == id {
			return s.Shards
		}
	}
	return 1 // all of them are elsewhere
}

func (c *Config) noRoom(job *schema.Job, who string, need, free int64) *schema.Refused {
	return &schema.Refused{Reason: "invalid_job", Field: "tables", Have: strconv.FormatInt(free, 10),
		Want: strconv.FormatInt(need, 10),
		Text: fmt.Sprintf("job %s needs %d bytes, and %d of %s are free: %s", job.Name, need, free, who,
			c.orRaise("use smaller tables", "memory-mib", fmt.Sprintf(" by %d", (need-free+1<<20-1)>>20)))}
}

// checkManifest refuses what no server can run. It may take tenths of a second.
func (c *Config) checkManifest(manifest *schema.Job) *schema.Refused {
	if err := manifest.Validate(); err != nil {
		r := &schema.Refused{Reason: "invalid_job", Text: schema.Clip(err.Error())}
		var fields schema.JobErrors
		if errors.As(err, &fields) && len(fields) > 0 {
			r.Field, r.Have, r.Want = fields[0].Field, fields[0].Value, fields[0].Want
		}
		return r
	}
	r := c.modules.Check(manifest)
	if r == nil {
		c.modules.Bytes(manifest) // remembered for callers that cannot wait
	}
	return r
}

// checkRoom refuses a job whose shards here would not fit beside those of others. told is the window that its trainers
// were told; 0: none yet. Where only jobs that end are in its way it says so.
func (h *shardHost) checkRoom(manifest *schema.Job, own, shards int, told int64) *schema.Refused {
	r := h.checkBeside(manifest, own, shards, told, h.held())
	if r == nil || len(h.leaving) == 0 ||
		h.checkBeside(manifest, own, shards, told, slices.Collect(maps.Values(h.jobs))) != nil {
		return r
	}
	return &schema.Refused{Reason: schema.RefusedBusy,
		Text: schema.Clip(fmt.Sprintf("jobs that end have not given back yet what job %s needs, now: %s",
			manifest.Name, r.Text))}
}

// checkBeside refuses a job whose shards here would not fit beside those of the others.
func (h *shardHost) checkBeside(manifest *schema.Job, own, shards int, told int64,
	others []*assignment) *schema.Refused {
	c := &h.server.config
	if len(others) >= c.JobsMax {
		return &schema.Refused{Reason: "server_full",
			Text: fmt.Sprintf("%d jobs are registered, and there is room for %d: %s", len(others), c.JobsMax,
				c.orRaise("wait until one has ended", "jobs-max", ""))}
	}
	if need, free := memoryTold(*c, manifest, own, shards, told).Bytes(), h.freeBytes(others); need > free {
		who := "server"
		if c.local != nil {
			who = "process"
		}
		return c.noRoom(manifest, fmt.Sprintf("the %s's %d", who, c.MemoryBytesMax), need, free)
	}
	return c.checkWindows(manifest, own, h.window(manifest, own, others))
}

// window returns the bytes that each trainer of a job may have in flight to each of its shards here, beside other jobs.
func (h *shardHost) window(manifest *schema.Job, own int, others []*assignment) int64 {
	c := &h.server.config
	free := c.PendingBytesMax / 2
	for _, a := range others {
		free -= int64(a.manifest.Trainers*len(a.own)) * a.window
	}
	share, most := windowShare(c, len(others), free)
	return windowBytes(manifest, own, c.StagedBytesMax, share, most)
}

// fitChunks is a manifest with the largest chunks, of halves of its own, with which the window of each trainer to each
// of its own shards here holds a message, once the jobs that end have ended; the manifest itself where there are none.
func (h *shardHost) fitChunks(manifest *schema.Job, own int) *schema.Job {
	staying := slices.Collect(maps.Values(h.jobs))
	for job := manifest; job != nil; job = job.SmallerChunks() {
		if h.server.config.checkWindows(job, own, h.window(job, own, staying)) == nil {
			return job
		}
	}
	return manifest
}

// freeBytes is the memory that these jobs leave.
func (h *shardHost) freeBytes(jobs []*assignment) int64 {
	free := h.server.config.MemoryBytesMax
	for _, a := range jobs {
		free -= a.memory.Bytes()
	}
	k := h.server.replicas
	k.mu.Lock()
	defer k.mu.Unlock()
	return free - k.promised()
}
