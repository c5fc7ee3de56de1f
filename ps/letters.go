package ps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// endedMax is how many ended jobs are remembered, so that a trainer that missed the end is told when it next speaks.
const endedMax = 64

// endedJob is what is remembered of a job.
type endedJob struct {
	name    schema.JobName
	run     schema.RunID
	joiners []schema.Member
	failed  *schema.Failed // nil where all trainers left
}

func (d *desk) remember(j *job) {
	e := endedJob{name: j.manifest.Name, run: j.run, joiners: j.coordinator.Joiners(), failed: j.coordinator.Failed()}
	if len(d.ended) == endedMax {
		d.ended = slices.Delete(d.ended, 0, 1)
	}
	d.ended = append(d.ended, e)
}

// over finds the ended job that a letter speaks of: by its run id, or by who wants to join.
func (d *desk) over(l *letter, run schema.RunID) *endedJob {
	for i := range d.ended {
		e := &d.ended[i]
		if e.name == l.job && (run != 0 && e.run == run || run == 0 && slices.Contains(e.joiners, l.from)) {
			return e
		}
	}
	return nil
}

// read takes a letter to the coordinator it is for, or to the shards that are kept here.
func (d *desk) read(ctx context.Context, l *letter) {
	head := l.view.Head()
	if l.from == schema.Coordinator {
		d.readCoordinator(ctx, l, &head)
		return
	}
	j := d.jobs[l.job]
	if j != nil && head.Job != 0 && head.Job != j.run {
		j = nil // of an earlier run of the name
	}
	var r *refusal
	switch {
	case j != nil && l.from == d.server.member: // what this ps says to itself stays here
		d.forged(l)
		return
	case j != nil && head.Job == 0 && !isJoiner(l.from):
		r = schema.Refuse(schema.ReasonForeignJob, "%v frame of %s without a run id: want the one of job %s, which joined told", head.Kind, l.from, l.job)
	case head.Kind == schema.KindBeat:
		r = d.readBeat(j, l, &head)
	case head.Kind == schema.KindControl:
		r = d.readControl(j, l, &head)
	case head.Kind == schema.KindRefusal: // a trainer has no reason to refuse anything of ours
		d.server.log.Warn("trainer refused a frame", "job", l.job, "member", l.from)
	}
	if r == nil {
		d.server.counters.count(schema.ReasonOK)
		return
	}
	subject := fabric.At(string(l.job), string(l.from), fabric.KindCtl, string(schema.Coordinator))
	d.refuse(&subject, head, r)
}

// isJoiner reports whether a name is one under which a trainer joins, rather than a member's.
func isJoiner(name schema.Member) bool { return strings.HasPrefix(string(name), "j-") }

// forged counts a message that cannot be its sender's: of the coordinator of a job that this ps coordinates, or where no other ps is that
// could, or of this ps to itself. Nobody is told.
func (d *desk) forged(l *letter) {
	d.server.counters.count(schema.ReasonWrongSender)
	d.server.logRefusal(string(l.job), string(l.from), schema.ReasonWrongSender, "somebody speaks for "+string(l.from)+", which is here")
}

// doubted is a word of a coordinator that came while no other ps was known that could be one.
type doubted struct {
	letter letter
	looks  int // at who is announced, since
}

const (
	// doubtsMax bounds what waits for a look at who is announced. A coordinator says it again.
	doubtsMax = 16
	// doubtLooks is after how many looks without another ps a word is forged: one may have begun before it came.
	doubtLooks = 2
)

// doubt keeps a word until it is known whether another ps has come a moment ago.
func (d *desk) doubt(l *letter) {
	if len(d.doubts) == doubtsMax {
		d.forged(l)
		return
	}
	d.doubts = append(d.doubts, doubted{letter: *l})
	d.server.registry.lookSoon()
}

// settleDoubts is called after a look.
func (d *desk) settleDoubts(ctx context.Context) {
	doubts := d.doubts
	d.doubts = nil
	for _, q := range doubts {
		switch q.looks++; {
		case !d.server.registry.alone.Load():
			d.read(ctx, &q.letter)
		case q.looks == doubtLooks:
			d.forged(&q.letter)
		default:
			d.doubts = append(d.doubts, q)
			d.server.registry.lookSoon()
		}
	}
}

