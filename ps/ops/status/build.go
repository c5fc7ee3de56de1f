package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"gradbus/schema"
)

// build makes the view of this moment, without problems.
func (t *Tracker) build() *Status {
	t.serial++
	s := &Status{NowMS: t.now, Serial: t.serial, Server: t.config.Server, Version: t.config.Version,
		Jobs: []Job{}, Servers: []Server{}, GPUs: []GPU{}, Problems: []Problem{}}
	for _, r := range t.sortedRuns() {
		s.Jobs = append(s.Jobs, t.buildJob(r))
		for _, tr := range r.trainers {
			s.Injected = s.Injected || rehearsed(&tr.said().Verification)
		}
	}
	for _, id := range sortedKeys(t.servers) {
		s.Servers = append(s.Servers, t.buildServer(t.servers[id]))
		s.Injected = s.Injected || rehearsed(&t.servers[id].said().Verification)
	}
	if own := t.servers[t.config.Server]; own != nil {
		s.Own = own.heard.report
	}
	t.buildGPUs(s)
	return s
}

// rehearsed reports that a wrong bit was found which was asked for.
func rehearsed(v *schema.VerifyReport) bool { return v.Mismatches > 0 && v.Injected }

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sortedRuns are those under way first, then by name, the youngest first.
func (t *Tracker) sortedRuns() []*run {
	all := make([]*run, 0, len(t.runs))
	for _, r := range t.runs {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *run) int {
		return cmp.Or(oneIf(a.over())-oneIf(b.over()),
			cmp.Compare(a.key.name, b.key.name), cmp.Compare(b.since, a.since), cmp.Compare(a.key.id, b.key.id))
	})
	return all
}

// oneIf is 1 for true, to compare by.
func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// latest is the youngest run of a name.
func (t *Tracker) latest(name schema.JobName) (latest *run) {
	for k, r := range t.runs {
		if k.name == name && (latest == nil || r.since > latest.since || r.since == latest.since && k.id > latest.key.id) {
			latest = r
		}
	}
	return latest
}

// seriesKey names the series of a run.
func (t *Tracker) seriesKey(r *run) string {
	if t.latest(r.key.name) == r {
		return string(r.key.name)
	}
	return string(r.key.name) + "." + runID(r.key.id)
}

func runID(id schema.RunID) string { return strconv.FormatUint(uint64(id), 10) }

func (t *Tracker) buildJob(r *run) Job {
	said := r.said
	j := Job{Name: string(r.key.name), RunID: runID(r.key.id), Phase: said.Phase, Coordinator: r.coordinator,
		Consistency: said.Consistency, Apply: said.Apply, Reduce: said.Reduce, Lanes: said.Lanes, Workload: said.Workload,
		Parameters: said.Parameters, Batch: uint64(said.Batch), AgeMS: t.now - r.saidAt, Trainers: []Trainer{},
		Shards: []Shard{}, Series: t.seriesKey(r), Loss: r.loss, Durability: t.durabilityOf(r), Replica: t.replicaOf(r)}
	if s := t.servers[r.coordinator]; s != nil { // the coordinator's times, by the clock here
		j.StartedMS, j.EndedMS = hereMS(said.StartedMS, &s.heard), hereMS(said.EndedMS, &s.heard)
	}
	if r.over() {
		j.Phase = schema.PhaseEnded
		if j.EndedMS == 0 {
			j.EndedMS = r.endedAt
		}
	}
	if j.End = r.end(t.now); j.End != "" {
		if f := r.cause(); f != nil {
			j.EndReason, j.EndBy = f.Text, string(f.Member)
		}
	}
	t.buildTrainers(r, &j)
	if !r.over() {
		t.buildShards(r, &j)
	}
	j.Replicas = replicasOf(r)
	return j
}

// hereMS is a time by a member's clock as one by the clock here; 0 stays 0.
func hereMS(ms int64, by *heard) int64 {
	if ms == 0 {
		return 0
	}
	return by.at() - max(by.report.NowMS-ms, 0)
}

func (t *Tracker) buildTrainers(r *run, j *Job) {
	var foremost uint64
	for i := range r.shown {
		tr := t.buildTrainer(r, i)
		foremost = max(foremost, tr.Batch)
		j.Trainers = append(j.Trainers, tr)
	}
	var norm float64
	var norms int
	for i := range j.Trainers {
		tr := &j.Trainers[i]
		if tr.State == stateFree {
			continue
		}
		known := r.trainers[i]
		if known == nil || r.over() {
			continue
		}
		said := known.said()
		if known.heard.fresh(t.now) {
			j.SamplesPerSecond += tr.SamplesPerSecond
		}
		j.Planned = max(j.Planned, uint64(said.Planned))
		if sp, ok := known.ring.over(rateWindow); ok && known.heard.fresh(t.now) {
			j.BatchesPerSecond = max(j.BatchesPerSecond, schema.Real(sp.rate(cBatches)))
		}
		if n := said.GradientNorm; n != nil {
			norm, norms = norm+float64(*n), norms+1
		}
	}
	j.Batch, j.Missing = max(j.Batch, foremost), r.missing()
	if norms > 0 {
		mean := schema.Real(norm / float64(norms))
		j.GradientNorm = &mean
	}
	if j.BatchesPerSecond > 0 && j.Planned > j.Batch {
		j.LeftMS = int64(min(float64(j.Planned-j.Batch)/float64(j.BatchesPerSecond)*1000, msMax))
	}
}

