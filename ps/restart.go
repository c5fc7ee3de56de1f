package ps

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/planted"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// A job that lost its run begins a new one with the newest complete version. Replicas on ps and the checkpoint folder
// offer versions, chooseOffer chooses among all of them, and the shards are made where the version is.
//
// A run whose versions are written leaves a note in the folder until it ends. With the note, a restarted ps tells
// trainers that rejoin such a run from those that begin a job. It also names the interrupted runs that the run continues:
// not all trainers have heard of it when its ps is lost again.

// offer is a version of a job that a new run can begin with, or some shards of it.
type offer struct {
	run     schema.RunID
	runs    []schema.RunID // earlier runs that it continues, the latest first
	version schema.Version
	lr      []schema.LRChange // changes of the learning rates that were decided
	shards  int               // of the run
	holder                    // of a replica
	pending bool              // the ps does not know yet that the version is complete, and may miss changes in lr
	id      checkpoint.ID     // of a version in the folder, which has all shards; zero of a replica
	saved   *checkpoint.Manifest
	err     error // the reason why it cannot be used
}

// holder is a ps with replicas of some shards.
type holder struct {
	server      string
	incarnation uint64
	held        []int
}

// choice is the offer that a job begins with, and which shards of a replica each ps is to have, ascending by its id.
type choice struct {
	offer
	holders []holder
}

// startVersion returns the version that a run begins with.
func (c *choice) startVersion() schema.Version {
	if c == nil {
		return 0
	}
	return c.version
}

// errNoOffer says that no version is complete.
var errNoOffer = errors.New("no complete version is offered")

// chooseOffer returns the newest complete offer. Damaged offers are passed over. Any other fault of the newest one is
// returned as the error: a job that began with an older version would lose training.
func chooseOffer(offers []offer) (*choice, error) {
	if planted.Is(planted.IgnoreOffers) {
		return nil, errNoOffer
	}
	var best *choice
	why := errNoOffer
	for i := range offers {
		o := &offers[i]
		if errors.Is(o.err, checkpoint.ErrDamaged) {
			why = fmt.Errorf("%w; %w", why, o.err)
			continue
		}
		if o.pending || best != nil && o.compare(&best.offer) <= 0 {
			continue
		}
		holders, err := assignShards(o, offers)
		if err != nil {
			why = fmt.Errorf("%w; %w", why, err)
			continue
		}
		best = &choice{*o, holders}
	}
	if best == nil {
		return nil, why
	}
	return best, best.err
}

// compare is above 0 if an offer is newer than another one: of a later run, or a later version of the same run. Of
// equal versions the one with more changes of the learning rates is newer.
func (o *offer) compare(with *offer) int {
	switch {
	case !o.isReplica() && !with.isReplica():
		return o.id.Compare(with.id)
	case slices.Contains(o.runs, with.run):
		return 1
	case slices.Contains(with.runs, o.run):
		return -1
	}
	return cmp.Or(cmp.Compare(o.version, with.version), cmp.Compare(len(o.lr), len(with.lr)))
}

func (o *offer) isReplica() bool { return o.id == checkpoint.ID{} }

// resumeID returns the id under which shards are told of what they begin with.
func (o *offer) resumeID() string {
	if o.isReplica() {
		return fmt.Sprintf("%s%x-%d", replicaPrefix, uint64(o.run), o.version)
	}
	return o.id.String()
}

const replicaPrefix = "kept-"

// parseReplicaID reads what resumeID returns of a replica; ok is false for any other id.
func parseReplicaID(id string) (run schema.RunID, v schema.Version, ok bool) {
	text, ok := strings.CutPrefix(id, replicaPrefix)
	a, b, both := strings.Cut(text, "-")
	n, errRun := strconv.ParseUint(a, 16, 64)
	at, errVersion := strconv.ParseUint(b, 10, 64)
	return schema.RunID(n), schema.Version(at), ok && both && errRun == nil && errVersion == nil
}

// replicaOffers returns what a ps offers of a run.
func replicaOffers(said *schema.Kept) (all []offer) {
	for _, v := range []schema.Version{said.Version, said.Next} {
		if v > 0 {
			all = append(all, offer{run: said.Run, runs: said.Runs, version: v, lr: said.LR, shards: said.Shards,
				holder: holder{said.Server, said.Incarnation, said.Own}, pending: v != said.Version})
		}
	}
	return all
}

