package status

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gradbus/schema"
)

// servers finds what is wrong with ps.
func (j *ranking) servers() {
	for i := range j.s.Servers {
		v := &j.s.Servers[i]
		s := j.t.servers[v.ID]
		if !s.heard.fresh(j.s.NowMS) {
			j.silentServer(v, s)
			continue
		}
		j.server(v, s)
	}
}

// silentServer says that a ps is not heard of, and what that means for jobs.
func (j *ranking) silentServer(v *Server, s *server) {
	var coordinates, keeps []string
	for i := range j.s.Jobs {
		job := &j.s.Jobs[i]
		if job.Phase == schema.PhaseEnded {
			continue
		}
		if job.Coordinator == v.ID {
			coordinates = append(coordinates, job.Name)
		} else if hasShardOn(job, v.ID) {
			keeps = append(keeps, job.Name)
		}
	}
	level, code, what := Warning, CodeServerSilent, "; no job depends on it"
	switch {
	case len(coordinates) > 0:
		level, code, what = Critical, CodeCoordinator, ", and coordinates "+list(coordinates)
	case len(keeps) > 0:
		level, what = Critical, ", and keeps shards of "+list(keeps)
	}
	action := ""
	if len(coordinates)+len(keeps) > 0 {
		action = "Look at that ps and its machine. If it has ended, its jobs cannot continue: start it again, then the jobs."
	}
	if j.isControl(s) {
		what = ", is the control server" + what
	}
	f := j.find(code, "ps %s on %s (pid %d) was last heard %s ago%s", v.ID, v.Host, v.PID, Ago(v.AgeMS), what)
	f.about("", "p-"+v.ID).at(level).from(j.s.NowMS - v.AgeMS).do(action)
	f.jobs = append(coordinates, keeps...)
}

func hasShardOn(job *Job, server string) bool {
	for i := range job.Shards {
		if job.Shards[i].Server == server {
			return true
		}
	}
	return false
}

// mismatched finds that somebody's results came out otherwise when they were computed again.
func (j *ranking) mismatched(who string, v *schema.VerifyReport, about func(*finding)) {
	if v.Mismatches == 0 {
		return
	}
	on := ""
	if v.Device != "" {
		on = " on GPU " + schema.Clip(v.Device)
	}
	if v.Injected {
		on += " (injected)"
	}
	about(j.find(CodeVerification, "%s: %s of %s optimizer blocks gave other bits%s than when computed again", who,
		Count(float64(v.Mismatches)), Count(float64(v.Blocks)), on))
}

// server finds what a ps says of itself that is not good.
func (j *ranking) server(v *Server, s *server) {
	said := s.said()
	about := func(f *finding) { f.about("", "p-"+v.ID) }
	j.control(v, s)
	j.serverTraffic(v, s, about)
	j.standsBy(v, about)
	j.mismatched(fmt.Sprintf("ps %s on %s", v.ID, v.Host), &said.Verification, about)
	if v.MemoryMaxBytes > 0 && float64(v.PromisedBytes) >= 0.9*float64(v.MemoryMaxBytes) {
		about(j.find(codeMemory, "ps %s has promised %s of its %s of memory to jobs", v.ID, Amount(v.PromisedBytes),
			Amount(v.MemoryMaxBytes)))
	}
}

// ifJobs is a level where jobs are under way, else a warning.
func (j *ranking) ifJobs(l Level) Level {
	for i := range j.s.Jobs {
		if j.s.Jobs[i].Phase != schema.PhaseEnded {
			return l
		}
	}
	return Warning
}

// gpuName is how problems and events name a GPU: by its UUID, or where it has none by machine and index.
func gpuName(g *GPU) string {
	if g.UUID != "" {
		return g.UUID
	}
	return fmt.Sprintf("%s/%d", g.Host, g.Index)
}

// gpus finds GPUs that are not well.
func (j *ranking) gpus() {
	for i := range j.s.GPUs {
		g := &j.s.GPUs[i]
		var code, what string
		level := Warning
		switch g.State {
		case schema.GPUHealthy:
			continue
		case schema.GPUUnhealthy:
			code, what = CodeGPUUnhealthy, "is unhealthy"
		case schema.GPUAbsent:
			code, what = codeGPUAbsent, "is not there"
		case schema.GPUDegraded:
			code, what = codeGPUDegraded, "is degraded"
		default:
			code, what = codeGPUUnknown, "cannot be asked"
		}
		if g.Used && (code == CodeGPUUnhealthy || code == codeGPUAbsent) {
			level = Critical
		}
		text := fmt.Sprintf("GPU %d on %s %s", g.Index, g.Host, what)
		if g.Injected {
			text += " (injected)"
		}
		if g.Reason != "" {
			text += ": " + schema.Clip(g.Reason)
		}
		if len(g.Users) > 0 {
			text += "; used by " + list(g.Users)
		}
		j.find(code, "%s", text).at(level).do(schema.Clip(g.Action)).GPU = gpuName(g)
	}
}

