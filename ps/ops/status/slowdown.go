package status

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gradbus/schema"
)

// blame is what a slowdown comes from.
type blame struct {
	text    string   // "compute on t3 takes 310 ms a batch, 3.1 times as long as before"
	action  string   // empty: the code's
	causes  []string // what is explained by it
	follows []string // what would explain it
}

// slow says that a run is slower than it was, and what of whom has grown.
func (j *ranking) slow(job *Job, r *run) {
	whole := !slices.ContainsFunc(job.Trainers, func(tr Trainer) bool { return tr.State == stateLeft })
	rate, found := r.pace.look(j.s.NowMS, j.period(r), whole)
	if !found || r.blocked || job.Phase != schema.PhaseRunning {
		return
	}
	j.recall(r)
	b := j.blameFor(job, r)
	usually := r.pace.usually
	level := Warning
	if r.pace.much {
		level = Critical
	}
	than := "its usual rate"
	if r.pace.early {
		than = "the rate of its first minutes"
	}
	f := j.find(CodeSlowdown, "%s has trained at %s of %s for %s (%s of %s samples/s): %s", job.Name,
		percent(rate/usually), than, ago(j.s.NowMS-r.pace.onset), count(rate), count(usually), b.text)
	f.about(job.Name, "").at(level).from(r.pace.onset).do(b.action).before(b.causes...).after(b.follows...).
		after(byJob+job.Name, byControl)
	f.brief = fmt.Sprintf("%s trains at %s of %s", job.Name, percent(rate/usually), than)
}

// period is what a batch usually takes, in milliseconds.
func (j *ranking) period(r *run) int64 {
	longest := 0.0
	for _, tr := range r.trainers {
		if sp, ok := tr.ring.over(rateWindow); ok {
			longest = max(longest, sp.seconds/max(sp.rise(cBatches), 1))
		}
	}
	return int64(longest * 1000)
}

// recall notes what was usual for members before the run became slow, once.
func (j *ranking) recall(r *run) {
	u := &r.pace.culprits
	if u.trainers != nil {
		return
	}
	note := func(to map[int]work, i int, past *history) {
		if w, ok := past.before(r.pace.onset); ok {
			to[i] = w
		}
	}
	u.trainers, u.shards = map[int]work{}, map[int]work{}
	for i, tr := range r.trainers {
		note(u.trainers, i, &tr.past)
	}
	for i, k := range r.kept {
		note(u.shards, i, &k.past)
	}
}

// change is how one trainer's time for a batch has changed.
type change struct {
	tr       *trainer
	out      *Trainer
	now, was [parts]float64 // seconds for a batch, of each part
	cpu      [2]float64     // now and before: processor seconds for a batch
	rate     [2]float64     // samples per second
}

// own are the parts in which a trainer waits for nobody.
var own = [...]int{partKeys, partCompute, partOther}

// grew is by how many seconds a batch takes longer, in some parts.
func (c *change) grew(some ...int) (seconds float64) {
	for _, p := range some {
		seconds += c.now[p] - c.was[p]
	}
	return seconds
}

func (c *change) whole() float64 {
	return c.grew(partKeys, partLookup, partCompute, partSend, partResult, partOther)
}

// most is that of some parts which has grown most.
func (c *change) most(some ...int) int {
	return slices.MaxFunc(some, func(a, b int) int { return cmp.Compare(c.grew(a), c.grew(b)) })
}

// meanOf is the mean of changes, part by part.
func meanOf(all []*change) (mean change) {
	for _, c := range all {
		for p := range parts {
			mean.now[p] += c.now[p] / float64(len(all))
			mean.was[p] += c.was[p] / float64(len(all))
		}
	}
	return mean
}

// lately is over what time it is looked at what members do, in milliseconds: batches differ, and a cause that is over
// is none.
const lately = 30_000