// assignShards returns which shards of a version each ps with replicas is to have. A shard that two ps hold goes to the
// one that has fewer.
func assignShards(of *offer, offers []offer) ([]holder, error) {
	if !of.isReplica() {
		return nil, nil
	}
	var all []holder
	holders := make([][]int, of.shards) // by shard, of all
	for i := range offers {
		o := &offers[i]
		if o.run != of.run || o.version != of.version || o.shards != of.shards || !o.isReplica() {
			continue
		}
		for _, shard := range o.held {
			holders[shard] = append(holders[shard], len(all))
		}
		all = append(all, holder{server: o.server, incarnation: o.incarnation})
	}
	order := make([]int, of.shards)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(holders[a]), len(holders[b])) })
	for _, shard := range order {
		if len(holders[shard]) == 0 {
			return nil, fmt.Errorf("replica of version %d: shard %s is missing", of.version, schema.ShardMember(shard))
		}
		at := slices.MinFunc(holders[shard], func(a, b int) int { return cmp.Compare(len(all[a].held), len(all[b].held)) })
		all[at].held = append(all[at].held, shard)
	}
	for i := range all {
		slices.Sort(all[i].held)
	}
	return slices.DeleteFunc(all, func(h holder) bool { return len(h.held) == 0 }), nil
}

// resumeWindow is the time after a restart within which a join to an interrupted job counts as a rejoin.
const resumeWindow = time.Minute

// checkpointFolder is the folder of checkpoints, beside the parts that shards write there: which runs of jobs are under
// way, and which versions are durable. It knows which runs have ended here lately that jobs are to continue. It is safe
// for concurrent use.
type checkpointFolder struct {
	local bool // no trainer outlives the process: runs are not noted
	keep  int  // versions of a job
	log   *slog.Logger
	later *sync.WaitGroup // of what is written at the end of a run

	completing sync.Mutex                              // one checkpoint is completed at a time
	noting     sync.Mutex                              // of which runs are under way; a leaf
	mu         sync.Mutex                              // a leaf
	dir        string                                  // empty: nothing is written
	programs   map[schema.JobName][]byte               // parts of programs, for the version of the job that is completed next
	resumed    map[schema.JobName]*checkpoint.Manifest // what runs have begun with
	ended      map[schema.JobName]time.Time
}

// path returns where the folder is; empty: there is none.
func (r *checkpointFolder) path() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dir
}

// set sets the folder if there is none.
func (r *checkpointFolder) set(dir string) error {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = checkpoint.CheckFolder(dir)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir == "" {
		r.dir = dir
	}
	if at, err := filepath.Abs(r.dir); err != nil || at != dir {
		return errors.Join(fmt.Errorf("folder of checkpoints %s: %s is in use: want that one, or another session", dir,
			r.dir), err)
	}
	return nil
}

// SetProgram sets the part of a program in the version of its job that is completed next; nil: it has none.
func (s *Server) SetProgram(job schema.JobName, data []byte) {
	r := &s.folder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.programs == nil {
		r.programs = map[schema.JobName][]byte{}
	}
	r.programs[job] = data
}

// Program returns the part of a program in the version that its job was resumed at last; nil: there is none.
func (s *Server) Program(job schema.JobName) ([]byte, error) {
	r := &s.folder
	r.mu.Lock()
	m, dir := r.resumed[job], r.dir
	r.mu.Unlock()
	if m == nil {
		return nil, nil
	}
	return m.ReadProgram(dir)
}

// takeProgram returns the part of a program for a version of its job, once.
func (r *checkpointFolder) takeProgram(job schema.JobName) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	data := r.programs[job]
	delete(r.programs, job)
	return data
}

// noteResumed notes the checkpoint that a run has begun with; nil: none.
func (r *checkpointFolder) noteResumed(job schema.JobName, m *checkpoint.Manifest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resumed == nil {
		r.resumed = map[schema.JobName]*checkpoint.Manifest{}
	}
	r.resumed[job] = m
}

// SetFolder sets the folder of checkpoints of a local server that was started without one. Versions go to it when a
// trainer asks for one (trainer.Session.Checkpoint), whole and at no other time, and jobs resume from it. It fails if the
// folder is not writable or another one is in use.
func (s *Server) SetFolder(dir string) error {
	if !s.folder.local {
		return fmt.Errorf("folder of checkpoints %s: want a local server, or one that is started with it", dir)
	}
	return s.folder.set(dir)
}

