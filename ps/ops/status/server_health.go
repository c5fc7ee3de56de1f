package status

import (
	"fmt"

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
		action = "Look at that ps and its machine. If it has ended, its jobs cannot go on: start it again, then them."
	}
	if j.isControl(s) {
		what = ", is the control server" + what
	}
	f := j.find(code, "ps %s on %s (pid %d) was last heard %s ago%s", v.ID, v.Host, v.PID, ago(v.AgeMS), what)
	f.about("", "p-"+v.ID).at(level).from(j.s.NowMS-v.AgeMS).do(action).before(byServer+v.ID, byHost+v.Host)
	for _, name := range append(coordinates, keeps...) {
		f.before(byJob + name)
	}
	if j.isControl(s) {
		f.before(byControl)
	} else if v.ID != j.t.config.Server {
		f.after(byControl)
	}
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
		count(float64(v.Mismatches)), count(float64(v.Blocks)), on))
}

// server finds what a ps says of itself that is not good.
func (j *ranking) server(v *Server, s *server) {
	said := s.said()
	about := func(f *finding) { f.about("", "p-"+v.ID).after(byServer + v.ID) }
	j.control(v, s)
	j.serverTraffic(v, s, about)
	j.standsBy(v, about)
	j.mismatched(fmt.Sprintf("ps %s on %s", v.ID, v.Host), &said.Verification, about)
	if v.MemoryMaxBytes > 0 && float64(v.PromisedBytes) >= 0.9*float64(v.MemoryMaxBytes) {
		about(j.find(CodeMemory, "ps %s has promised %s of its %s of memory to jobs", v.ID, amount(v.PromisedBytes),
			amount(v.MemoryMaxBytes)))
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
			code, what = CodeGPUAbsent, "is not there"
		case schema.GPUDegraded:
			code, what = CodeGPUDegraded, "is degraded"
		default:
			code, what = CodeGPUUnknown, "cannot be asked"
		}
		if g.Used && (code == CodeGPUUnhealthy || code == CodeGPUAbsent) {
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
		f := j.find(code, "%s", text).at(level).do(schema.Clip(g.Action)).after(byHost + g.Host).before(byGPU + gpuName(g))
		f.GPU = gpuName(g)
		if code == CodeGPUUnhealthy || code == CodeGPUAbsent {
			for _, user := range g.Users {
				if isServer(user) {
					f.before(byServer + user[2:])
				} else {
					f.before(byMember + user)
				}
			}
		}
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
		j.find(CodeVersions, "ps of different versions run together: %s", list(names))
	}
}
