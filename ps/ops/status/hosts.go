package status

import (
	"cmp"
	"slices"

	"gradbus/schema"
)

// takeShards notes what a ps says of the shards that it keeps, of runs whose coordinator says that it keeps some.
func (t *Tracker) takeShards(s *server, p *schema.Telemetry) {
	var r *run
	for i := range p.Server.Shards {
		h := &p.Server.Shards[i]
		if r == nil || r.key.name != h.Job {
			if r = t.latest(h.Job); r == nil {
				continue
			}
		}
		if r.said == nil || r.over() || h.Shard < 0 || h.Shard >= r.shards ||
			s.id != r.coordinator && !slices.Contains(r.said.Keepers, s.id) {
			continue
		}
		k := r.kept[h.Shard]
		if k != nil && k.server != s.id && k.fresh(t.now) {
			continue // another ps's, which is still heard
		}
		if k == nil && !t.mayKeep(t.rankOf(r)) {
			t.beyond("shards")
			return
		}
		if k == nil || k.server != s.id {
			if r.kept == nil {
				r.kept = map[int]*shard{}
			}
			k = &shard{index: h.Shard, server: s.id}
			r.kept[h.Shard] = k
		}
		k.take(t.now, s, p, h)
	}
}

func (k *shard) take(now int64, s *server, p *schema.Telemetry, h *schema.ShardReport) {
	said := *h // a copy: the shard may outlive the rest of the report
	k.report = &said
	k.speak(now, p.EveryMS)
	k.ring.add(shardSample(now, p, h), s.heard.anew)
	w := h.Waiting
	if w == nil || len(w.Members) == 0 {
		k.waits = false
		return
	}
	if !k.waits || k.waitsBatch != w.Batch {
		k.waits, k.waitsBatch, k.waitsSince = true, w.Batch, now
	}
}

func (t *Tracker) buildShards(r *run, j *Job) {
	var foremost uint64
	for i := range r.shardsShown() {
		out := Shard{Member: string(schema.ShardMember(i)), Level: OK, WaitsFor: []string{}}
		if k := r.kept[i]; k != nil {
			t.fillShard(&out, k)
			foremost = max(foremost, out.Version)
		} else {
			out.AgeMS = t.now - r.since
		}
		j.Shards = append(j.Shards, out)
	}
	for i := range j.Shards {
		if k := r.kept[i]; k != nil && k.works() {
			j.Shards[i].Lag = lagOf(foremost, j.Shards[i].Version, &k.ring, sVersion, k.age(t.now)+k.every)
		}
	}
}

// works reports whether anything was ever sent to a shard. One of a job with fewer buckets than shards has nothing to
// do: it stays at the version with which the job began, and is not behind.
func (k *shard) works() bool {
	h := k.report
	return h.Frames > 0 || h.Lookups > 0
}

// shardsShown is the number of shards to show: those that some ps told of, and what is missing, up to a bound.
func (r *run) shardsShown() int {
	n := 0
	for i := range r.kept {
		n = max(n, i+1)
	}
	return min(r.shards, n+unheardShardsMax)
}

const unheardShardsMax = 64

func (t *Tracker) fillShard(out *Shard, k *shard) {
	h := k.report
	out.Server, out.AgeMS, out.Ready, out.Version = k.server, k.age(t.now), h.Ready, uint64(h.Version)
	out.StagedBytes, out.StagedBytesMax, out.QueueBytes, out.MemoryBytes = h.StagedBytes, h.StagedBytesMax, h.QueueBytes,
		h.MemoryBytes
	out.HeldBytes, out.Idle = h.HeldBytes, schema.Clip(h.Idle)
	if k.waits && k.waitsSince < k.at() { // by two reports: every round waits for a moment
		out.WaitsBatch, out.WaitsMS = uint64(k.waitsBatch), t.now-k.waitsSince
		for _, m := range h.Waiting.Members {
			out.WaitsFor = append(out.WaitsFor, string(m))
		}
	}
	if sp, ok := k.ring.over(rateWindow); ok {
		out.BytesPerSecond, out.RoundsPerSec = schema.Real(sp.rate(sBytes)), schema.Real(sp.rate(sRounds))
		out.Load = schema.Real(sp.rate(sStep) + sp.rate(sPublish))
	}
	for i := range h.Buckets {
		out.Buckets = append(out.Buckets, bucketOf(&h.Buckets[i]))
	}
}

func bucketOf(b *schema.BucketReport) Bucket {
	mean := func(sum schema.Real) schema.Real { return sum / schema.Real(max(1, b.Rounds)) }
	return Bucket{Bucket: uint32(b.Bucket), Sparse: b.Sparse, Rounds: b.Rounds, Straggler: mean(b.StragglerSeconds),
		StragglerMax: b.StragglerMaxSeconds, Batch: mean(b.BatchSeconds), BatchMax: b.BatchMaxSeconds,
		Arrival: mean(b.ArrivalSeconds), Average: mean(b.AverageSeconds)}
}