// note notes that a run that its job is to continue has ended now.
func (r *checkpointFolder) note(name schema.JobName, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.ended, func(_ schema.JobName, at time.Time) bool { return now.Sub(at) > resumeWindow })
	if r.ended == nil {
		r.ended = map[schema.JobName]time.Time{}
	}
	r.ended[name] = now
}

// forget notes that a job does not continue.
func (r *checkpointFolder) forget(name schema.JobName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ended, name)
}

// lately reports whether a run of a job has ended within resumeWindow.
func (r *checkpointFolder) lately(name schema.JobName, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ended := r.ended[name]
	return ended && now.Sub(at) <= resumeWindow
}

// begin notes in the folder that a run begins. A broken disk stops no training.
func (r *checkpointFolder) begin(c *acquisition, f *located) {
	job := c.job
	switch {
	case r.local:
		if f.from != nil {
			r.noteResumed(job.Name, f.from.saved)
		}
		return
	case errors.Is(f.not, errNoFolder):
		if f.from == nil && job.Rewinds() && job.Policy != schema.PolicyFail {
			r.log.Warn("no checkpoint folder: a lost trainer or ps ends the job", "job", job.Name, "want", "--checkpoint-dir")
		}
		return
	case f.not != nil:
		r.log.Warn("no version of the job is written", "job", job.Name, "err", f.not)
		return
	}
	r.noting.Lock()
	defer r.noting.Unlock()
	err := checkpoint.Begin(r.path(), job.Name, c.record.RunID, f.since, job.Trainers, f.runs...)
	if err != nil {
		r.log.Error("job start not recorded: a restarted ps will not know it", "job", job.Name, "err", err)
	}
}

// over notes that a run has ended, by checkpoint.End, by checkpoint.Abandon if it had not begun, or by checkpoint.Leave if
// the job is to continue it. It does not wait for the disk.
func (r *checkpointFolder) over(name schema.JobName, run schema.RunID,
	note func(dir string, job schema.JobName, run schema.RunID) error) {
	dir := r.path()
	if dir == "" || r.local {
		return
	}
	r.later.Go(func() {
		r.noting.Lock()
		defer r.noting.Unlock()
		if err := note(dir, name, run); err != nil {
			r.log.Warn("job end not recorded", "job", name, "err", err)
		}
	})
}

// complete makes a version durable, and removes older ones.
func (r *checkpointFolder) complete(m *checkpoint.Manifest) error {
	r.completing.Lock()
	defer r.completing.Unlock()
	log, dir := r.log.With("job", m.Job.Name, "version", uint64(m.ID.Version)), r.path()
	err := error(nil)
	if data := r.takeProgram(m.Job.Name); data != nil {
		err = m.WriteProgram(dir, data)
	}
	if err == nil {
		err = checkpoint.Complete(dir, m)
	}
	if err != nil {
		log.Error("version is not durable", "err", err)
		return err
	}
	log.Info("version is durable", "bytes", bytesOf(m), "checkpoint", m.ID.String(), "increments", len(m.Chain())-1)
	if _, err := checkpoint.Prune(dir, m.Job.Name, r.keep); err != nil {
		log.Warn("older checkpoints are not removed", "err", err)
	}
	return nil
}

// offersWithin bounds the wait for the replicas of other ps: one of them may be the lost one.
const offersWithin = 300 * time.Millisecond

// spreadWithin bounds the wait for further ps once a version is complete: with more ps, each has fewer shards.
const spreadWithin = 20 * time.Millisecond

// offerRequest is a request to other ps for the replicas that they have of a job.
type offerRequest struct {
	acquired acquisition
	since    time.Time
	asked    []string // ids of the ps that are to answer
	answers  map[string]schema.Kept
}

// foundJob is a job with the version that it begins with.
type foundJob struct {
	acquisition
	offers  []offer // of replicas
	located located
	refused *schema.Refused
}

// answer notes the replicas that another ps has of a run, and reports whether they were asked for.
func (q *offerRequest) answer(said *schema.Kept) bool {
	if q == nil || !slices.Contains(q.asked, said.Server) ||
		!slices.Contains(append(said.Runs, said.Run), q.acquired.back) {
		return false
	}
	q.answers[said.Server] = *said
	return true
}

