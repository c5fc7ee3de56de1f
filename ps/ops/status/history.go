package status

import "slices"

// history is what a member did, in stretches: of ten seconds for the last minutes, of a minute for the last hour. It
// says what is usual for it, and what it does now.
type history struct {
	ten, minute stretches
}

// columnsMax are what a stretch adds up: of trainers batches, samples, the five phases, processor time, and how often
// shards were looked at and waited for it first; of shards rounds, bytes, the seconds of steps, publishing and kernels,
// how often trainers were seen to wait for shards, and for this one alone.
const columnsMax = 10

// Columns of a trainer's history; phase p is hKeys+p.
const (
	hBatches = iota
	hSamples
	hKeys
	hCPU     = hKeys + phases
	hLooks   = hCPU + 1
	hAwaited = hCPU + 2
)

// Columns of a shard's history.
const (
	hRounds = iota
	hBytes
	hStep
	hPublish
	hApply
	hAsked
	hAwaitedBy
)

// work is what was done in some time.
type work struct {
	at   int64 // milliseconds, of its beginning
	wall float64
	done [columnsMax]float64
}

// stretches is a ring of complete ones, and the one under way.
type stretches struct {
	length int64
	most   int
	kept   []work
	now    work
}

const (
	tensInHistory    = 12
	minutesInHistory = 60
)

// add takes what was done up to a moment.
func (h *history) add(at int64, wall float64, done *[columnsMax]float64) {
	if h.ten.length == 0 {
		h.ten = stretches{length: 10_000, most: tensInHistory}
		h.minute = stretches{length: 60_000, most: minutesInHistory}
	}
	h.ten.add(at, wall, done)
	h.minute.add(at, wall, done)
}

func (s *stretches) add(at int64, wall float64, done *[columnsMax]float64) {
	if begin := at / s.length * s.length; begin != s.now.at {
		if s.now.wall > 0 {
			if len(s.kept) >= s.most {
				s.kept = slices.Delete(s.kept, 0, 1)
			}
			s.kept = append(s.kept, s.now)
		}
		s.now = work{at: begin}
	}
	s.now.wall += wall
	for i := range done {
		s.now.done[i] += done[i]
	}
}

// since is what was done after a moment, as far as the last two minutes are known.
func (h *history) since(at int64) (w work) {
	for i := range h.ten.kept {
		if k := &h.ten.kept[i]; k.at >= at {
			w.sum(k)
		}
	}
	w.sum(&h.ten.now)
	return w
}

func (w *work) sum(k *work) {
	w.wall += k.wall
	for i := range w.done {
		w.done[i] += k.done[i]
	}
}

// before is what was usual before a moment: by the minutes of the last hour, and where less than two are known by the
// last half minute.
func (h *history) before(moment int64) (w work, ok bool) {
	if w, ok = h.minute.usual(moment, minutesInHistory); !ok {
		w, ok = h.ten.usual(moment, 3)
	}
	return w, ok
}

// usual is the median, over the last stretches before a moment, of what was done for each unit of the first column: a
// batch or a round; wall likewise. ok is false where less than two with any are known.
func (s *stretches) usual(before int64, most int) (w work, ok bool) {
	var all [columnsMax + 1][]float64
	for i := len(s.kept) - 1; i >= 0 && len(all[0]) < most; i-- {
		k := &s.kept[i]
		units := k.done[0]
		if k.at+s.length > before || units <= 0 {
			continue
		}
		all[columnsMax] = append(all[columnsMax], k.wall/units)
		for c := range k.done {
			all[c] = append(all[c], k.done[c]/units)
		}
	}
	if len(all[0]) < 2 {
		return w, false
	}
	for c := range w.done {
		w.done[c] = median(all[c])
	}
	w.wall = median(all[columnsMax])
	return w, true
}

// each is the work for each unit of the first column; ok is false where there was none.
func (w work) each() (work, bool) {
	units := w.done[0]
	if units <= 0 {
		return w, false
	}
	w.wall /= units
	for i := range w.done {
		w.done[i] /= units
	}
	return w, true
}

// times splits the work of one batch.
func (w *work) times() (p [parts]float64) {
	left := w.wall
	for i := range phases {
		p[i] = max(w.done[hKeys+i], 0)
		left -= p[i]
	}
	p[phases] = max(left, 0)
	return p
}

// remember notes the latest report of a trainer. Between runs nothing counts.
func (tr *trainer) remember(inRun bool) {
	from, to := tr.ring.back(1), tr.ring.last()
	if from == nil || !inRun || to.at-from.at > tr.heard.silentAfter() {
		return // it was stopped, or others were: that is told of elsewhere, and is not how long it computes
	}
	d := rises(from, to, cBatches, cSamples, cKeys, cLookup, cCompute, cSend, cResult, cCPU)
	for p := range phases { // with the batch under way; what a phase seems to lose comes back when its batch is done
		d[hKeys+p] = to.adjusted[p] - from.adjusted[p]
	}
	tr.past.add(to.at, elapsed(from, to), &d)
}

// rises are by how much some counters rose, in the columns of a history.
func rises(from, to *sample, of ...counter) (d [columnsMax]float64) {
	for i, c := range of {
		d[i] = max(to.totals[c]-from.totals[c], 0)
	}
	return d
}

// noteAwaitedShards notes, once a second, which shards the trainers of a run wait for that wait for any.
func (r *run) noteAwaitedShards(now int64) {
	looks, by := 0.0, map[int]float64{}
	for _, tr := range r.trainers {
		if said := tr.said(); tr.heard.fresh(now) && said.AwaitedShard != nil {
			looks++
			if said.Awaited <= 1 { // of several, which keeps it waiting is not known
				by[*said.AwaitedShard]++
			}
		}
	}
	if looks == 0 {
		return
	}
	for i, k := range r.kept {
		var d [columnsMax]float64
		d[hAsked], d[hAwaitedBy] = looks, by[i]
		k.past.add(now, 0, &d)
	}
}

// noteAwaited notes, once a second, whom the shards of a run wait for first. It says who holds a batch up even where
// the trainer itself does not know, since it was not running.
func (r *run) noteAwaited(now int64) {
	looks := 0.0
	awaited := map[int]bool{}
	for _, k := range r.kept {
		if !k.fresh(now) {
			continue
		}
		looks = 1
		if w := k.report.Waiting; w != nil {
			for _, m := range w.First {
				if i, ok := trainerIndex(m); ok {
					awaited[i] = true
				}
			}
		}
	}
	if looks == 0 {
		return
	}
	for i, tr := range r.trainers {
		var d [columnsMax]float64
		if d[hLooks] = looks; awaited[i] {
			d[hAwaited] = 1
		}
		tr.past.add(now, 0, &d)
	}
}

// remember notes the latest report of a shard.
func (k *shard) remember() {
	from, to := k.ring.back(1), k.ring.last()
	if from == nil {
		return
	}
	d := rises(from, to, sRounds, sBytes, sStep, sPublish, sApply)
	k.past.add(to.at, elapsed(from, to), &d)
}