func (t *Tracker) buildServer(s *server) Server {
	p, said := s.heard.report, s.said()
	out := Server{ID: s.id, State: string(said.State), Host: brief(p.Host), PID: p.PID, Level: OK,
		AgeMS:   s.heard.age(t.now),
		Version: brief(said.Version), URL: brief(said.URL), Page: brief(said.Page),
		StartedMS: hereMS(p.StartedMS, &s.heard), Backend: brief(said.Backend), ControlLost: said.ControlLost,
		Reasons: map[string]uint64{}, Dropped: said.Dropped,
		SlowReaders: said.SlowReaders, ResidentBytes: said.Process.ResidentBytes, PromisedBytes: said.Memory.PromisedBytes,
		MemoryMaxBytes: said.Memory.MaxBytes, Verified: said.Verification.Blocks, Mismatches: said.Verification.Mismatches,
		Disks:    append([]Disk{}, disksOf(&s.heard, said.Disks, t.now)...),
		StandsBy: standsByOf(&s.heard, said.StandsBy, t.now)}
	for reason, n := range said.Reasons {
		if n > 0 && len(out.Reasons) < schema.ReasonCount {
			out.Reasons[reason] = n
		}
	}
	if sp, ok := s.ring.over(rateWindow); ok {
		out.BytesPerSecond, out.RefusedPerSecond = schema.Real(sp.rate(sBytes)), schema.Real(sp.rate(sRefused))
		out.CPU = schema.Real(sp.rate(sCPU))
	}
	return out
}

// gpuKey tells GPUs apart: by their machine and UUID, and where that is not known, by index.
type gpuKey struct {
	host, uuid string
	index      int
}

// gpu is one GPU as all who ask it say.
type gpu struct {
	key     gpuKey
	reports map[string]*report // by who says it: "p-..." or "job/t0"
	shown   schema.GPUState    // at the latest Tick, and the events that were seen by then
	xids    map[string]uint64
}

type report struct {
	report *schema.GPUReport
	spoken
}

// reportsMax bounds who may speak of one GPU.
const reportsMax = 64

// takeGPUs notes what a member says of the GPUs of its machine. Exactly one of trainer and server is its name.
func (t *Tracker) takeGPUs(p *schema.Telemetry, trainer, server string, gpus []schema.GPUReport) (urgent bool) {
	who := trainer + server
	for i := range gpus[:min(len(gpus), gpusPerReport)] {
		said := &gpus[i]
		key := gpuKey{host: p.Host, uuid: said.UUID}
		if key.uuid == "" {
			key.index = said.Index
		}
		g := t.gpus[key]
		if g == nil {
			if len(t.gpus) >= GPUsMax {
				t.beyond("GPUs")
				return urgent
			}
			g = &gpu{key: key, reports: map[string]*report{}}
			t.gpus[key] = g
		}
		was := g.reports[who]
		if was == nil && len(g.reports) >= reportsMax {
			continue
		}
		urgent = urgent || was != nil && gpuWeight(said.State) > gpuWeight(was.report.State)
		by := &report{report: said}
		by.speak(t.now, p.EveryMS)
		g.reports[who] = by
	}
	return urgent
}

// gpuWeight orders states from best to worst; one that is not known is as bad as Unknown.
func gpuWeight(s schema.GPUState) int {
	states := []schema.GPUState{schema.GPUUnknown, schema.GPUDegraded, schema.GPUAbsent, schema.GPUUnhealthy}
	if s == schema.GPUHealthy {
		return -1
	}
	return max(slices.Index(states, s), 0)
}

// worst is the report to show: of those that are fresh the worst, of equals the latest; where none is fresh the latest.
func (g *gpu) worst(now int64) (who string, best *report) {
	rank := func(name string, r *report) (fresh, state, ps int, at int64) {
		if !r.fresh(now) {
			return 0, 0, 0, r.at()
		}
		return 1, gpuWeight(r.report.State), oneIf(isServer(name)), 0 // of equals what a ps says
	}
	for name, r := range g.reports {
		if best != nil {
			fresh, state, ps, at := rank(name, r)
			fresh0, state0, ps0, at0 := rank(who, best)
			if cmp.Or(fresh-fresh0, state-state0, ps-ps0, cmp.Compare(at, at0), cmp.Compare(who, name)) < 0 {
				continue
			}
		}
		who, best = name, r
	}
	return who, best
}

func isServer(who string) bool { return len(who) > 2 && who[:2] == "p-" }

func (t *Tracker) buildGPUs(s *Status) {
	for _, g := range t.gpus {
		who, r := g.worst(t.now)
		if r == nil {
			continue
		}
		out := GPU{Host: g.key.host, Server: who, Level: OK, AgeMS: r.age(t.now), Users: []string{}, GPUReport: *r.report}
		out.Used = false
		for name, by := range g.reports {
			out.Used = out.Used || by.report.Used
			out.Injected = out.Injected || by.report.Injected
			if by.report.Used {
				out.Users = append(out.Users, name)
			}
		}
		slices.Sort(out.Users)
		s.Injected = s.Injected || out.Injected
		s.GPUs = append(s.GPUs, out)
	}
	slices.SortFunc(s.GPUs, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
}