// placeRun writes the shards of a run into the job's record: a run that begins with replicas has them where these are.
// The write fails if another ps took the record while offers were collected.
func (s *Server) placeRun(f *foundJob, heard []holder) *schema.Refused {
	there, shards := f.servers, f.record.Servers
	if f.located.fromReplica() {
		there, shards = f.located.from.placeReplicas(f.servers)
	}
	err := errAgain
	if there != nil {
		err = s.registry.place(s.running, f.job.Name, f.record.RunID, shards)
	}
	if err != nil {
		return &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
			"the shards of job %s cannot be written to its record: %v", f.job.Name, err))}
	}
	if f.located.fromReplica() {
		f.peers = answered(f.servers, heard)
	}
	f.servers = there
	return nil
}

func hasOffer(offers []offer) bool {
	c, _ := chooseOffer(offers)
	return c != nil
}

// placeReplicas returns the leases of the ps that are to have the shards of a choice, and which each has; nil if one of
// them is not announced any more.
func (c *choice) placeReplicas(servers []leaseRecord) (all []leaseRecord, shards []schema.DataServer) {
	for i := range c.holders {
		h := &c.holders[i]
		at := slices.IndexFunc(servers, func(a leaseRecord) bool { return h.is(&a) && !a.Leaving })
		if at < 0 {
			return nil, nil
		}
		one := servers[at]
		one.Shards = len(h.held)
		all = append(all, one)
		shards = append(shards, schema.DataServer{ID: one.ID, URL: one.URL, Shards: h.held})
	}
	return all, shards
}

func (h *holder) is(a *leaseRecord) bool { return a.ID == h.server && a.Incarnation == h.incarnation }

// answered returns the servers that have answered what they hold: others may be lost.
func answered(servers []leaseRecord, by []holder) []leaseRecord {
	return slices.DeleteFunc(slices.Clone(servers), func(a leaseRecord) bool {
		return !slices.ContainsFunc(by, func(h holder) bool { return h.is(&a) })
	})
}

// fromReplica reports whether the run begins with replicas.
func (f *located) fromReplica() bool { return f.from != nil && f.from.isReplica() }

// priorRun is the run that a job continues.
type priorRun struct {
	resume   bool           // the job begins with a version that is offered
	runs     []schema.RunID // interrupted, which trainers rejoin, the latest first; nil: none
	since    uint64         // the first run of the name whose versions in the folder are the job's; 0: all are
	trainers int            // slots of the latest, if a trainer rejoins it; 0: not known
	asked    bool           // a trainer has asked to resume
}

// located is the version that a run begins with, and the place of its checkpoints.
type located struct {
	from  *choice        // nil: version 0
	runs  []schema.RunID // interrupted, which its trainers rejoin, the latest first; nil: none
	since uint64         // the first run of the name whose versions in the folder are the job's
	here  int            // trainers at the end of the run that it continues; 0: not known
	epoch uint64         // number of the run that begins; 0: its versions are not written
	not   error          // the reason why they are not
}

// locate collects the offers of a job, chooses the version that its run begins with, and notes in the folder that the
// run begins. Trainers that rejoin begin with version 0 if there is none, as their run did.
func (s *Server) locate(c *acquisition, offers []offer) (f located, refused *schema.Refused) {
	f.epoch, f.not = s.numberRun(c.job)
	f.since = f.epoch
	prior, refused := s.findPriorRun(c, offers, f.epoch)
	if refused != nil {
		return f, refused
	}
	if !prior.resume {
		s.folder.begin(c, &f)
		return f, nil
	}
	from, damaged, err := s.chooseVersion(c, offers, &prior, f.not)
	switch {
	case !prior.asked && errors.Is(err, checkpoint.ErrOther):
		s.log.Warn("job starts over from version 0: its settings differ from those of the interrupted run", "job",
			c.job.Name, "err", err)
		s.folder.begin(c, &f)
		return f, nil
	case errors.Is(err, errNoOffer) && damaged == 0 && prior.runs != nil:
		err = nil
	case errors.Is(err, errNoOffer) && damaged == 0:
		err = fmt.Errorf("there is no durable version of it in %s: start it without --resume", s.folder.path())
	}
	if err != nil {
		return f, resumeRefused(c, offers, err)
	}
	f.from, f.runs, f.here, f.since = from, prior.runs, prior.trainers, cmp.Or(prior.since, f.epoch)
	if f.runs != nil {
		s.log.Info("job restarts", "job", c.job.Name, "run_id", strconv.FormatUint(uint64(f.runs[0]), 10), "version",
			uint64(from.startVersion()))
	}
	if from != nil {
		refused = s.lacksOthers(c, &from.offer)
	}
	if from != nil && from.saved != nil {
		f.since = min(f.since, from.id.Epoch)
		if n := from.saved.Here; n > 0 && f.here > 0 && from.run == prior.runs[0] {
			f.here = n // of as many slots, or fewer
		}
	}
	if refused == nil {
		s.folder.begin(c, &f)
	}
	return f, refused
}