// readCoordinator takes what a coordinator on another ps says to those who keep shards of its job.
func (d *desk) readCoordinator(ctx context.Context, l *letter, head *schema.Head) {
	if head.Kind == schema.KindBeat {
		d.hearCoordinator(l.job, head.Job)
		return
	}
	if j := d.jobs[l.job]; j != nil && j.run == head.Job {
		d.forged(l)
		return
	}
	if d.server.embedsControl() && d.server.registry.alone.Load() {
		d.doubt(l)
		return
	}
	control, err := schema.DecodeControl(&l.view)
	if err != nil || l.to != d.server.member {
		d.server.log.Warn("word of a coordinator not understood", "job", l.job, "to", l.to, "err", err)
		return
	}
	if k := d.kept[l.job]; control.Assign != nil && (k == nil || k.run != head.Job) {
		d.askAbout(l, head.Job, control.Assign)
		return
	}
	d.readAsKeeper(ctx, l.job, head.Job, &control)
}

func (d *desk) readBeat(j *job, l *letter, head *schema.Head) *refusal {
	if k := d.kept[l.job]; k != nil && k.run == head.Job {
		k.hearTrainer(l.from, time.Now())
	}
	if j == nil || head.Job == 0 {
		return d.farewell(l, head)
	}
	if !j.coordinator.Beat(time.Now(), l.from, head) {
		return schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", l.from, l.job)
	}
	return nil
}

// farewell answers who speaks of a job that is no more.
func (d *desk) farewell(l *letter, head *schema.Head) *refusal {
	e := d.over(l, head.Job)
	k := d.kept[l.job]
	switch {
	case e == nil && k != nil && k.run == head.Job:
		return nil // its coordinator is on another ps
	case e == nil && !d.server.registry.alone.Load():
		return nil // another ps may know more
	case e == nil:
		return schema.Refuse(schema.ReasonJobUnknown, "job %s with this run id is not registered here: it has ended, or the server has restarted", l.job)
	case e.failed != nil:
		d.send(e.name, e.run, l.from, schema.Control{Failed: e.failed})
	default:
		d.send(e.name, e.run, l.from, schema.Control{Left: &schema.Left{}})
	}
	return nil
}

func (d *desk) readControl(j *job, l *letter, head *schema.Head) *refusal {
	control, err := schema.DecodeControl(&l.view)
	if err != nil {
		return schema.Refusing(err)
	}
	switch {
	case control.Join != nil && !isJoiner(l.from):
		return schema.Refuse(schema.ReasonUnknownSender, "a join from %s: want a name that begins with j-, since members have names already", l.from)
	case control.Join != nil && control.Join.Job.Name != l.job:
		r := &schema.Refused{Reason: "invalid_job", Field: "name", Have: string(l.job), Want: string(control.Join.Job.Name),
			Text: schema.Clip(fmt.Sprintf("manifest of job %s sent as job %s", control.Join.Job.Name, l.job))}
		d.joinRefused(l.job, l.from, control.Join.Host, r)
		d.send(l.job, 0, l.from, schema.Control{Refused: r})
	case control.Join != nil:
		d.join(l, control.Join)
	case control.Report != nil || control.Failed != nil:
		return d.readKeeper(j, l, head, &control)
	case (control.Leave != nil || control.ScaleLR != nil || control.LRTaken != nil) && j == nil:
		return d.farewell(l, head)
	case control.ScaleLR != nil:
		d.carryOut(j, j.coordinator.ScaleLR(l.from, control.ScaleLR))
	case control.LRTaken != nil:
		d.carryOut(j, j.coordinator.LRTaken(l.from, control.LRTaken))
	case control.Leave != nil:
		if k := d.kept[l.job]; k != nil && k.run == j.run {
			k.trainerLeft(l.from)
		}
		j.coordinator.Beat(time.Now(), l.from, head) // its last one may be a second old; who is no member is told by Leave
		d.carryOut(j, j.coordinator.Leave(l.from, control.Leave))
	default:
		return schema.Refuse(schema.ReasonMalformed, "control %s: a coordinator takes join, leave, scale_lr, lr_taken, report and failed", control.Name())
	}
	return nil
}

// readKeeper takes a word of a ps that keeps shards of a job. Who keeps them for a job that has ended is told.
func (d *desk) readKeeper(j *job, l *letter, head *schema.Head, control *schema.Control) *refusal {
	switch {
	case j != nil && d.readFromKeeper(j, l.from, control):
		return nil
	case j != nil:
		return schema.Refuse(schema.ReasonUnknownSender, "%s keeps no shard of job %s", l.from, l.job)
	case d.over(l, head.Job) != nil:
		d.send(l.job, head.Job, l.from, schema.Control{Release: &schema.Release{}})
	}
	return nil
}

