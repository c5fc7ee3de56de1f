package faults

import (
	"testing"

	"gradbus/fabric/chaos"
	"gradbus/ps"
	"gradbus/schema"
)

const largeChunk = 256 << 10

// small is a job of many small chunks and a table: 48 dense chunks of 4 KiB over two parameters, on two shards.
func small(name string) plan {
	return plan{name: name, server: ps.Config{Shards: 2}, trainers: 2, chunk: schema.ChunkBytesMin,
		elements: []int{40 * 1024, 7*1024 + 500}, table: true}
}

// large is a job of chunks of 256 KiB, 20 of them.
func large(name string) plan {
	return plan{name: name, server: ps.Config{Shards: 1}, trainers: 2, chunk: largeChunk,
		elements: []int{20 * largeChunk / 4}, table: true}
}

func (p plan) with(change func(*plan)) plan {
	change(&p)
	return p
}

func mean(p *plan)   { p.apply = schema.ApplyMean }
func uneven(p *plan) { p.trainers = 3 }

// ways are what happens to messages of every kind, in both directions, and to how many batches.
func ways() []way {
	drop := func(share float64) []chaos.Rule { return oneFault(func(r *chaos.Rule) { r.Drop = share }) }
	repeat := func(share float64) []chaos.Rule { return oneFault(func(r *chaos.Rule) { r.Repeat = share }) }
	delay := func(share float64) []chaos.Rule { return oneFault(func(r *chaos.Rule) { r.Delay = share }) }
	reorder := func(share float64) []chaos.Rule { return oneFault(func(r *chaos.Rule) { r.Reorder = share }) }
	flip := func(share float64) []chaos.Rule { return oneFault(func(r *chaos.Rule) { r.Flip = share }) }
	return []way{
		{"none", small("none"), nil, 20, 50},
		{"every 5", small("every-5"), everyFault(0.05), 20, 150},
		{"every 5 mean", small("every-5-mean").with(mean), everyFault(0.05), 10, 100},
		{"every 5 uneven", small("every-5-uneven").with(uneven), everyFault(0.05), 10, 100},
		{"drop 5", small("drop-5"), drop(0.05), 10, 100},
		{"repeat 5", small("repeat-5").with(mean), repeat(0.05), 10, 100},
		{"delay 5", small("delay-5"), delay(0.05), 10, 100},
		{"reorder 5", small("reorder-5").with(mean), reorder(0.05), 10, 100},
		{"flip 5", small("flip-5"), flip(0.05), 10, 100},
		{"lookups 40", small("lookups-40"), lookupFaults(0.4), 10, 100},
		{"large every 5", large("large-5").with(mean), everyFault(0.05), 3, 130},
	}
}

// lookupFaults harms a share of all lookups and rows, a quarter of it in each way that leaves them whole.
func lookupFaults(share float64) (rules []chaos.Rule) {
	for _, r := range everyFault(share * 5 / 4) {
		r.Kinds, r.Flip = []string{"lookup", "rows"}, 0
		rules = append(rules, r)
	}
	return rules
}

type way struct {
	name          string
	plan          plan
	rules         []chaos.Rule
	batches, full uint64
}

// 5 % of all messages of every kind, in both directions, are lost, repeated, late, out of order or damaged,
// each alone and all together: every sum is exact, every loss is noticed and made good, and nothing counts twice.
func TestFrames(t *testing.T) {
	var frames, largeFrames, harmed uint64
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			r := newRig(t, w.plan)
			r.proxy.SetRules(w.rules...)
			r.train(volume(w.batches, w.full), nil)
			r.proxy.SetRules()
			r.balance()
			r.report()
			harm := r.proxy.Counts(chaos.ToServer, "").Harmed() + r.proxy.Counts(chaos.FromServer, "").Harmed()
			if (harm == 0) != (w.rules == nil) {
				t.Errorf("%d messages were harmed", harm)
			}
			n := r.frames()
			frames, harmed = frames+n, harmed+harm
			if w.plan.chunk == largeChunk {
				largeFrames += n
			}
		})
	}
	t.Logf("%d chunks, %d of them of 256 KiB; %d messages were harmed; every sum exact", frames, largeFrames, harmed)
	if *fullFlag && !t.Failed() && (frames < 80_000 || largeFrames < 5_000) {
		t.Errorf("want 80,000 chunks and 5,000 of 256 KiB")
	}
}