// resumeRefused refuses a trainer whose job cannot be resumed. If there are replicas, the trainer asks again.
func resumeRefused(c *acquisition, offers []offer, err error) *schema.Refused {
	err = fmt.Errorf("job %s cannot be resumed: %w", c.job.Name, err)
	if len(offers) > 0 {
		return unreadable(err)
	}
	return &schema.Refused{Reason: "invalid_job", Field: "resume", Want: "true", Text: schema.Clip(err.Error())}
}

// numberRun returns the number of a run that begins, or why its versions are not written.
func (s *Server) numberRun(job *schema.Job) (epoch uint64, err error) {
	if s.folder.path() == "" {
		return 0, errNoFolder
	}
	if err := job.CheckVersions(); err != nil {
		return 0, err
	}
	if epoch, err = checkpoint.NextEpoch(s.folder.path(), job.Name); err != nil {
		return 0, err
	}
	return epoch, nil
}

// findPriorRun finds the run that a job continues. A trainer that rejoins a run which is over is refused.
func (s *Server) findPriorRun(c *acquisition, offers []offer, epoch uint64) (prior priorRun,
	refused *schema.Refused) {
	prior = priorRun{resume: c.resume && c.back == 0, asked: c.resume}
	replica, _ := chooseOffer(offers)
	var note checkpoint.Lost
	if dir := s.folder.path(); dir != "" {
		var err error
		if note, err = checkpoint.Running(dir, c.job.Name); err != nil {
			s.log.Error("interrupted run unknown", "job", c.job.Name, "err", err)
			// a job that began again would replace what is stored
			if c.back != 0 && c.resume || s.mayContinue(c.job, &note) {
				if replica == nil || !errors.Is(err, checkpoint.ErrDamaged) {
					return prior, unreadable(err)
				}
			}
		}
	}
	if replica != nil && !(slices.Contains(note.Runs, replica.run) && slices.Contains(note.Runs, c.back)) {
		note = checkpoint.Lost{Runs: append([]schema.RunID{replica.run}, replica.runs...), Since: epoch}
	}
	switch {
	case c.back != 0 && (!slices.Contains(note.Runs, c.back) || !c.resume):
		return prior, coordinator.RunOver(c.job.Name)
	case c.back != 0:
		prior.trainers = note.Trainers // else all may be new, and join at any time
	case note.Runs == nil || !s.mayContinue(c.job, &note):
		return prior, nil
	case prior.resume: // from the newest of all, as was asked
		prior.runs = note.Runs
		return prior, nil
	}
	prior.resume, prior.runs, prior.since = true, note.Runs, note.Since
	return prior, nil
}

// ioErrorMax is how long a disk may answer with I/O errors until a version on it counts as damaged.
const (
	ioErrorMax        = 5 * time.Second
	ioErrorRetryEvery = 200 * time.Millisecond
)

// chooseVersion chooses among the replicas and the versions in the folder, of which it verifies the one that it
// chooses. damaged is how many in the folder are. A disk that fails for a moment costs no version: it is read again.
func (s *Server) chooseVersion(c *acquisition, offers []offer, prior *priorRun, unwritten error) (from *choice,
	damaged int, err error) {
	failed := func(o offer) bool { return errors.Is(o.err, syscall.EIO) }
	for until := s.now().Add(ioErrorMax); ; {
		from, passed, err := s.chooseOnce(c, offers, prior, unwritten)
		if slices.ContainsFunc(passed, failed) && s.now().Before(until) && sleep(s.running, ioErrorRetryEvery) == nil {
			continue
		}
		for i := range passed {
			s.log.Error("checkpoint is damaged, an older version is used", "job", c.job.Name, "err", passed[i].err)
		}
		return from, len(passed), err
	}
}