// checkServers refuses a job whose part another ps has said to have no room for, and one of too many shards. fitted is its manifest with the
// chunks that there is room for.
func (d *desk) checkServers(c *claim, fitted *schema.Job) *schema.Refused {
	if !c.job.NeedsShards() {
		return nil
	}
	shards := 0
	for _, s := range c.servers {
		shards += s.Shards
	}
	if shards > schema.ShardsMax {
		return &schema.Refused{Reason: "server_full", Text: fmt.Sprintf("%d shards on %d ps: want at most %d; give fewer with --shards", shards, len(c.servers), schema.ShardsMax)}
	}
	for _, s := range c.servers {
		if s.ID == d.server.registry.self.ID {
			if r := d.checkRoom(fitted, s.Shards, shards); r != nil {
				return r
			}
		} else if need := MemoryOf(d.server.config, fitted, s.Shards, shards).Bytes(); need > s.MemoryBytes {
			return noRoom(c.job, "those of ps "+s.ID+" on "+s.Host, need, s.MemoryBytes)
		}
	}
	return nil
}

// ownShards is how many shards of a job are kept here.
func (d *desk) ownShards(c *claim) int {
	for _, s := range c.servers {
		if s.ID == d.server.registry.self.ID {
			return s.Shards
		}
	}
	return 1 // this ps coordinates a job that others keep
}

func noRoom(job *schema.Job, who string, need, free int64) *schema.Refused {
	return &schema.Refused{Reason: "invalid_job", Field: "tables", Have: strconv.FormatInt(free, 10), Want: strconv.FormatInt(need, 10),
		Text: fmt.Sprintf("job %s needs %d bytes, and %d of %s are free: use smaller tables or raise the server's --memory-mib by %d", job.Name, need, free, who, (need-free+1<<20-1)>>20)}
}

// checkManifest refuses what no server can run.
func checkManifest(manifest *schema.Job) *schema.Refused {
	if err := manifest.Validate(); err != nil {
		r := &schema.Refused{Reason: "invalid_job", Text: schema.Clip(err.Error())}
		var fields schema.JobErrors
		if errors.As(err, &fields) && len(fields) > 0 {
			r.Field, r.Have, r.Want = fields[0].Field, fields[0].Value, fields[0].Want
		}
		return r
	}
	if r := checkTables(manifest); r != nil {
		return r
	}
	return checkModules(manifest)
}

// checkRoom refuses a job whose shards here would not fit beside those of others. Where only jobs that end are in its way it says so.
func (d *desk) checkRoom(manifest *schema.Job, own, shards int) *schema.Refused {
	r := d.checkBeside(manifest, own, shards, d.held())
	if r == nil || len(d.leaving) == 0 || d.checkBeside(manifest, own, shards, slices.Collect(maps.Values(d.kept))) != nil {
		return r
	}
	return &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf("jobs that end have not given back yet what job %s needs, now: %s", manifest.Name, r.Text))}
}

// checkBeside refuses a job whose shards here would not fit beside those of the others.
func (d *desk) checkBeside(manifest *schema.Job, own, shards int, others []*kept) *schema.Refused {
	c := &d.server.config
	if len(others) >= c.JobsMax {
		return &schema.Refused{Reason: "server_full", Text: fmt.Sprintf("%d jobs are registered, and the server's --jobs-max is %d", len(others), c.JobsMax)}
	}
	if need, free := MemoryOf(*c, manifest, own, shards).Bytes(), d.freeBytes(others); need > free {
		return noRoom(manifest, fmt.Sprintf("the server's %d", c.MemoryBytesMax), need, free)
	}
	return checkWindows(manifest, own, d.window(manifest, own, others))
}

// window is what each trainer of a job may have under way to each of its own shards here, beside other jobs.
func (d *desk) window(manifest *schema.Job, own int, others []*kept) int64 {
	c := &d.server.config
	free := c.PendingBytesMax / 2
	for _, k := range others {
		free -= int64(k.manifest.Trainers*len(k.own)) * k.window
	}
	share, most := windowShare(c, len(others), free)
	return windowBytes(manifest, own, c.StagedBytesMax, share, most)
}

// fitChunks is a manifest with the largest chunks, of halves of its own, with which the window of each trainer to each of its own shards here
// holds a message, once the jobs that end have ended; the manifest itself where there are none.
func (d *desk) fitChunks(manifest *schema.Job, own int) *schema.Job {
	staying := slices.Collect(maps.Values(d.kept))
	for job := manifest; job != nil; job = job.SmallerChunks() {
		if checkWindows(job, own, d.window(job, own, staying)) == nil {
			return job
		}
	}
	return manifest
}

// freeBytes is the memory that these jobs leave.
func (d *desk) freeBytes(jobs []*kept) int64 {
	free := d.server.config.MemoryBytesMax
	for _, k := range jobs {
		free -= k.memory.Bytes()
	}
	return free
}
