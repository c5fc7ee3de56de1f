package ps

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// joinsMax bounds the joins that wait until it is known who coordinates their job. They are repeated each second.
const joinsMax = 256

// join takes a trainer's wish to take part to the job's coordinator. A job that nobody coordinates, as far as this ps
// knows, is claimed: the registry decides which ps it is.
func (d *desk) join(l *letter, request *schema.Join) {
	if e := d.over(l, 0); e != nil { // a late repetition of a join that led to a job which has ended
		_ = d.farewell(l, &schema.Head{Job: e.run}) // e is known, so it does not refuse
		return
	}
	j := d.jobs[l.job]
	if j != nil && j.attended() {
		if !tookPart(j.ended, l.from) {
			d.admit(j, l, request)
		}
		return
	}
	if j == nil && d.coordinatedElsewhere(time.Now(), l.job) {
		return // by who answers
	}
	waiting, asked := d.waiting[l.job]
	if slices.ContainsFunc(waiting, func(w letter) bool { return w.from == l.from }) || d.joins == joinsMax {
		return
	}
	if refused := checkManifest(request.Job); refused != nil { // which is written down nowhere
		d.joinRefused(l.job, l.from, request.Host, refused)
		d.send(l.job, 0, l.from, schema.Control{Refused: refused})
		return
	}
	if j == nil && !asked {
		select {
		case d.server.registry.claims <- claimRequest{request.Job, l.from, d.server.keeps(l.job)}:
		default:
			return // many others come first
		}
	}
	d.waiting[l.job] = append(waiting, *l)
	d.joins++
}

// coordinatedElsewhere reports whether another ps is known to coordinate a job. Who keeps shards of it hears that ps every
// second, but for times when nobody can be heard: then, and some beats longer, the registry may have lost the job.
func (d *desk) coordinatedElsewhere(now time.Time, name schema.JobName) bool {
	if k := d.kept[name]; k != nil {
		patience := max(d.server.registry.lease, 4*tickEvery)
		return now.Sub(k.heard) < patience || now.Sub(d.server.controlBack.get()) < patience
	}
	return now.Before(d.elsewhere[name])
}

func (d *desk) admit(j *job, l *letter, request *schema.Join) {
	if request.Data == schema.DataCluster {
		if r := checkMessages(j.manifest, "the NATS server at "+d.server.control.Address(), d.server.control.PayloadBytesMax()); r != nil {
			d.joinRefused(l.job, l.from, request.Host, r)
			d.carryOut(j, j.coordinator.Refuse(l.from, r))
			return
		}
	}
	decisions := j.coordinator.Join(time.Now(), l.from, request)
	for i := range decisions {
		if r := decisions[i].Control.Refused; r != nil {
			d.joinRefused(l.job, l.from, request.Host, r)
		}
	}
	d.carryOut(j, decisions)
}

// claimed takes the registry's word on who coordinates a job: this ps, if it wrote the job down first.
func (d *desk) claimed(c claim) {
	name := c.job.Name
	switch {
	case errors.Is(c.err, fabric.ErrLost): // or slower than we wait
		d.server.log.Warn("job not registered yet, its trainers ask again", "job", name, "err", c.err)
		d.takeWaiting(name)
		return
	case c.err != nil:
		d.turnAway(name, &schema.Refused{Reason: "server_full", Text: schema.Clip(fmt.Sprintf("job %s cannot be registered: %v", name, c.err))})
		return
	case c.ended != nil:
		d.joinAgain(name, c.ended)
		return
	case c.record == nil:
		d.elsewhere[name] = time.Now().Add(d.server.registry.renew())
		d.takeWaiting(name)
		return
	}
	refused := checkMessages(c.job, "this server", d.server.config.PayloadBytesMax)
	fitted := d.fitChunks(c.job, d.ownShards(&c))
	if refused == nil {
		refused = d.checkServers(&c, fitted)
	}
	if refused != nil {
		d.server.registry.end(name, endedRun{})
		d.turnAway(name, refused)
		return
	}
	j := newJob(d.server, c, fitted, d.window(fitted, d.ownShards(&c), d.held()))
	d.jobs[name] = j
	d.server.log.Info("job registered", "job", name, "run_id", strconv.FormatUint(uint64(j.run), 10), "trainers", c.job.Trainers, "shards", j.coordinator.shards, "servers", len(c.servers))
	d.carryOut(j, j.coordinator.Assign(time.Now()))
	d.admitWaiting(j)
}