// bounds says what is beyond what can be shown, and who claims what is another's.
func (j *ranking) bounds() {
	t := j.t
	if l := t.refused; l.what != "" && t.now-l.at < 10_000 {
		j.find(CodeTooMany, "there are more %s than can be shown", l.what)
	}
	j.unlisted()
	for key := range t.rivals {
		j.find(CodeClaimed, "ps %s says that it coordinates %s, which another ps does", key.server, key.name).
			about(string(key.name), "p-"+key.server)
	}
	versions := map[string]string{}
	for i := range j.s.Servers {
		if v := &j.s.Servers[i]; v.Version != "" && v.AgeMS < heldFor {
			versions[v.Version] = v.ID
		}
	}
	if len(versions) > 1 {
		var names []string
		for _, v := range sortedKeys(versions) {
			names = append(names, fmt.Sprintf("%s (ps %s)", schema.Clip(v), versions[v]))
		}
		j.find(codeVersions, "ps of different versions run together: %s", list(names))
	}
}

// deafAfter is for how long nobody else may be heard before that is told, in milliseconds: others speak once a second
// each, at moments of their own.
const deafAfter = 1_900

// control says that a ps cannot reach the control server, or, of the one that answers, that nobody is heard by way of
// it: then nothing is known of others, and that they are silent says nothing of them.
func (j *ranking) control(v *Server, s *server) {
	self := v.ID == j.t.config.Server
	since, deaf := int64(0), false
	if self && s.said().Control != "" {
		since, deaf = j.deaf(s)
	}
	c := j.controller(s)
	if !v.ControlLost && !deaf || c != nil && !c.heard.fresh(j.s.NowMS) { // its silence says it
		return
	}
	where := "the control server"
	if at := s.said().Control; at != "" {
		where += " at " + schema.Clip(at)
	}
	if c != nil {
		where += fmt.Sprintf(", which is ps %s on %s (pid %d)", c.id, c.report.Host, c.report.PID)
	}
	text := fmt.Sprintf("ps %s on %s cannot reach %s", v.ID, v.Host, where)
	if !v.ControlLost {
		text = fmt.Sprintf("ps %s on %s has heard no other member for %s by way of %s", v.ID, v.Host, Ago(j.s.NowMS-since), where)
	}
	if j.ifJobs(Critical) == Critical {
		text += fmt.Sprintf("; no trainer can join, and running jobs continue for %s at most",
			Ago(int64(finite(s.said().Deadline)*1000)))
	}
	j.find(CodeControlLost, "%s", text).about("", "p-"+v.ID).at(j.ifJobs(Critical)).from(since).
		do("Look at the control server and the network to it.")
}

// deaf reports since when nobody but the ps that answers has been heard, where two or more could be: one alone is
// silent itself. Where there is training, gradients that still come show that the others are alive; without them the
// trainers themselves are missed.
func (j *ranking) deaf(self *server) (since int64, deaf bool) {
	n, training := 0, false
	hear := func(h *heard) {
		if j.s.NowMS-h.at() < goneKept/2 { // who has been silent for long does not count
			n, since = n+1, max(since, h.at()+h.every-1_000)
		}
	}
	for id, s := range j.t.servers {
		if id != j.t.config.Server {
			hear(&s.heard)
		}
	}
	for i := range j.s.Jobs {
		job := &j.s.Jobs[i]
		r := j.jobs[job.Name+"."+job.RunID]
		if r.over() {
			continue
		}
		training = training || job.Phase == schema.PhaseRunning && r.inRun(j.s.NowMS)
		for k := range job.Trainers {
			if tr := r.trainers[k]; tr != nil && job.Trainers[k].State != stateLeft && job.Trainers[k].State != stateFree {
				hear(&tr.heard)
			}
		}
	}
	return since, n >= 2 && j.s.NowMS-since >= deafAfter && (!training || self.hasGot(since))
}

