package ps

import (
	"testing"

	"gradbus/fabric"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// speak says a control message in anybody's name.
func (p *publisher) speak(job, from, to string, run schema.RunID, c schema.Control) {
	p.t.Helper()
	frame, err := schema.EncodeControl(schema.Head{Job: run, Generation: generationFirst}, c)
	must(p.t, err)
	p.send(fabric.At(job, from, fabric.KindCtl, to).String(), frame)
}

// Whoever does not know the run of a job cannot end it in a trainer's name, and nobody on the wire speaks for a
// coordinator, or for a ps that is here, whatever it knows: the job goes on, and nothing else is begun. Of strangers
// the server does not take the half of this (TestStrangersDoNotWriteTheRegistry), so they are peers here.
func TestStrangersEndNoJob(t *testing.T) {
	s := startServer(t, Config{ControlToken: "the-token-of-peers"})
	p := shardtest.New(t, shardtest.SmallJob("victim", 1, 2))
	m := gather(t, s, p, "j-a")[0]
	eventually(t, "the server knows that it is alone", s.isAlone)
	promised := s.Stats().Memory
	stranger := newPublisher(t, s, "victim")
	self, run := string(s.member), m.joined.RunID
	failed := schema.Control{Ended: &schema.Ended{Member: s.member, Text: "no more"}}
	assign := func(name string) schema.Control {
		return schema.Control{Assign: &schema.Assign{Job: shardtest.SmallJob(name, 1, 2), Serial: 1, Shards: 1, Own: []int{0},
			Cluster: []schema.Member{}}}
	}
	heartbeat := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindHeartbeat}).Seal()
	for _, c := range []struct {
		name string
		say  func()
		want schema.Reason
	}{
		{"a leave without a run", func() {
			stranger.speak("victim", "t0", "coordinator", 0, schema.Control{Leave: &schema.Leave{Reason: "x"}})
		}, schema.ReasonForeignJob},
		{"a leave in peace", func() {
			stranger.speak("victim", "t0", "coordinator", 0, schema.Control{Leave: &schema.Leave{}})
		}, schema.ReasonForeignJob},
		{"a leave of another run", func() {
			stranger.speak("victim", "t0", "coordinator", run+1, schema.Control{Leave: &schema.Leave{Reason: "x"}})
		}, schema.ReasonJobUnknown},
		{"a word that it leaves soon, to a job that is not registered", func() {
			stranger.speak("nobody", "t0", "coordinator", run, schema.Control{Leave: &schema.Leave{Later: true}})
		}, schema.ReasonJobUnknown},
		{"a heartbeat without a run", func() {
			stranger.send(fabric.At("victim", "t0", fabric.KindHeartbeat, "all").String(), heartbeat)
		}, schema.ReasonForeignJob},
		{"a failure without a run", func() { stranger.speak("victim", self, "coordinator", 0, failed) },
			schema.ReasonWrongSender},
		{"a failure in the name of the ps", func() { stranger.speak("victim", self, "coordinator", run, failed) },
			schema.ReasonWrongSender},
		{"a release", func() {
			stranger.speak("victim", "coordinator", self, run, schema.Control{Ended: &schema.Ended{End: schema.EndCompleted}})
		}, schema.ReasonWrongSender},
		{"shards of another run", func() { stranger.speak("victim", "coordinator", self, run+1, assign("victim")) },
			schema.ReasonWrongSender},
		{"shards of no job", func() { stranger.speak("nobody", "coordinator", self, 7, assign("nobody")) },
			schema.ReasonWrongSender},
	} {
		before := s.Stats().Reasons[c.want]
		c.say()
		eventually(t, c.name+" is counted", func() bool { return s.Stats().Reasons[c.want] == before+1 })
	}
	drain(m.mail) // refusals that go by its name
	for b := range schema.Batch(2) {
		m.batch(b)
	}
	if got := s.Stats(); got.Memory != promised || len(got.Jobs) != 1 || got.Jobs[0].State != coordinator.Running.String() {
		t.Errorf("%d bytes promised and jobs %+v, want %d and the one", got.Memory, got.Jobs, promised)
	}
	m.leave("")
}