// admitWaiting admits those who wait for a job, once all ps that keep its shards have been heard of. Before, one of them may be dead, whose
// announcement has not run out: nobody is to wait for it.
func (d *desk) admitWaiting(j *job) {
	if !j.attended() {
		return
	}
	for _, l := range d.takeWaiting(j.manifest.Name) {
		control, err := schema.DecodeControl(&l.view)
		if err == nil && d.jobs[j.manifest.Name] == j && !tookPart(j.ended, l.from) {
			d.admit(j, &l, control.Join)
		}
	}
}

// attended reports whether all ps that keep shards of a job have been heard of.
func (j *job) attended() bool { return j.coordinator.unheard() < 0 }

// busyAfter is for how long those who wait for a job are told nothing.
const busyAfter = 2 * tickEvery

// putOff tells those who wait for a job which ps it waits for. They ask again.
func (d *desk) putOff(j *job, now time.Time) {
	i := j.coordinator.unheard()
	if i < 0 || now.Sub(j.registered) < busyAfter {
		return
	}
	d.turnAway(j.manifest.Name, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
		"%s is announced and has not answered for %s: it may be dead, which counts %s after its last sign; the job is registered without it then",
		j.coordinator.keeperName(i), rounded(now.Sub(j.registered)), d.server.registry.lease))})
}

// registerAnew drops a job that nobody was admitted to, because a ps that was to keep shards of it is no more, and has it claimed for those
// who wait, among the ps that there are now. It reports whether it did.
func (d *desk) registerAnew(j *job, servers []announcement) bool {
	if j.attended() {
		return false
	}
	dead := slices.IndexFunc(j.servers, func(s announcement) bool {
		return !slices.ContainsFunc(servers, func(a announcement) bool {
			return a.ID == s.ID && a.Incarnation == s.Incarnation && !a.Leaving
		})
	})
	if dead < 0 {
		return false
	}
	d.server.log.Warn("ps is no more, its job is registered anew", "job", j.manifest.Name, "server", j.servers[dead].ID)
	waiting := d.takeWaiting(j.manifest.Name)
	d.drop(j)
	for _, l := range waiting {
		if control, err := schema.DecodeControl(&l.view); err == nil {
			d.join(&l, control.Join)
		}
	}
	return true
}

// joinAgain drops the joins that wait for a job and come from trainers of its earlier runs: they were said again to a ps that was slow,
// and answered by another. The others have the job claimed for them.
func (d *desk) joinAgain(name schema.JobName, ended []endedRun) {
	for _, l := range d.takeWaiting(name) {
		if tookPart(ended, l.from) {
			continue
		}
		if control, err := schema.DecodeControl(&l.view); err == nil {
			d.join(&l, control.Join)
		}
	}
}

// takeWaiting takes the joins for a job that wait.
func (d *desk) takeWaiting(name schema.JobName) []letter {
	waiting := d.waiting[name]
	delete(d.waiting, name)
	d.joins -= len(waiting)
	return waiting
}

// turnAway refuses all that wait for a job.
func (d *desk) turnAway(name schema.JobName, refused *schema.Refused) {
	for _, l := range d.takeWaiting(name) {
		if control, err := schema.DecodeControl(&l.view); err == nil && control.Join != nil && refused.Reason != schema.RefusedBusy {
			d.joinRefused(name, l.from, control.Join.Host, refused)
		}
		d.send(name, 0, l.from, schema.Control{Refused: refused})
	}
}

// sendAway answers a letter that came too late.
func (d *desk) sendAway(l *letter) {
	control, err := schema.DecodeControl(&l.view)
	if err != nil || control.Join == nil {
		return
	}
	d.send(l.job, 0, l.from, schema.Control{Refused: &schema.Refused{Reason: "shutting_down", Text: "the parameter server is shutting down"}})
}
