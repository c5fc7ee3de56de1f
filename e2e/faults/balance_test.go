package faults

import (
	"fmt"
	"time"

	"gradbus/fabric/chaos"
	"gradbus/ps"
	"gradbus/schema"
)

// kinds are those that trainers and servers exchange; what else goes through the proxy is left alone.
var kinds = []string{"dense", "sparse", "mean", "lookup", "rows", "pull", "ack", "ctl", "beat"}

// everyFault harms a share of all messages in both directions, a fifth of it in each way.
func everyFault(share float64) []chaos.Rule {
	var rules []chaos.Rule
	for _, d := range []chaos.Direction{chaos.ToServer, chaos.FromServer} {
		rules = append(rules, chaos.Rule{Direction: d, Kinds: kinds, Drop: share / 5, Repeat: share / 5, Delay: share / 5,
			Reorder: share / 5, Flip: share / 5})
	}
	return rules
}

// oneFault harms a share of all messages in both directions in one way.
func oneFault(set func(*chaos.Rule)) []chaos.Rule {
	var rules []chaos.Rule
	for _, d := range []chaos.Direction{chaos.ToServer, chaos.FromServer} {
		rule := chaos.Rule{Direction: d, Kinds: kinds}
		set(&rule)
		rules = append(rules, rule)
	}
	return rules
}

// account is one entry of the books: two sides that must be equal once nothing is on the way.
type account struct {
	name        string
	left, right uint64
	text        string
}

// accounts compares what the proxy did with what trainers and servers noticed. They hold where no connection was cut
// and no queue was full.
//
//	gradients   sent again + repeated = dropped + bit changed + refused as duplicates + found no room
//	damage up   frames with a bit changed = frames that the server refused as damaged
//	damage down frames with a bit changed = frames that trainers dropped as damaged
//	results     delivered, less damaged, and told by rows = rounds of all batches and trainers + results that came once more
func (r *rig) accounts() []account {
	server := r.server.Stats()
	var all schema.TrainerReport
	for _, s := range r.sessions {
		t := s.Stats()
		all.GradientFrames += t.GradientFrames
		all.Resent += t.Resent
		all.Traffic.Dropped += t.Traffic.Dropped
		all.Results += t.Results
		all.ResultsByRows += t.ResultsByRows
		all.ResultsRepeated += t.ResultsRepeated
		all.Pulls += t.Pulls
	}
	up := r.proxy.Counts(chaos.ToServer, "dense").Add(r.proxy.Counts(chaos.ToServer, "sparse"))
	upAll, downAll := r.proxy.Counts(chaos.ToServer, ""), r.proxy.Counts(chaos.FromServer, "")
	mean := r.proxy.Counts(chaos.FromServer, "mean")
	duplicates := server.Reasons[schema.ReasonDuplicate]
	return []account{
		{"gradients", all.Resent + up.Repeated, up.Dropped + up.Flipped + duplicates + server.Dropped,
			fmt.Sprintf("%d frames; %d sent again + %d repeated; %d dropped + %d damaged + %d duplicates refused + %d "+
				"without room",
				all.GradientFrames, all.Resent, up.Repeated, up.Dropped, up.Flipped, duplicates, server.Dropped)},
		{"first sendings", up.Messages, all.GradientFrames + all.Resent,
			fmt.Sprintf("%d passed the proxy; %d + %d sent again", up.Messages, all.GradientFrames, all.Resent)},
		{"damage up", upAll.Flipped, damaged(&server), fmt.Sprintf("%d frames with a bit changed; %d refused", upAll.Flipped,
			damaged(&server))},
		{"damage down", downAll.Flipped, all.Traffic.Dropped, fmt.Sprintf("%d frames with a bit changed; %d dropped by trainers",
			downAll.Flipped, all.Traffic.Dropped)},
		{"results", mean.Delivered() - mean.Flipped + all.ResultsByRows, all.Results + all.ResultsRepeated,
			fmt.Sprintf("%d delivered, %d dropped and %d damaged on the way, %d told by rows; %d taken + %d once more; "+
				"pulled %d times",
				mean.Delivered()-mean.Flipped, mean.Dropped, mean.Flipped, all.ResultsByRows, all.Results, all.ResultsRepeated,
				all.Pulls)},
	}
}

// damaged is how many frames a server refused because they were not what was sent: neither late nor repeated.
func damaged(s *ps.Stats) uint64 {
	n := uint64(0)
	for reason, count := range s.Reasons {
		switch schema.Reason(reason) {
		case schema.ReasonOK, schema.ReasonDuplicate, schema.ReasonStaleBatch, schema.ReasonEarlyBatch:
		default:
			n += count
		}
	}
	return n
}

// balance waits until nothing is on the way and every account is even, and prints them.
func (r *rig) balance() {
	r.t.Helper()
	var all []account
	for deadline := time.Now().Add(guard); ; time.Sleep(10 * time.Millisecond) {
		even := r.proxy.Holds() == 0
		all = r.accounts()
		for _, a := range all {
			even = even && a.left == a.right
		}
		if even || time.Now().After(deadline) {
			break
		}
	}
	for _, a := range all {
		r.t.Logf("%s: %s", a.name, a.text)
		if a.left != a.right {
			r.t.Errorf("%s: %d on one side, %d on the other", a.name, a.left, a.right)
		}
	}
	rounds, frames := r.rounds()
	for i, s := range r.sessions {
		if got := s.Stats(); got.Results != rounds*got.Batches || got.GradientFrames < frames*got.Batches {
			r.t.Errorf("trainer %d: %d results and %d frames of %d batches, want %d and at least %d a batch", i, got.Results,
				got.GradientFrames, got.Batches, rounds, frames)
		}
	}
}

// frames is how many gradient frames the trainers have sent, each counted once.
func (r *rig) frames() (n uint64) {
	for _, s := range r.sessions {
		n += s.Stats().GradientFrames
	}
	return n
}

// rounds is how many results a batch has, and how many frames a trainer contributes at least.
func (r *rig) rounds() (results, frames uint64) {
	place := schema.NewPlacement(r.job, r.sessions[0].Shards())
	for _, b := range place.Buckets {
		results += uint64(place.Chunks(b.ID))
	}
	if len(r.job.Tables) > 0 {
		results += uint64(place.Shards)
	}
	return results, results
}

// report prints what the proxy did.
func (r *rig) report() {
	for _, d := range []chaos.Direction{chaos.ToServer, chaos.FromServer} {
		for _, k := range kinds {
			if c := r.proxy.Counts(d, k); c.Messages > 0 {
				r.t.Logf("%v, %s: %v", d, k, c)
			}
		}
	}
	r.t.Logf("connections: %+v", r.proxy.Totals())
}
