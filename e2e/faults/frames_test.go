package faults

import (
	"testing"

	"gradbus/fabric/chaos"
	"gradbus/ps"
	"gradbus/schema"
)

// small is a job of many small chunks and a table: 48 dense chunks of 4 KiB over two parameters, on two shards.
func small(name string) plan {
	return plan{name: name, server: ps.Config{Shards: 2}, trainers: 2, chunk: schema.ChunkBytesMin, elements: []int{40 * 1024, 7*1024 + 500}, table: true}
}

// large is a job of chunks of 256 KiB, 20 of them.
func large(name string) plan {
	return plan{name: name, server: ps.Config{Shards: 1}, trainers: 2, chunk: 256 << 10, elements: []int{20 * 65536}, table: true}
}

// 1 % and 5 % of all messages of every kind, in both directions, are lost, repeated, late, out of order or damaged: every
// sum is exact, and every loss is noticed and made good.
func TestFramesInEveryWay(t *testing.T) {
	for _, c := range []struct {
		plan  plan
		share float64
		n     uint64
	}{
		{small("mixed-1"), 0.01, volume(20, 250)},
		{small("mixed-5"), 0.05, volume(20, 250)},
		{large("large-1"), 0.01, volume(5, 100)},
		{large("large-5"), 0.05, volume(5, 100)},
	} {
		t.Run(c.plan.name, func(t *testing.T) {
			r := newRig(t, c.plan)
			r.proxy.SetRules(everyFault(c.share)...)
			r.train(c.n, nil)
			r.proxy.SetRules()
			r.balance()
			r.report()
		})
	}
}

// Each way alone, of all kinds of message, in both modes.
func TestFramesInOneWay(t *testing.T) {
	for name, set := range map[string]func(*chaos.Rule){
		"drop":    func(r *chaos.Rule) { r.Drop = 0.05 },
		"repeat":  func(r *chaos.Rule) { r.Repeat = 0.05 },
		"delay":   func(r *chaos.Rule) { r.Delay = 0.05 },
		"reorder": func(r *chaos.Rule) { r.Reorder = 0.05 },
		"flip":    func(r *chaos.Rule) { r.Flip = 0.05 },
	} {
		for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
			t.Run(name+"/"+apply, func(t *testing.T) {
				p := small(name + "-" + apply)
				p.apply = apply
				r := newRig(t, p)
				r.proxy.SetRules(oneFault(set)...)
				r.train(volume(10, 60), nil)
				r.proxy.SetRules()
				r.balance()
			})
		}
	}
}

// A harmless network is balanced without anything having been sent again by guess.
func TestNothingHappens(t *testing.T) {
	r := newRig(t, small("calm"))
	r.train(volume(20, 100), nil)
	r.balance()
	if c := r.proxy.Counts(chaos.ToServer, "").Harmed() + r.proxy.Counts(chaos.FromServer, "").Harmed(); c != 0 {
		t.Errorf("%d messages harmed without a rule", c)
	}
}
