package ps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// ownLetter goes between a coordinator and the shards on the same ps: it needs no wire. The desk reads these after
// whatever wrote them.
type ownLetter struct {
	job     schema.JobName
	run     schema.RunID
	from    schema.Member // coordinator, or this ps
	control schema.Control
}

// readOwn reads what this ps has written to itself.
func (d *desk) readOwn(ctx context.Context) {
	for len(d.own) > 0 {
		l := d.own[0]
		d.own = d.own[1:]
		j := d.jobs[l.job]
		switch {
		case j == nil || j.run != l.run: // has ended meanwhile
		case l.from == schema.Coordinator:
			d.readAsKeeper(ctx, l.job, l.run, &l.control)
		default:
			d.readFromKeeper(j, l.from, &l.control)
		}
	}
	d.own = nil
}

// readFromKeeper is the coordinator's side. It reports whether the sender keeps shards of the job.
func (d *desk) readFromKeeper(j *job, from schema.Member, c *schema.Control) bool {
	var decisions []Decision
	var known bool
	if c.Report != nil {
		decisions, known = j.coordinator.Report(time.Now(), from, c.Report)
	} else {
		decisions, known = j.coordinator.KeeperFailed(from, c.Failed)
	}
	d.carryOut(j, decisions)
	if known && d.jobs[j.manifest.Name] == j {
		d.admitWaiting(j)
	}
	return known
}

// tell sends a word about a job that shards are kept of to its coordinator.
func (d *desk) tell(k *kept, c schema.Control) {
	name := k.manifest.Name
	if j := d.jobs[name]; j != nil && j.run == k.run {
		d.own = append(d.own, ownLetter{name, k.run, d.server.member, c})
		return
	}
	d.sendAs(d.server.member, name, k.run, schema.Coordinator, c)
}

// checkFit ends the jobs that shards are kept of here where this process must not compute any more.
func (d *desk) checkFit() {
	if len(d.kept) == 0 {
		return
	}
	err := d.server.unfit()
	if err == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.kept)) {
		d.keeperFailed(d.kept[name], d.server.member, err.Error())
	}
}

func (d *desk) keeperFailed(k *kept, who schema.Member, text string) {
	d.tell(k, schema.Control{Failed: &schema.Failed{Member: who, Text: text}})
}

// readAsKeeper takes a word of a coordinator to those who keep shards.
func (d *desk) readAsKeeper(ctx context.Context, name schema.JobName, run schema.RunID, c *schema.Control) {
	k := d.kept[name]
	switch {
	case c.Release != nil:
		if k != nil && k.run == run {
			d.release(k)
		}
	case c.Assign != nil:
		d.assigned(ctx, name, run, c.Assign)
	}
}

// assigned begins to keep shards of a job, or learns of new routes to its trainers.
func (d *desk) assigned(ctx context.Context, name schema.JobName, run schema.RunID, a *schema.Assign) {
	k := d.kept[name]
	if k != nil && k.run != run {
		if j := d.jobs[name]; j != nil && j.run == k.run {
			return // two ps have registered the name; the registry says which of them
		}
		d.release(k) // whose end was not heard
		k = nil
	}
	if k == nil {
		var err error
		if k, err = d.keep(ctx, name, run, a); errors.Is(err, errBusy) {
			d.server.log.Info("shards put off", "job", name, "err", err)
			return // it is said again each second
		} else if err != nil {
			d.server.log.Warn("shards not kept", "job", name, "err", err)
			d.tell(&kept{manifest: a.Job, run: run}, schema.Control{Failed: &schema.Failed{Member: d.server.member, Text: err.Error()}})
			return
		}
	}
	k.heard = time.Now()
	if a.Serial > k.serial && k.wanted <= k.serial {
		for _, i := range k.own {
			k.workers[i].lr.Store(&a.LR)
		}
		k.route(a, d.news)
		if len(a.Gone) > 0 {
			for _, i := range k.own {
				k.workers[i].lose(a.Gone)
			}
		}
	}
	d.tell(k, schema.Control{Report: k.report()})
}

// errBusy says that there will be room in a moment.
var errBusy = errors.New("not yet")

// keep makes shards of a job, where there is room for them.
func (d *desk) keep(ctx context.Context, name schema.JobName, run schema.RunID, a *schema.Assign) (*kept, error) {
	if a.Job.Name != name {
		return nil, fmt.Errorf("manifest of job %s sent as job %s", a.Job.Name, name)
	}
	if err := a.Job.Validate(); err != nil {
		return nil, err
	}
	if err := d.server.unfit(); err != nil {
		return nil, err
	}
	if r := d.checkRoom(a.Job, len(a.Own), a.Shards); r != nil && r.Reason == schema.RefusedBusy {
		return nil, fmt.Errorf("%w: %s", errBusy, r.Text)
	} else if r != nil {
		return nil, errors.New(r.Text)
	}
	if err := d.server.listen(a.Own); err != nil {
		d.server.unlisten(d.held())
		return nil, err
	}
	k, err := newKept(ctx, d.server, run, a, d.window(a.Job, len(a.Own), d.held()), d.news)
	if err != nil {
		d.server.unlisten(d.held())
		return nil, err
	}
	d.kept[name] = k
	d.shareJobs()
	return k, nil
}

