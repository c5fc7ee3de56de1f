package overview

import (
	"fmt"

	"gradbus/schema"
)

// servers finds what is wrong with ps.
func (j *judgement) servers() {
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
func (j *judgement) silentServer(v *Server, s *server) {
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
	f := find(code, level, fmt.Sprintf("ps %s on %s (pid %d) was last heard %s ago%s", v.ID, v.Host, v.PID, ago(v.AgeMS), what), action)
	f.Member, f.SinceMS = "p-"+v.ID, j.s.NowMS-v.AgeMS
	if j.isControl(s) {
		f.causes = append(f.causes, byControl)
	}
	f.causes = append(f.causes, byServer+v.ID, byHost+v.Host)
	for _, name := range append(coordinates, keeps...) {
		f.causes = append(f.causes, byJob+name)
	}
	if v.ID != j.t.config.Server && !j.isControl(s) {
		f.follows = append(f.follows, byControl)
	}
	j.add(f)
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
func mismatched(who string, v *schema.VerifyPulse, about func(finding)) {
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
	about(find(CodeVerification, "", fmt.Sprintf("%s: %s of %s optimizer blocks gave other bits%s than when computed again", who,
		count(float64(v.Mismatches)), count(float64(v.Blocks)), on), ""))
}

// server finds what a ps says of itself that is not good.
func (j *judgement) server(v *Server, s *server) {
	said := s.said()
	about := func(f finding) {
		f.Member = "p-" + v.ID
		f.follows = append(f.follows, byServer+v.ID)
		j.add(f)
	}
	j.control(v, s)
	j.serverTraffic(v, s, about)
	mismatched(fmt.Sprintf("ps %s on %s", v.ID, v.Host), &said.Verification, about)
	if v.MemoryMaxBytes > 0 && float64(v.PromisedBytes) >= 0.9*float64(v.MemoryMaxBytes) {
		about(find(CodeMemory, "", fmt.Sprintf("ps %s has promised %s of its %s of memory to jobs", v.ID, amount(v.PromisedBytes), amount(v.MemoryMaxBytes)), ""))
	}
}

// ifJobs is a level where jobs are under way, else a warning.
func (j *judgement) ifJobs(l Level) Level {
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
func (j *judgement) gpus() {
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
		f := find(code, level, text, schema.Clip(g.Action))
		f.GPU = gpuName(g)
		f.follows = append(f.follows, byHost+g.Host)
		f.causes = append(f.causes, byGPU+f.GPU)
		if code == CodeGPUUnhealthy || code == CodeGPUAbsent {
			for _, user := range g.Users {
				if isServer(user) {
					f.causes = append(f.causes, byServer+user[2:])
				} else {
					f.causes = append(f.causes, byMember+user)
				}
			}
		}
		j.add(f)
	}
}

// bounds says what is beyond what can be shown, and who claims what is another's.
func (j *judgement) bounds() {
	t := j.t
	if l := t.refused; l.what != "" && t.now-l.at < 10_000 {
		j.add(find(CodeTooMany, "", "there are more "+l.what+" than can be shown", ""))
	}
	j.strange()
	for key := range t.claims {
		f := find(CodeClaimed, "", fmt.Sprintf("ps %s says that it coordinates %s, which another ps does", key.server, key.name), "")
		f.Job, f.Member = string(key.name), "p-"+key.server
		j.add(f)
	}
	versions := map[string]string{}
	for i := range j.s.Servers {
		if v := &j.s.Servers[i]; v.Version != "" && v.AgeMS < claimHeld {
			versions[v.Version] = v.ID
		}
	}
	if len(versions) > 1 {
		var names []string
		for _, v := range sortedKeys(versions) {
			names = append(names, fmt.Sprintf("%s (ps %s)", schema.Clip(v), versions[v]))
		}
		j.add(find(CodeVersions, "", "ps of different versions run together: "+list(names), ""))
	}
}