// States of a trainer.
const (
	stateFree    = "free"
	stateJoining = "joining"
	stateRunning = "running"
	stateWaiting = "waiting"
	stateLate    = "late"
	stateSilent  = "silent"
	stateLost    = "lost"
	stateLeft    = "left"
)

func (t *Tracker) buildTrainer(r *run, i int) Trainer {
	tr, m := r.trainers[i], r.member(i)
	out := Trainer{Member: string(schema.TrainerMember(i)), Level: OK}
	if m != nil {
		out.Host, out.Batch, out.AgeMS = m.Host, uint64(m.Batch), min(max(m.SilentMS, 0), msMax)+t.now-r.saidAt
		if m.Waited && m.First && !r.over() {
			out.HeldMS = t.heldMS(r, m)
		}
	}
	if tr != nil {
		t.fillTrainer(&out, tr, m != nil)
	}
	if out.State = t.stateOf(r, tr, m, &out); out.State == stateFree {
		out.Level = Info
	}
	if out.State == stateLeft || r.over() && out.State == stateLost {
		out.SamplesPerSecond, out.SentPerSecond, out.ReceivedPerSec, out.ResentPerSecond, out.CPU, out.Phases = 0, 0, 0,
			0, 0, Phases{}
		out.Doing, out.DoingMS, out.Shard, out.PendingBytes = "", 0, nil, 0
		if tr != nil {
			out.AgeMS = tr.heard.age(t.now)
		}
	}
	return out
}

// heldMS is for how long others have waited for a trainer, by what the coordinator said and the time since. A wait that
// had only begun then says nothing of the time since: batches come and go.
func (t *Tracker) heldMS(r *run, m *schema.MemberReport) int64 {
	const begun = 200
	if m.WaitedMS < begun {
		return max(m.WaitedMS, 0)
	}
	since := t.now - r.saidAt
	if s := t.servers[r.coordinator]; s != nil {
		since = min(since, s.heard.silentAfter())
	}
	return min(m.WaitedMS, msMax) + since
}

func (t *Tracker) fillTrainer(out *Trainer, tr *trainer, member bool) {
	p, said := tr.heard.report, tr.said()
	out.Report, out.HeardMS = p, tr.heard.at()
	age := tr.heard.age(t.now)
	if member {
		out.AgeMS = min(out.AgeMS, age)
	} else {
		out.AgeMS = age
	}
	out.Host, out.PID, out.Batch = brief(p.Host), p.PID, max(out.Batch, uint64(said.Batch))
	out.Doing, out.DoingMS, out.Shard, out.Backend = string(said.Doing), min(max(said.DoingMS, 0), msMax),
		said.AwaitedShard, brief(said.Backend)
	out.Verified, out.Mismatches = said.Verification.Blocks, said.Verification.Mismatches
	out.LanesSkipped = said.LanesSkipped
	out.Reconnects, out.Connected, out.ResidentBytes = said.Traffic.Reconnects, said.Traffic.Connected,
		said.Process.ResidentBytes
	out.Disks = disksOf(&tr.heard, said.Disks, t.now)
	for i := range said.Links {
		l := &said.Links[i]
		out.PendingBytes, out.WindowBytes = out.PendingBytes+l.PendingBytes, out.WindowBytes+l.WindowBytes
		out.RoundTripSeconds = max(out.RoundTripSeconds, schema.Real(finite(l.RoundTrip)))
	}
	if said.Batches > 0 {
		last := said.Loss.Last
		out.Loss = &last
	}
	sp, ok := tr.ring.over(rateWindow)
	if !ok {
		return
	}
	out.SamplesPerSecond = schema.Real(sp.rate(cSamples))
	out.SentPerSecond, out.ReceivedPerSec = schema.Real(sp.rate(cSent)), schema.Real(sp.rate(cReceived))
	out.ResentPerSecond, out.CPU = schema.Real(sp.rate(cResent)), schema.Real(sp.rate(cCPU))
	out.Phases = sharesOf(&sp)
}

// sharesOf are the phases of a span, together at most 1.
func sharesOf(sp *span) Phases {
	sum := 0.0
	for i := range phases {
		sum += sp.share(cKeys + counter(i))
	}
	share := func(c counter) schema.Real { return schema.Real(sp.share(c) / max(sum, 1)) }
	return Phases{share(cKeys), share(cLookup), share(cCompute), share(cSend), share(cResult)}
}

