package status

import (
	"gradbus/schema"
)

// Bounds in bytes of what is remembered of reports. One within the first two is taken whatever others say, since who
// says them is bounded in number. Larger ones share what the last two give, ps and trainers apart: no trainer can crowd
// out a ps.
const (
	serverBytes       = 64 << 10
	trainerBytes      = 8 << 10
	TrainerBytesMax   = 64 << 10 // of one trainer: one with 256 shards and eight GPUs takes half of that
	serversBytesMax   = 32 << 20
	TrainersBytesMax  = 32 << 20
	shownTextBytesMax = 256 // of a text that the status repeats each second
)

// unlistedMax bounds the ps that are not in the registry and are told of: by their names alone, and only once they have
// spoken for a while, since one that has just begun is there a moment before it is announced.
const (
	unlistedMax   = 8
	unlistedAfter = 10_000
)

// spoke is from when until when somebody was heard.
type spoke struct{ first, last int64 }

// isListed reports whether a ps is in the registry, or was ten minutes ago: who is not may be anybody's invention.
func (t *Tracker) isListed(id string) bool {
	if t.config.Registered == nil || id == t.config.Server {
		return true
	}
	if _, ok := t.listed[id]; !ok {
		t.list()
	}
	_, ok := t.listed[id]
	return ok
}

// list looks who is in the registry.
func (t *Tracker) list() {
	if t.config.Registered == nil {
		return
	}
	for _, id := range t.config.Registered() {
		if _, ok := t.listed[id]; ok || len(t.listed) < 2*ServersMax {
			t.listed[id] = t.now
		}
	}
	for id, at := range t.listed {
		if t.now-at > goneKept {
			delete(t.listed, id)
		}
	}
}

// noteUnlisted notes a ps that is not in the registry. Nothing else of what it says is taken.
func (t *Tracker) noteUnlisted(id string) {
	switch s := t.unlisted[id]; {
	case s != nil:
		s.last = t.now
	case len(t.unlisted) < unlistedMax:
		t.unlisted[id] = &spoke{t.now, t.now}
	}
}

// unlisted finds ps that are not in the registry, and forgets those that are silent or announced.
func (j *ranking) unlisted() {
	t := j.t
	var names []string
	for _, id := range sortedKeys(t.unlisted) {
		s := t.unlisted[id]
		switch {
		case t.now-s.last > heldFor || t.isListed(id):
			delete(t.unlisted, id)
		case s.last-s.first >= unlistedAfter:
			names = append(names, id)
		}
	}
	if len(names) > 0 {
		j.find(CodeTooMany, "%s: reports are heard that are not of any ps in the registry, and nothing of them is shown",
			list(names)).
			do("Look who says them: whoever may publish on the control server can. If it is a ps of yours, its log " +
				"says why it " +
				"cannot announce itself.")
	}
}

// budget bounds the bytes of large reports of ps, or of trainers: of those with more than least, at most most together.
type budget struct{ least, most, bytes int }

// fits reports whether there is room for a report in place of a member's latest, in bytes.
func (b *budget) fits(was, bytes int) bool {
	return bytes <= b.least || b.bytes-b.large(was)+bytes <= b.most
}

// swap counts a report in place of a member's latest.
func (b *budget) swap(was, bytes int) { b.bytes += b.large(bytes) - b.large(was) }

func (b *budget) large(bytes int) int {
	if bytes <= b.least {
		return 0
	}
	return bytes
}

// weigh counts what is remembered anew: who was forgotten since the last time still counts until then.
func (t *Tracker) weigh() {
	t.ofServers, t.ofTrainers = budget{least: serverBytes, most: serversBytesMax},
		budget{least: trainerBytes, most: TrainersBytesMax}
	for _, s := range t.servers {
		t.ofServers.swap(0, s.heard.bytes)
	}
	for _, r := range t.runs {
		for _, tr := range r.trainers {
			t.ofTrainers.swap(0, tr.heard.bytes)
		}
	}
}

// serverReportBytes is what remembering a report of a ps takes: of its refusals the latest are.
func serverReportBytes(p *schema.Telemetry) int {
	n := p.MemoryBytes()
	for reason := range p.Server.Reasons {
		n += (ringLen - 1) * (len(reason) + 48)
	}
	return n
}

// brief cuts a text for the status.
func brief(text string) string {
	if len(text) <= shownTextBytesMax {
		return text
	}
	return schema.Clip(text[:shownTextBytesMax]) + "..."
}