// hasGot reports that a ps has got frames since a time.
func (s *server) hasGot(since int64) bool {
	last := s.ring.last()
	for k := 1; last != nil; k++ {
		from := s.ring.back(k)
		if from == nil || from.at < since {
			return false
		}
		if last.totals[sFrames] > from.totals[sFrames] {
			return true
		}
	}
	return false
}

// isControl reports that a ps is the control server of the one that answers.
func (j *ranking) isControl(s *server) bool {
	self := j.t.servers[j.t.config.Server]
	return self != nil && s != self && j.controller(self) == s
}

// controller is the ps that a ps has as its control server; nil where it has another one.
func (j *ranking) controller(of *server) *server {
	at := of.said().Control
	if at == "" {
		return nil
	}
	for _, s := range j.t.servers {
		if s != of && s.said().Control == "" && strings.TrimPrefix(s.said().URL, "nats://") == at {
			return s
		}
	}
	return nil
}

// Disks are asked every ten seconds. One that has not answered for diskHangs hangs: whoever writes to it waits.
const diskHangs = 30_000

// Bounds of what is left of a file system, besides what a model takes, in bytes. Below lowShare of its size alone they
// count: a memory file system of 64 MiB is not full all of its life. A hundredth of a large one may be much, and is no
// reason to wake anybody.
const (
	fullBytes = 64 << 20
	lowBytes  = 1 << 30
	lowShare  = 0.10
)

// disksOf is what a member says of its file systems, with their ages.
func disksOf(h *heard, said []schema.DiskReport, now int64) (all []Disk) {
	for _, d := range said[:min(len(said), disksPerReport)] {
		out := Disk{Path: brief(d.Path), Use: brief(d.Use), FreeBytes: max(d.FreeBytes, 0), TotalBytes: max(d.TotalBytes, 0),
			NeedBytes: max(d.NeedBytes, 0), device: d.Device}
		if out.AgeMS = h.age(now); d.SampleMS > 0 {
			out.AgeMS += min(max(h.report.NowMS-d.SampleMS, 0), msMax)
		}
		all = append(all, out)
	}
	return all
}

// code says what is wrong with a file system; empty where nothing is.
func (d *Disk) code() string {
	if d.TotalBytes <= 0 {
		return ""
	}
	free, little := d.FreeBytes, float64(d.FreeBytes) < lowShare*float64(d.TotalBytes)
	switch {
	case d.AgeMS >= diskHangs:
		return codeDiskHangs
	case free < d.NeedBytes, free < fullBytes && little:
		return CodeDiskFull
	case free/2 < d.NeedBytes, free < lowBytes && little:
		return CodeDiskLow
	}
	return ""
}

// diskUser is somebody who writes to a file system.
type diskUser struct {
	host, job, member string
	disk              *Disk
}

// disks finds file systems that are full, nearly so, or do not answer: each once, whoever writes to it.
func (j *ranking) disks() {
	type key struct{ host, name string }
	var order []key
	users := map[key][]diskUser{}
	note := func(u diskUser) {
		k := key{u.host, u.disk.device}
		if k.name == "" {
			k.name = "path " + u.disk.Path
		}
		if users[k] == nil {
			order = append(order, k)
		}
		users[k] = append(users[k], u)
	}
	for i := range j.s.Servers {
		v := &j.s.Servers[i]
		if s := j.t.servers[v.ID]; !s.heard.fresh(j.s.NowMS) {
			continue
		}
		for k := range v.Disks {
			note(diskUser{v.Host, "", "p-" + v.ID, &v.Disks[k]})
		}
	}
	for i := range j.s.Jobs {
		job := &j.s.Jobs[i]
		for m := range job.Trainers {
			tr := &job.Trainers[m]
			for k := range tr.Disks {
				if job.Phase != schema.PhaseEnded && tr.State != stateLeft && tr.State != stateLost && tr.State != stateSilent {
					note(diskUser{tr.Host, job.Name, tr.Member, &tr.Disks[k]})
				}
			}
		}
	}
	for _, k := range order {
		j.disk(users[k])
	}
}

