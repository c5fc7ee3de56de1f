package status

import (
	"cmp"
	"fmt"
	"slices"

	"gradbus/schema"
)

// Limits of what counts as slow, busy or far behind, over the last minute or ten seconds.
const (
	stragglerTimes = 1.5  // as long as the others
	stragglerCosts = 0.2  // of a batch's time
	busyLoad       = 0.9  // of one processor's time
	waitingShare   = 0.3  // of trainers' time that a busy shard must cost them
	lookupShare    = 0.5  // of trainers' time
	windowFull     = 0.9  // of a window
	behindSeconds  = 20.0 // of a trainer's or shard's own rate
)

// load finds who is the bottleneck of a run that goes on.
func (j *ranking) load(job *Job, r *run) {
	if job.Phase != schema.PhaseRunning {
		return
	}
	if needed(job) {
		j.straggler(job, r)
	}
	var waits, lookup float64
	n := 0.0
	for i := range job.Trainers {
		if tr := &job.Trainers[i]; tr.State != stateFree && tr.State != stateLeft {
			waits += float64(tr.Phases.Lookup + tr.Phases.Send + tr.Phases.Result)
			lookup += float64(tr.Phases.Lookup)
			n++
		}
	}
	if n == 0 || r.blocked {
		return
	}
	busy := j.busyShards(job, r, waits/n)
	j.windows(job, r)
	if share := lookup / n; share >= lookupShare {
		j.find(CodeLookups, "trainers of %s wait for rows %s of the time", job.Name, percent(share)).about(job.Name, "").
			after(busy...).after(byJob + job.Name)
	}
	j.behind(job, r)
}

// straggler finds a trainer that needs more of its own time for a batch than the others, who wait for it.
func (j *ranking) straggler(job *Job, r *run) {
	type at struct {
		out          *Trainer
		tr           *trainer
		own, samples float64
	}
	var all []at
	var wall []float64
	for out, tr := range j.speaking(job, r) {
		total := tr.past.since(j.s.NowMS - lately)
		w, ok := total.each()
		if !ok || total.wall < 15 {
			continue
		}
		p := w.times()
		all = append(all, at{out, tr, p[partKeys] + p[partCompute] + p[partOther], w.done[hSamples]})
		wall = append(wall, w.wall)
	}
	if len(all) < 2 {
		return
	}
	slices.SortFunc(all, func(a, b at) int { return cmp.Compare(b.own, a.own) })
	slow, others := all[0], make([]float64, 0, len(all))
	for _, a := range all[1:] {
		others = append(others, a.own)
	}
	usual, period := median(others), median(wall)
	if slow.own < stragglerTimes*usual || slow.own-usual < stragglerCosts*period || usual <= 0 {
		return
	}
	out := slow.out
	f := j.find(CodeTrainerSlow, "trainer %s on %s needs %s as long for a batch as the others of %s (%s to %s), who wait "+
		"for it %s of the time", out.Member,
		slow.tr.where(nil), times(slow.own/usual), job.Name, lasting(slow.own), lasting(usual),
		percent(min((slow.own-usual)/period, 1)))
	f.about(job.Name, out.Member).after(paceToken(job.Name, out.Member), memberToken(job.Name, out.Member))
	if share := ratio(slow.samples, all[len(all)/2].samples); share > 1.3 && slow.own/usual < 1.3*share {
		f.Action = fmt.Sprintf("It has %s as many samples as the others: choose lanes that divide evenly among %d trainers.",
			times(share), len(job.Trainers))
	}
	if g := j.throttled(job, out); g != nil {
		f.after(byGPU + gpuName(g))
	}
}

// busyShards finds shards that work all the time while trainers wait, and returns what explains slow lookups.
func (j *ranking) busyShards(job *Job, r *run, waits float64) (tokens []string) {
	for i := range job.Shards {
		s := &job.Shards[i]
		if s.Load < busyLoad || waits < waitingShare {
			continue
		}
		token := memberToken(job.Name, s.Member)
		tokens = append(tokens, token)
		j.find(CodeBackpressure, "shard %s of %s on ps %s is busy %s of the time, and trainers wait %s of theirs", s.Member,
			job.Name, s.Server,
			percent(min(float64(s.Load), 1)), percent(min(waits, 1))).about(job.Name, s.Member).
			after(paceToken(job.Name, s.Member), byServer+s.Server).before(token)
	}
	return tokens
}

// fullWindows are the shards whose way takes less than trainers send, though they are not busy, with these trainers.
// What a window has no room for waits behind the trainer's back, so it is results that the trainer waits for.
func (j *ranking) fullWindows(job *Job, r *run) (full map[int][]string) {
	full = map[int][]string{}
	for out, tr := range j.speaking(job, r) {
		if out.Phases.Send+out.Phases.Result < waitingShare {
			continue
		}
		for _, l := range tr.said().Links {
			if l.Shard < 0 || l.Shard >= len(job.Shards) || job.Shards[l.Shard].Load >= busyLoad {
				continue
			}
			if l.WindowBytes > 0 && float64(l.PendingBytes) >= windowFull*float64(l.WindowBytes) {
				full[l.Shard] = append(full[l.Shard], out.Member)
			}
		}
	}
	return full
}

// windows says so.
func (j *ranking) windows(job *Job, r *run) {
	full := j.fullWindows(job, r)
	for _, shard := range sortedKeys(full) {
		s := &job.Shards[shard]
		j.find(CodeWindows, "the windows of %s to shard %s of %s on ps %s are full, and it is busy %s of the time only",
			list(full[shard]), s.Member,
			job.Name, s.Server, percent(float64(s.Load))).about(job.Name, s.Member).
			after(paceToken(job.Name, s.Member), memberToken(job.Name, s.Member), byServer+s.Server, byJob+job.Name)
	}
}

// behind finds shards and, where they do not wait for each other, trainers that are further behind than they catch up
// with in a while.
func (j *ranking) behind(job *Job, r *run) {
	for i := range job.Shards {
		s, k := &job.Shards[i], r.kept[i]
		if k == nil || s.Lag <= 10 || !job.far(s.Lag) {
			continue
		}
		j.find(CodeShardBehind, "shard %s of %s on ps %s is at version %d, %s behind the foremost", s.Member, job.Name,
			s.Server, s.Version,
			count(float64(s.Lag))).about(job.Name, s.Member).after(byServer+s.Server, byJob+job.Name)
	}
	if needed(job) {
		return
	}
	for i := range job.Trainers {
		out, tr := &job.Trainers[i], r.trainers[i]
		if tr == nil || tr.said().Hosted || out.Lag <= 10 || !job.far(out.Lag) || out.State != stateRunning &&
			out.State != stateWaiting {
			continue
		}
		if sp, ok := tr.ring.over(rateWindow); !ok || sp.rate(cBatches) > 0.8*float64(job.BatchesPerSecond) {
			continue // it was slow, and is not any more
		}
		j.find(CodeBehind, "trainer %s on %s is %s batches behind the foremost of %s", out.Member, tr.where(nil),
			count(float64(out.Lag)), job.Name).
			about(job.Name, out.Member).after(paceToken(job.Name, out.Member), memberToken(job.Name, out.Member))
	}
}

// far reports that a lag is more than the run does in some time.
func (job *Job) far(lag uint64) bool {
	return float64(lag) > behindSeconds*float64(job.BatchesPerSecond)
}