// changes compares what trainers do since the run became slow, lately at most, with what was usual.
func (j *ranking) changes(job *Job, r *run) []*change {
	var all []*change
	from := max(r.pace.onset, j.s.NowMS-lately)
	for out, tr := range j.speaking(job, r) {
		was, ok := r.pace.culprits.trainers[tr.index]
		total := tr.past.since(from)
		now, some := total.each()
		if !ok || !some {
			continue
		}
		all = append(all,
			&change{tr: tr, out: out, now: now.times(), was: was.times(), cpu: [2]float64{now.done[hCPU], was.done[hCPU]},
				rate: [2]float64{ratio(now.done[hSamples], now.wall), ratio(was.done[hSamples], was.wall)}})
	}
	return all
}

// blameFor finds what a slowdown comes from: a trainer whose own time grew, or all of them; else what they wait for.
func (j *ranking) blameFor(job *Job, r *run) blame {
	all := j.changes(job, r)
	if b, ok := j.fewer(job, r, all); ok {
		return b
	}
	if len(all) == 0 {
		if b, ok := j.blameAwaited(job, r, ""); ok && needed(job) {
			return b
		}
		return blame{text: "what of it has grown is not known yet"}
	}
	if !needed(job) {
		return j.blameAlone(job, r, all)
	}
	whole := make([]float64, len(all))
	owned := make([]float64, len(all))
	for i := range all {
		whole[i], owned[i] = all[i].whole(), all[i].grew(own[:]...)
	}
	grown, first := median(whole), maxAt(owned)
	if owned[first] < 0.4*grown || owned[first] <= 0 {
		if b, ok := j.blameAwaited(job, r, ", though it computes no longer"); ok {
			return b
		}
		return j.blameWaiting(job, r, all)
	}
	var alike []*change // who has grown about as much
	for i := range all {
		if owned[i] >= 0.6*owned[first] {
			alike = append(alike, all[i])
		}
	}
	if len(alike) == 1 {
		return j.blameOne(job, all[first])
	}
	return j.blameSeveral(job, alike, len(all))
}

// fewer says that trainers are missing of a job that goes on without them.
func (j *ranking) fewer(job *Job, r *run, all []*change) (blame, bool) {
	lost, was := 0.0, 0.0
	var names []string
	for i, w := range r.pace.culprits.trainers {
		rate := ratio(w.done[hSamples], w.wall)
		was += rate
		if !slices.ContainsFunc(all, func(c *change) bool { return c.tr.index == i }) {
			lost += rate
			names = append(names, string(schema.TrainerMember(i)))
		}
	}
	now, _ := r.pace.over(j.s.NowMS, slowWindow)
	if needed(job) || len(names) == 0 || lost < 0.4*(was-now) {
		return blame{}, false
	}
	slices.SortFunc(names, compareMembers)
	do := "do"
	if len(names) == 1 {
		do = "does"
	}
	b := blame{text: fmt.Sprintf("%s of its %d trainers %s not train any more: %s", count(float64(len(names))),
		len(r.pace.culprits.trainers), do, list(names)),
		action: "If their share of the data is needed, end the job and start it again: nobody can take a place in a run " +
			"that is under way."}
	for _, name := range names {
		b.follows = append(b.follows, memberToken(job.Name, name))
	}
	return b, true
}

// blameAlone is for jobs in which nobody waits for another: who lost most of its rate.
func (j *ranking) blameAlone(job *Job, r *run, all []*change) blame {
	lost := make([]float64, len(all))
	sum := 0.0
	for i := range all {
		lost[i] = all[i].rate[1] - all[i].rate[0]
		sum += max(lost[i], 0)
	}
	first := maxAt(lost)
	c := all[first]
	if waits := c.grew(partLookup, partSend, partResult); waits > c.grew(own[:]...) {
		return j.blameWaiting(job, r, all)
	}
	if lost[first] >= 0.4*sum && (len(all) == 1 || lost[first] > 1.5*median(lost)) {
		return j.blameOne(job, c)
	}
	var alike []*change
	for i := range all {
		if lost[i] >= 0.6*lost[first] {
			alike = append(alike, all[i])
		}
	}
	return j.blameSeveral(job, alike, len(all))
}