// stateOf says what a trainer is up to.
func (t *Tracker) stateOf(r *run, tr *trainer, m *schema.MemberReport, out *Trainer) string {
	silentAfter := int64(defaultSilentAfter)
	if tr != nil {
		silentAfter = tr.heard.silentAfter()
	}
	switch {
	case r.over() && m != nil && r.lostWith(m, silentAfter):
		return stateLost
	case r.over() && tr != nil:
		return stateLeft // a trainer that left before the start has returned its slot
	case m != nil && m.Host == "" && !m.Left && (tr == nil || !tr.heard.fresh(t.now)):
		return stateFree
	case m == nil && tr == nil:
		return stateFree
	case r.over(), m != nil && m.Left:
		return stateLeft
	case m != nil && m.Lost:
		return stateLost
	case m != nil && m.Gone, out.AgeMS > silentAfter, tr != nil && !tr.heard.fresh(t.now):
		return stateSilent
	case tr != nil && m != nil && m.Waited && m.First && out.AgeMS > tr.heard.every*3/2 && out.HeldMS >= missedAfter:
		return stateSilent // it is missed already
	case r.said.Phase == schema.PhaseGathering:
		return stateJoining
	case m != nil && m.Waited && m.First && out.HeldMS >= t.lateAfter(r):
		return stateLate
	case out.Doing == string(schema.DoingLookup) || out.Doing == string(schema.DoingResult):
		if out.DoingMS >= 1000 {
			return stateWaiting
		}
	}
	return stateRunning
}

// msMax bounds times that others tell, in milliseconds: a year.
const msMax = 365 * 86_400_000

// missedAfter is from when on a trainer that others wait for is missed after one and a half of its intervals, in
// milliseconds.
const missedAfter = 2_000

// defaultSilentAfter holds for trainers that send heartbeats but no reports.
const defaultSilentAfter = 3_000

// replicasOf compares the trainers' replicas at the newest version at which two differ, else at the newest that two or
// more have told of.
func replicasOf(r *run) *Replicas {
	if schema.OwnerOf(r.said.Apply) != schema.ByTrainers {
		return nil
	}
	type at struct {
		first  uint32
		n      int
		differ bool
	}
	versions := map[schema.Version]at{}
	for _, tr := range r.trainers {
		for _, d := range tr.said().Replicas {
			v := versions[d.Version]
			if v.n > 0 && v.first != d.Digest {
				v.differ = true
			}
			versions[d.Version] = at{d.Digest, v.n + 1, v.differ}
		}
	}
	best, found := schema.Version(0), false
	for v, a := range versions {
		if a.n < 2 {
			continue
		}
		if b := versions[best]; !found || a.differ && !b.differ || a.differ == b.differ && v > best {
			best, found = v, true
		}
	}
	if !found {
		return nil
	}
	out := &Replicas{Version: uint64(best), Equal: !versions[best].differ, Digests: map[string]string{}}
	for _, tr := range r.trainers {
		for _, d := range tr.said().Replicas {
			if d.Version == best {
				out.Digests[string(tr.member)] = fmt.Sprintf("%08x", d.Digest)
			}
		}
	}
	return out
}

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
		if r.over() || h.Shard < 0 || h.Shard >= r.shards ||
			s.id != r.coordinator && !slices.Contains(r.said.Keepers, s.id) {
			continue
		}
		k := r.kept[h.Shard]
		if k != nil && k.server != s.id && k.fresh(t.now) {
			continue // another ps's, which is still heard
		}
		if k == nil && t.total(r, func(r *run) int { return len(r.kept) }) >= ShardsMax {
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
	for i := range r.shardsShown() {
		out := Shard{Member: string(schema.ShardMember(i)), Level: OK, WaitsFor: []string{}}
		if k := r.kept[i]; k != nil {
			t.fillShard(&out, k)
		} else {
			out.AgeMS = t.now - r.since
		}
		j.Shards = append(j.Shards, out)
	}
}

// shardsShown is the number of shards to show: the reported ones, and missing ones up to a bound.
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
		Disks:   append([]Disk{}, disksOf(&s.heard, said.Disks, t.now)...),
		Primary: primaryOf(&s.heard, said.Primary, t.now)}
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

// gpu is one GPU with the reports of all members that watch it.
type gpu struct {
	key     gpuKey
	reports map[string]*report // by member: "p-..." or "job/t0"
	shown   schema.GPUState    // at the latest Tick, and the events that were seen by then
	xids    map[string]uint64
}

type report struct {
	report *schema.GPUReport
	spoken
}

// reportsMax bounds the members that report one GPU.
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

// worst returns the report to show: the worst of the fresh ones, or the latest if none is fresh.
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
