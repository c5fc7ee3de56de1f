package ps

import (
	"context"
	"errors"
	"fmt"
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
	e := endedJob{name: j.manifest.Name, run: j.run, failed: j.coordinator.Failed()}
	for i := range j.coordinator.members {
		if name := j.coordinator.members[i].joiner; name != "" {
			e.joiners = append(e.joiners, name)
		}
	}
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

// read takes a letter to the coordinator it is for.
func (d *desk) read(ctx context.Context, l *letter) {
	head := l.view.Head()
	j := d.jobs[l.job]
	if j != nil && head.Job != 0 && head.Job != j.run {
		j = nil // of an earlier run of the name
	}
	var r *refusal
	switch head.Kind {
	case schema.KindBeat:
		r = d.readBeat(j, l, &head)
	case schema.KindControl:
		r = d.readControl(ctx, j, l, &head)
	case schema.KindRefusal: // a trainer has no reason to refuse anything of ours
		d.server.log.Warn("trainer refused a frame", "job", l.job, "member", l.from)
	}
	if r == nil {
		d.server.counters.count(schema.ReasonOK)
		return
	}
	subject := fabric.At(string(l.job), string(l.from), fabric.KindCtl, string(schema.Coordinator))
	d.refuse(&subject, head, r)
}

func (d *desk) readBeat(j *job, l *letter, head *schema.Head) *refusal {
	if j == nil || head.Job == 0 {
		return d.farewell(l, head)
	}
	if !j.coordinator.Beat(time.Now(), l.from, head.Batch) {
		return refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", l.from, l.job)
	}
	return nil
}

// farewell answers who speaks of a job that is no more.
func (d *desk) farewell(l *letter, head *schema.Head) *refusal {
	e := d.over(l, head.Job)
	switch {
	case e == nil:
		return refuse(schema.ReasonJobUnknown, "job %s with this run id is not registered here: it has ended, or the server has restarted", l.job)
	case e.failed != nil:
		d.send(e.name, e.run, l.from, schema.Control{Failed: e.failed})
	default:
		d.send(e.name, e.run, l.from, schema.Control{Left: &schema.Left{}})
	}
	return nil
}

func (d *desk) readControl(ctx context.Context, j *job, l *letter, head *schema.Head) *refusal {
	control, err := schema.DecodeControl(&l.view)
	if err != nil {
		return refuseFrame(err)
	}
	switch {
	case control.Join != nil && !strings.HasPrefix(string(l.from), "j-"):
		return refuse(schema.ReasonUnknownSender, "a join from %s: want a name that begins with j-, since members have names already", l.from)
	case control.Join != nil:
		d.join(ctx, l, control.Join)
	case control.Leave != nil && j == nil:
		return d.farewell(l, head)
	case control.Leave != nil:
		j.coordinator.Beat(time.Now(), l.from, head.Batch) // its last one may be a second old; who is no member is told by Leave
		d.carryOut(j, j.coordinator.Leave(l.from, control.Leave))
	default:
		return refuse(schema.ReasonMalformed, "control %s: a coordinator takes join and leave", control.Name())
	}
	return nil
}

// join finds or registers the job that a trainer wants to take part in.
func (d *desk) join(ctx context.Context, l *letter, request *schema.Join) {
	if e := d.over(l, 0); e != nil { // a late repetition of a join that led to a job which has ended
		_ = d.farewell(l, &schema.Head{Job: e.run}) // e is known, so it does not refuse
		return
	}
	j := d.jobs[l.job]
	if j == nil {
		var refused *schema.Refused
		if j, refused = d.register(ctx, l.job, request.Job); refused != nil {
			d.server.log.Warn("job refused", "job", l.job, "member", l.from, "reason", refused.Text)
			d.send(l.job, 0, l.from, schema.Control{Refused: refused})
			return
		}
	}
	d.carryOut(j, j.coordinator.Join(time.Now(), l.from, request))
}

// register makes a job from the first trainer's manifest, or says why not.
func (d *desk) register(ctx context.Context, name schema.JobName, manifest *schema.Job) (*job, *schema.Refused) {
	if refused := d.checkManifest(name, manifest); refused != nil {
		return nil, refused
	}
	run, err := newRunID()
	if err != nil {
		return nil, &schema.Refused{Reason: "server_full", Text: fmt.Sprintf("draw run id: %v", err)}
	}
	j, err := newJob(ctx, d.server, manifest, run, d.news)
	if err != nil {
		return nil, &schema.Refused{Reason: "server_full", Text: err.Error()}
	}
	d.jobs[name] = j
	d.shareJobs()
	d.server.log.Info("job registered", "job", name, "run_id", uint64(run), "trainers", manifest.Trainers, "bytes", j.bytes)
	return j, nil
}

// checkManifest refuses what this server cannot run.
func (d *desk) checkManifest(name schema.JobName, manifest *schema.Job) *schema.Refused {
	c := d.server.config
	if err := manifest.Validate(); err != nil {
		r := &schema.Refused{Reason: "invalid_job", Text: schema.Clip(err.Error())}
		var fields schema.JobErrors
		if errors.As(err, &fields) && len(fields) > 0 {
			r.Field, r.Have, r.Want = fields[0].Field, fields[0].Value, fields[0].Want
		}
		return r
	}
	if manifest.Name != name {
		return &schema.Refused{Reason: "invalid_job", Field: "name", Have: string(name), Want: string(manifest.Name),
			Text: fmt.Sprintf("manifest of job %s sent as job %s", manifest.Name, name)}
	}
	if r := checkTables(manifest); r != nil {
		return r
	}
	if r := checkMessages(manifest, c.PayloadBytesMax); r != nil {
		return r
	}
	if len(d.jobs) >= c.JobsMax {
		return &schema.Refused{Reason: "server_full", Text: fmt.Sprintf("%d jobs are registered, and the server's --jobs-max is %d", len(d.jobs), c.JobsMax)}
	}
	var used int64
	for _, j := range d.jobs {
		used += j.bytes
	}
	if need := JobBytes(manifest, c.Shards, c.StagedBytesMax); need > c.MemoryBytesMax-used {
		return &schema.Refused{Reason: "invalid_job", Field: "tables", Have: strconv.FormatInt(c.MemoryBytesMax-used, 10), Want: strconv.FormatInt(need, 10),
			Text: fmt.Sprintf("job %s needs %d bytes, and %d of the server's %d are free: use smaller tables or raise the server's --memory-mib",
				manifest.Name, need, c.MemoryBytesMax-used, c.MemoryBytesMax)}
	}
	return nil
}

// sendAway answers a letter that came too late.
func (d *desk) sendAway(l *letter) {
	control, err := schema.DecodeControl(&l.view)
	if err != nil || control.Join == nil {
		return
	}
	d.send(l.job, 0, l.from, schema.Control{Refused: &schema.Refused{Reason: "shutting_down", Text: "the parameter server is shutting down"}})
}
