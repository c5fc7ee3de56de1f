package ps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"gradbus/schema"
)

// checkServers refuses a job whose part another ps has said to have no room for, and one of too many shards. fitted is
// its manifest with the chunks that there is room for.
func (l *controlLoop) checkServers(c *acquisition, fitted *schema.Job) *schema.Refused {
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
		if s.ID == l.server.registry.self.ID {
			if r := l.checkRoom(fitted, s.Shards, shards, 0); r != nil {
				return r
			}
		} else if need := MemoryOf(l.server.config, fitted, s.Shards, shards).Bytes(); need > s.MemoryBytes {
			return l.server.config.noRoom(c.job, "those of ps "+s.ID+" on "+s.Host, need, s.MemoryBytes)
		}
	}
	return nil
}

// shardsHere returns the number of shards of a job on this ps.
func (l *controlLoop) shardsHere(c *acquisition) int {
	for _, s := range c.servers {
		if s.ID == l.server.registry.self.ID {
			return s.Shards
		}
	}
	return 1 // this ps coordinates a job whose shards are elsewhere
}

func (c *Config) noRoom(job *schema.Job, who string, need, free int64) *schema.Refused {
	return &schema.Refused{Reason: "invalid_job", Field: "tables", Have: strconv.FormatInt(free, 10),
		Want: strconv.FormatInt(need, 10),
		Text: fmt.Sprintf("job %s needs %d bytes, and %d of %s are free: %s", job.Name, need, free, who,
			c.orRaise("use smaller tables", "memory-mib", fmt.Sprintf(" by %d", (need-free+1<<20-1)>>20)))}
}

// checkManifest refuses what no server can run. It may take tenths of a second.
func (s *Server) checkManifest(manifest *schema.Job) *schema.Refused {
	if err := manifest.Validate(); err != nil {
		r := &schema.Refused{Reason: "invalid_job", Text: schema.Clip(err.Error())}
		var fields schema.JobErrors
		if errors.As(err, &fields) && len(fields) > 0 {
			r.Field, r.Have, r.Want = fields[0].Field, fields[0].Value, fields[0].Want
		}
		return r
	}
	r := s.config.modules.Check(manifest)
	if r == nil {
		s.config.modules.Bytes(manifest) // remembered for callers that cannot wait
	}
	return r
}

// checkRoom refuses a job whose shards here would not fit beside those of others. told is the window that its trainers
// were told; 0: none yet. Where only jobs that end are in its way it says so.
func (l *controlLoop) checkRoom(manifest *schema.Job, own, shards int, told int64) *schema.Refused {
	r := l.checkBeside(manifest, own, shards, told, l.held())
	if r == nil || len(l.leaving) == 0 ||
		l.checkBeside(manifest, own, shards, told, slices.Collect(maps.Values(l.assignments))) != nil {
		return r
	}
	return &schema.Refused{Reason: schema.RefusedBusy,
		Text: schema.Clip(fmt.Sprintf("jobs that end have not given back yet what job %s needs, now: %s",
			manifest.Name, r.Text))}
}

// checkBeside refuses a job whose shards here would not fit beside those of the others.
func (l *controlLoop) checkBeside(manifest *schema.Job, own, shards int, told int64,
	others []*assignment) *schema.Refused {
	c := &l.server.config
	if len(others) >= c.JobsMax {
		return &schema.Refused{Reason: "server_full",
			Text: fmt.Sprintf("%d jobs are registered, and there is room for %d: %s", len(others), c.JobsMax,
				c.orRaise("wait until one has ended", "jobs-max", ""))}
	}
	if need, free := memoryTold(*c, manifest, own, shards, told).Bytes(), l.freeBytes(others); need > free {
		who := "server"
		if c.local != nil {
			who = "process"
		}
		return c.noRoom(manifest, fmt.Sprintf("the %s's %d", who, c.MemoryBytesMax), need, free)
	}
	return c.checkWindows(manifest, own, l.window(manifest, own, others))
}

// window returns the bytes that each trainer of a job may have in flight to each of its shards here, beside other jobs.
func (l *controlLoop) window(manifest *schema.Job, own int, others []*assignment) int64 {
	c := &l.server.config
	free := c.PendingBytesMax / 2
	for _, a := range others {
		free -= int64(a.manifest.Trainers*len(a.own)) * a.window
	}
	share, most := windowShare(c, len(others), free)
	return windowBytes(manifest, own, c.StagedBytesMax, share, most)
}

// fitChunks is a manifest with the largest chunks, of halves of its own, with which the window of each trainer to each
// of its own shards here holds a message, once the jobs that end have ended; the manifest itself where there are none.
func (l *controlLoop) fitChunks(manifest *schema.Job, own int) *schema.Job {
	staying := slices.Collect(maps.Values(l.assignments))
	for job := manifest; job != nil; job = job.SmallerChunks() {
		if l.server.config.checkWindows(job, own, l.window(job, own, staying)) == nil {
			return job
		}
	}
	return manifest
}

// freeBytes is the memory that these jobs leave.
func (l *controlLoop) freeBytes(jobs []*assignment) int64 {
	free := l.server.config.MemoryBytesMax
	for _, a := range jobs {
		free -= a.memory.Bytes()
	}
	k := l.server.replicas
	k.mu.Lock()
	defer k.mu.Unlock()
	return free - k.promised()
}