// chooseOnce returns a choice and the damaged versions that are passed over for it.
func (s *Server) chooseOnce(c *acquisition, offers []offer, prior *priorRun, unwritten error) (from *choice,
	passed []offer, err error) {
	offers = slices.Clone(offers)
	dir := s.folder.path()
	if unwritten == nil {
		saved, err := s.savedOffers(c.job, prior)
		if err != nil {
			return nil, nil, err
		}
		offers = append(offers, saved...)
	} else if len(offers) == 0 || !errors.Is(unwritten, errNoFolder) { // it may have a newer version
		return nil, nil, unwritten
	}
	verifier := checkpoint.NewVerifier(s.running, dir)
	for {
		if from, err = chooseOffer(offers); err == nil && from.saved != nil {
			err = verifier.Verify(from.saved)
		}
		if from == nil || !errors.Is(err, checkpoint.ErrDamaged) {
			break
		}
		offers[slices.IndexFunc(offers, func(o offer) bool { return o.id == from.id })].err = err
	}
	for i := range offers {
		if o := &offers[i]; errors.Is(o.err, checkpoint.ErrDamaged) && (from == nil || o.compare(&from.offer) > 0) {
			passed = append(passed, *o)
		}
	}
	return from, passed, err
}

// savedOffers returns the versions in the folder of the runs that a job may continue.
func (s *Server) savedOffers(job *schema.Job, prior *priorRun) (all []offer, err error) {
	found, err := checkpoint.List(s.folder.path(), job.Name)
	for _, f := range found {
		at := slices.Index(prior.runs, f.ID.Run)
		if f.ID.Epoch < prior.since && at < 0 || errors.Is(f.Err, checkpoint.ErrIncomplete) {
			continue
		}
		o := offer{run: f.ID.Run, version: f.ID.Version, id: f.ID, saved: f.Manifest, err: f.Err}
		if at >= 0 {
			o.runs = prior.runs[at+1:]
		}
		if o.err == nil {
			o.lr, o.shards, o.err = f.Manifest.LR, f.Manifest.Shards, f.Manifest.CheckSame(job)
		}
		all = append(all, o)
	}
	return all, err
}

// unreadable refuses a trainer that rejoins while the disk cannot be read. It asks again, unless the disk is damaged.
func unreadable(err error) *schema.Refused {
	r := &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(err.Error())}
	if errors.Is(err, checkpoint.ErrDamaged) {
		r.Reason = "invalid_job"
	}
	return r
}

// lacksOthers refuses a trainer that rejoins a run with more shards than the announced ps have, shortly after this ps
// has started: the others may announce themselves at any moment, and the trainer asks again.
func (s *Server) lacksOthers(c *acquisition, from *offer) *schema.Refused {
	if s.byItself() || from.isReplica() || s.now().Sub(s.started) > 2*s.registry.renewEvery() {
		return nil
	}
	there := 0
	for i := range c.servers {
		there += c.servers[i].Shards
	}
	if there >= from.shards {
		return nil
	}
	return &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
		"job %s was on %d shards, the announced ps have %d: others are awaited for a while after the start of this one",
		c.job.Name, from.shards, there))}
}

// mayContinue reports whether any trainer that joins a job continues its interrupted run: this ps has restarted a short
// time ago, or the run has ended a short time ago. Another ps may have noted that, in the same folder.
func (s *Server) mayContinue(job *schema.Job, lost *checkpoint.Lost) bool {
	now := s.now()
	lately := s.folder.lately(job.Name, now) || !s.byItself() && now.Sub(lost.At).Abs() <= resumeWindow
	return job.Policy != schema.PolicyFail && (now.Sub(s.started) <= resumeWindow || lately)
}

// byItself reports that no other ps can share jobs with this one.
func (s *Server) byItself() bool {
	return s.config.NATS == "" && s.config.ControlToken == "" && s.config.Members == nil
}

// isAlone reports that no other ps is there: it cannot be, or has not been announced by now.
func (s *Server) isAlone() bool {
	return s.byItself() || s.registry.alone.Load() && s.now().Sub(s.started) > 2*s.registry.renewEvery()
}