// blameOne is for one trainer whose own time has grown.
func (j *ranking) blameOne(job *Job, c *change) blame {
	p := c.most(own[:]...)
	who := fmt.Sprintf("%s on %s", c.out.Member, c.tr.where(nil))
	b := blame{text: "trainer " + who + " " + spends(p, 1, c.now[p], c.was[p]), action: activities[p].action,
		causes:  []string{paceToken(job.Name, c.out.Member)},
		follows: []string{memberToken(job.Name, c.out.Member), byHost + c.out.Host}}
	if p != partCompute {
		return b
	}
	if g := j.throttled(job, c.out); g != nil {
		b.text += fmt.Sprintf("; its GPU %d is slowed down (%s)", g.Index, reasonOf(g))
		b.action = g.Action
		b.follows = append(b.follows, byGPU+gpuName(g))
	} else if starved(c) {
		b.text += "; it gets less of its processors than it did, though it needs as much"
		b.action = fmt.Sprintf("Look what else runs on %s, and whether a limit holds the process back (a container's, "+
			"a cgroup's).", c.out.Host)
	}
	return b
}

// starved reports that a trainer's computing takes longer, though it uses no more of the processors' time.
func starved(c *change) bool {
	return c.cpu[1] > 0 && c.cpu[0] < 1.3*c.cpu[1] && c.now[partCompute] > 1.5*c.was[partCompute] &&
		c.cpu[1] > 0.3*c.was[partCompute]
}

// throttled is a GPU of a trainer that runs slower than it could.
func (j *ranking) throttled(job *Job, out *Trainer) *GPU {
	for i := range j.s.GPUs {
		g := &j.s.GPUs[i]
		if g.Host == out.Host && slices.Contains(g.Users, job.Name+"/"+out.Member) &&
			(len(g.Throttled) > 0 || g.State == schema.GPUDegraded || g.State == schema.GPUUnhealthy) {
			return g
		}
	}
	return nil
}

func reasonOf(g *GPU) string {
	if len(g.Throttled) > 0 {
		return list(g.Throttled)
	}
	return schema.Clip(g.Code)
}

// blameSeveral is for trainers whose own time has grown alike: all of them, those of one machine, or some.
func (j *ranking) blameSeveral(job *Job, alike []*change, of int) blame {
	sum := meanOf(alike)
	hosts := map[string]bool{}
	var names []string
	for _, c := range alike {
		hosts[c.out.Host] = true
		names = append(names, c.out.Member)
	}
	p := sum.most(own[:]...)
	b := blame{action: activities[p].action}
	who := all(of) + " trainers"
	if len(alike) < of {
		who = list(names)
	}
	if len(hosts) == 1 {
		who += " on " + alike[0].out.Host
		b.action = fmt.Sprintf("Look what else runs on %s, and at its clocks and temperature.", alike[0].out.Host)
	}
	for _, c := range alike {
		b.causes = append(b.causes, paceToken(job.Name, c.out.Member))
		b.follows = append(b.follows, memberToken(job.Name, c.out.Member))
	}
	b.text = who + " " + spends(p, 2, sum.now[p], sum.was[p])
	return b
}