// release ends the shards of a job. It does not wait for them: what the job was promised is free when they have ended, as hear learns.
func (d *desk) release(k *kept) {
	delete(d.kept, k.manifest.Name)
	d.leaving[k] = struct{}{}
	d.shareJobs()
	k.cancel()
	d.server.releasing.Go(func() {
		k.wait()
		d.server.log.Info("job freed", "job", k.manifest.Name, "bytes", k.memory.Bytes())
		select {
		case d.news <- shardNews{kept: k, free: true}:
		case <-d.done:
		}
	})
}

// held are the jobs that memory and windows are promised to here, those that end among them.
func (d *desk) held() []*kept {
	return slices.AppendSeq(slices.Collect(maps.Values(d.kept)), maps.Keys(d.leaving))
}

// shareJobs shows receiving goroutines which jobs there are now.
func (d *desk) shareJobs() {
	jobs := maps.Clone(d.kept)
	d.limitHeap()
	d.server.jobs.Store(&jobs)
	d.server.freeBytes.Store(d.freeBytes(d.held()))
}

// limitHeap tells how much the heap may hold, where that has changed.
func (d *desk) limitHeap() {
	limit := d.server.limitHeap
	if limit == nil {
		return
	}
	var all []Memory
	for _, k := range d.held() {
		all = append(all, k.memory)
	}
	if bytes := heapBytes(all, d.server.nats.GuestBytes()); bytes != d.heap {
		d.heap = bytes
		limit(bytes)
	}
}

// hear takes what a shard has to say about itself, or how the way to the cluster was found.
func (d *desk) hear(n shardNews) {
	k := n.kept
	switch {
	case n.free:
		delete(d.leaving, k)
		d.server.unlisten(d.held())
		d.shareJobs()
		return
	case d.kept[k.manifest.Name] != k: // has ended meanwhile
		return
	}
	switch {
	case n.err != nil && n.member == "":
		d.keeperFailed(k, d.server.member, fmt.Sprintf("the cluster is no way to its trainers: %v", n.err))
		return
	case n.err != nil:
		d.keeperFailed(k, n.member, n.err.Error())
		return
	case n.member == "":
		k.serial = k.wanted
	default:
		k.building--
	}
	if k.building == 0 {
		d.tell(k, schema.Control{Report: k.report()})
	}
}

// tickKept reports to the coordinator, or gives the shards up where it has been silent for too long.
func (d *desk) tickKept(k *kept, now time.Time) {
	if j := d.jobs[k.manifest.Name]; j != nil && j.run == k.run {
		k.heard = now
	}
	if silent := now.Sub(k.heard); silent > k.deadline+graceOfCoordinator {
		d.server.log.Warn("shards given up, coordinator silent", "job", k.manifest.Name, "silent", rounded(silent))
		d.release(k)
		return
	}
	d.tell(k, schema.Control{Report: k.report()})
}

// hearCoordinator notes the beat of a coordinator elsewhere.
func (d *desk) hearCoordinator(name schema.JobName, run schema.RunID) {
	if k := d.kept[name]; k != nil && k.run == run {
		k.heard = time.Now()
	}
}

// look takes what the registry has seen.
func (d *desk) look(ctx context.Context, n registryNews) {
	if n.taken != nil {
		d.server.log.Error("this ps has to end", "err", n.taken)
		d.server.fail(n.taken)
		return
	}
	if n.changed.run != 0 {
		if j := d.jobs[n.changed.name]; j != nil && j.run == n.changed.run {
			d.carryOut(j, j.coordinator.LRRecorded())
		}
		return
	}
	if j := d.jobs[n.stolen]; n.stolen != "" && j != nil {
		d.carryOut(j, j.coordinator.Fail(schema.Coordinator, "another ps has registered the name of the job, after the control server had lost its buckets"))
	}
	for _, name := range slices.Sorted(maps.Keys(d.jobs)) {
		if j := d.jobs[name]; !d.registerAnew(j, n.servers) {
			d.findReplaced(j, n.servers)
		}
	}
	d.settleDoubts(ctx)
}

// findReplaced ends a job whose shards were lost by a ps that has ended, or was started anew.
func (d *desk) findReplaced(j *job, servers []announcement) {
	for i := range j.servers {
		for _, there := range servers {
			if there.ID == d.server.registry.self.ID || there.ID != j.servers[i].ID || there.Incarnation == j.servers[i].Incarnation && !there.Leaving {
				continue
			}
			how := "has ended"
			if there.Incarnation != j.servers[i].Incarnation {
				how = "was started anew on " + there.Host + " and has lost its shards"
			}
			d.carryOut(j, j.coordinator.KeeperGone(i, how))
			return
		}
	}
}

// post publishes a word of control. A server that is lost does not take it; all of them are said again.
func (s *Server) post(subject fabric.Subject, frame []byte) { s.publish(s.control, subject, frame) }