// disk says what is wrong with one file system, after what the worst of its users say of it.
func (j *ranking) disk(users []diskUser) {
	weightOf := func(u diskUser) int {
		return slices.Index([]string{"", CodeDiskLow, codeDiskHangs, CodeDiskFull}, u.disk.code())
	}
	worst := slices.MaxFunc(users, func(a, b diskUser) int { return weightOf(a) - weightOf(b) })
	code, d := worst.disk.code(), worst.disk
	if code == "" {
		return
	}
	where := fmt.Sprintf("the disk under %s on %s", schema.Clip(d.Path), worst.host)
	var use []string
	for _, u := range users {
		for part := range strings.SplitSeq(u.disk.Use, ", ") {
			if part != "" && !slices.Contains(use, part) && len(use) < 4 {
				use = append(use, schema.Clip(part))
			}
		}
	}
	text := fmt.Sprintf("%s has %s free of %s", where, Amount(d.FreeBytes), Amount(d.TotalBytes))
	switch {
	case code == codeDiskHangs:
		text = fmt.Sprintf("%s has not answered for %s", where, Ago(d.AgeMS))
	case d.FreeBytes < d.NeedBytes:
		text += fmt.Sprintf(", and %s needs %s for a model: saving it will fail", worst.who(), Amount(d.NeedBytes))
	case d.FreeBytes/2 < d.NeedBytes:
		text += fmt.Sprintf(", and %s needs %s for a model", worst.who(), Amount(d.NeedBytes))
	}
	if len(use) > 0 && d.NeedBytes == 0 {
		text += " (for " + list(use) + ")"
	}
	action := ""
	if code == CodeDiskFull && d.FreeBytes < d.NeedBytes {
		action = fmt.Sprintf("Free %s there before the run ends; a model that cannot be saved is lost when its trainers end.",
			Amount(d.NeedBytes-d.FreeBytes))
	}
	f := j.find(code, "%s", text).about(worst.job, worst.member).do(action)
	if code == codeDiskHangs {
		f.SinceMS = j.s.NowMS - d.AgeMS
	}
	for _, u := range users {
		if u.job == f.Job && u.member != f.Member {
			f.also = append(f.also, u.member)
		}
	}
}

// who names somebody who writes.
func (u diskUser) who() string {
	if u.job == "" {
		return u.member
	}
	return "trainer " + u.member + " of " + u.job
}

// refusedRate is how many frames a second may be refused, over the last ten seconds.
const refusedRate = 1.0

// serverTraffic finds what a ps refuses.
func (j *ranking) serverTraffic(v *Server, s *server, about func(*finding)) {
	sp, ok := s.ring.over(rateWindow)
	if !ok {
		return
	}
	if rate := sp.rate(sRefused); rate >= refusedRate {
		about(j.find(CodeRefusals, "ps %s on %s refuses %s frames/s: %s", v.ID, v.Host, Count(rate), s.reasonsOver(&sp)))
	}
}

// reasonsOver names what frames were refused for, most first.
func (s *server) reasonsOver(sp *span) string {
	type part struct {
		reason string
		n      uint64
	}
	var all []part
	was := s.reasonsAt(sp.from)
	for reason, n := range s.said().Reasons {
		if isRefusal(reason) && n > was[reason] {
			all = append(all, part{reason, n - was[reason]})
		}
	}
	slices.SortFunc(all, func(a, b part) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.reason, b.reason)) })
	var names []string
	for _, p := range all {
		names = append(names, schema.Clip(p.reason))
	}
	return list(names)
}

// reasonsAt is what had been refused at a sample of the ring.
func (s *server) reasonsAt(at *sample) map[string]uint64 {
	for i := range s.ring.kept {
		if &s.ring.kept[i] == at {
			return s.reasons[i]
		}
	}
	return nil
}

// learns finds losses and gradients that are not finite.
func (j *ranking) learns(job *Job, r *run) {
	var bad []string
	what := 0.0
	for out, tr := range j.speaking(job, r) {
		if tr.said().Batches == 0 {
			continue
		}
		if last := float64(tr.said().Loss.Last); math.IsNaN(last) || math.IsInf(last, 0) {
			bad, what = append(bad, out.Member), last
		} else if sp, ok := tr.ring.over(rateWindow); ok && sp.rise(cLossBad) > 0 {
			bad, what = append(bad, out.Member), math.NaN()
		}
	}
	if len(bad) > 0 {
		j.find(codeLossBad, "the loss of %s is %s on %s, at batch %d", job.Name, Figure(what), list(bad), job.Batch).
			about(job.Name, "").also = bad
	} else if n := job.GradientNorm; n != nil && (math.IsNaN(float64(*n)) || math.IsInf(float64(*n), 0)) {
		j.find(codeLossBad, "the gradient norm of %s is %s, at batch %d", job.Name, Figure(float64(*n)), job.Batch).
			about(job.Name, "")
	}
}