// blameWaiting is for trainers that wait longer, though none needs longer itself: a shard that is busier than it was,
// or the way to it.
func (j *ranking) blameWaiting(job *Job, r *run, all []*change) blame {
	sum := meanOf(all)
	p := sum.most(partLookup, partSend, partResult)
	if sum.grew(p) <= 0 {
		return blame{text: "no part of a batch has grown"}
	}
	text := "trainers " + spends(p, 2, sum.now[p], sum.was[p])
	busy := j.busier(job, r)
	if len(busy) == 0 {
		b := blame{text: text + "; no trainer and no shard is busier than it was", causes: []string{byWay + job.Name},
			action: "Look at the network between trainers and shards, and whether every ps gets the processor when it needs it."}
		if on := j.onlyHost(job); on != "" {
			b.action = fmt.Sprintf("Look what else runs on %s, where all of the job is, and whether ps and trainers get the "+
				"processor when they need it.", on)
		}
		if full := j.fullWindows(job, r); len(full) > 0 {
			var names []string
			for _, at := range sortedKeys(full) {
				names = append(names, job.Shards[at].Member)
				b.causes = append(b.causes, paceToken(job.Name, job.Shards[at].Member))
			}
			b.text = text + "; their windows to " + list(names) + " are full, and no shard is busier than it was"
			return b
		}
		if at := j.awaitedLately(r); len(job.Shards) > 1 && at >= 0 && at < len(job.Shards) {
			s := &job.Shards[at]
			b.text = fmt.Sprintf("%s; they wait for shard %s on ps %s, which has no more to do than before", text,
				s.Member, s.Server)
			b.action = fmt.Sprintf("Look at the machine of ps %s: whether that process gets processor time, what else runs "+
				"there, and at the network to it.", s.Server)
			b.causes = append(b.causes, paceToken(job.Name, s.Member), memberToken(job.Name, s.Member))
			b.follows = append(b.follows, byServer+s.Server)
		}
		return b
	}
	s := &job.Shards[busy[0].at]
	who, are := "shard "+s.Member, "is busy"
	if len(busy) > 1 {
		var names []string
		for _, k := range busy {
			names = append(names, job.Shards[k.at].Member)
		}
		who, are = "shards "+list(names), "are busy"
	}
	b := blame{
		text: fmt.Sprintf("%s; %s on ps %s %s %s of the time, %s before", text, who, s.Server, are, percent(busy[0].load),
			percent(busy[0].was)),
		action: fmt.Sprintf("Look what else runs on the machine of ps %s; more shards, or shards on more machines, "+
			"share the work.", s.Server),
	}
	for _, k := range busy {
		s := &job.Shards[k.at]
		b.causes = append(b.causes, paceToken(job.Name, s.Member))
		b.follows = append(b.follows, byServer+s.Server)
	}
	return b
}

// busier is a shard that is busy for more of the time than it was.
type busier struct {
	at        int
	load, was float64
}

// busier are the shards that have become the bottleneck, the busiest first: they are busy for more of the time than
// they were, or need more time for a round.
func (j *ranking) busier(job *Job, r *run) (all []busier) {
	from := max(r.pace.onset, j.s.NowMS-lately)
	for i, k := range r.kept {
		before, ok := r.pace.culprits.shards[i]
		now := k.past.since(from)
		if !ok || now.wall <= 0 || i >= len(job.Shards) {
			continue
		}
		busy, busyWas := (now.done[hStep]+now.done[hPublish])/now.wall,
			ratio(before.done[hStep]+before.done[hPublish], before.wall)
		each, ok := now.each()
		longer := ok && each.done[hStep]+each.done[hPublish] > 1.3*(before.done[hStep]+before.done[hPublish])
		if busy > 1.3*busyWas && busy >= 0.3 || longer && busy >= 0.5 {
			all = append(all, busier{i, min(busy, 1), min(busyWas, 1)})
		}
	}
	slices.SortFunc(all, func(a, b busier) int { return cmp.Or(cmp.Compare(b.load, a.load), cmp.Compare(a.at, b.at)) })
	return all
}

// awaitedLately is the shard that alone keeps trainers waiting most of the time for which they wait for any; -1 where
// there is none.
func (j *ranking) awaitedLately(r *run) int {
	at, most := -1, 0.0
	for _, i := range sortedKeys(r.kept) {
		w := r.kept[i].past.since(max(r.pace.onset, j.s.NowMS-lately))
		if share := ratio(w.done[hAwaitedBy], w.done[hAsked]); w.done[hAsked] >= 3 && share > most {
			at, most = i, share
		}
	}
	if most < 0.6 {
		return -1
	}
	return at
}

// awaited is the shard that most trainers wait for at the moment; -1 for none.
func awaited(r *run) int {
	n := map[int]int{}
	best := -1
	for _, tr := range r.trainers {
		if s := tr.said().AwaitedShard; s != nil {
			n[*s]++
			if best < 0 || n[*s] > n[best] || n[*s] == n[best] && *s < best {
				best = *s
			}
		}
	}
	return best
}

func maxAt(all []float64) int {
	at, best := 0, math.Inf(-1)
	for i, f := range all {
		if f > best {
			at, best = i, f
		}
	}
	return at
}
