package status

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gradbus/schema"
)

// servers finds what is wrong with ps.
func (j *ranking) servers() {
	for i := range j.s.Servers {
		v := &j.s.Servers[i]
		if s := j.t.servers[v.ID]; s.heard.fresh(j.s.NowMS) {
			j.server(v, s)
		} else {
			j.silentServer(v)
		}
	}
}

// silentServer says that a ps is not heard of, and what that means for jobs.
func (j *ranking) silentServer(v *Server) {
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

// mismatched adds a finding if a member's results differed when they were computed again.
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
	j.primaries(v, about)
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

// gpuName returns the name of a GPU in problems and events: its UUID, or without one its machine and index.
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

// bounds finds what is beyond the bounds of the status, and ps of different versions.
func (j *ranking) bounds() {
	t := j.t
	if l := t.refused; l.what != "" && t.now-l.at < 10_000 {
		j.find(CodeTooMany, "there are more %s than can be shown", l.what)
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

// control says that a ps cannot reach the control server.
func (j *ranking) control(v *Server, s *server) {
	if !v.ControlLost {
		return
	}
	where := "the control server"
	if at := s.said().Control; at != "" {
		where += " at " + schema.Clip(at)
	}
	text := fmt.Sprintf("ps %s on %s cannot reach %s", v.ID, v.Host, where)
	if j.ifJobs(Critical) == Critical {
		text += fmt.Sprintf("; no trainer can join, and running jobs continue for %s at most",
			Ago(int64(finite(s.said().Deadline)*1000)))
	}
	j.find(CodeControlLost, "%s", text).about("", "p-"+v.ID).at(j.ifJobs(Critical))
}

// Disks are asked every ten seconds. One that has not answered for diskHangs hangs: processes that write to it wait.
const diskHangs = 30_000

// Bounds of the free space of a file system, beyond the size of a model, in bytes. They apply only below lowShare of
// its size: a memory file system of 64 MiB is not full all the time. A hundredth of a large one may be much, and is no
// reason to wake an operator.
const (
	fullBytes = 64 << 20
	lowBytes  = 1 << 30
	lowShare  = 0.10
)

// disksOf returns a member's report of its file systems, with their ages.
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

// diskUser is a process that writes to a file system.
type diskUser struct {
	host, job, member string
	disk              *Disk
}

// disks adds findings for file systems that are full, nearly full, or do not answer: each once, for all processes that
// write to it.
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

// who names the process that writes.
func (u diskUser) who() string {
	if u.job == "" {
		return u.member
	}
	return "trainer " + u.member + " of " + u.job
}

// refusedRate is the number of refused frames per second, over the last ten seconds, that is normal.
const refusedRate = 1.0

// serverTraffic finds what a ps refuses.
func (j *ranking) serverTraffic(v *Server, s *server, about func(*finding)) {
	sp, ok := s.ring.over(rateWindow)
	if !ok {
		return
	}
	if rate := sp.rate(sRefused); rate >= refusedRate {
		about(j.find(CodeRefusals, "ps %s on %s refuses %s frames/s: %s", v.ID, v.Host, Count(rate), s.reasons()))
	}
}

// reasons names what frames were refused for since the ps started, most first.
func (s *server) reasons() string {
	all := maps.Clone(s.said().Reasons)
	maps.DeleteFunc(all, func(reason string, n uint64) bool { return n == 0 || !isRefusal(reason) })
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b))
	})
	for i := range names {
		names[i] = schema.Clip(names[i])
	}
	return list(names)
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
