package trainer

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/client"
	"gradbus/ps"
	"gradbus/ps/members"
	"gradbus/schema"
)

// memberKey draws a key and returns it with its line in a members file.
func memberKey(t *testing.T, name string, role members.Role, jobs ...string) (*fabric.Key, string) {
	t.Helper()
	key, err := fabric.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	m := members.Member{Role: role, Name: name, Key: key.Public(), Jobs: jobs}
	return key, m.Line() + "\n"
}

func parseMembers(t *testing.T, text string) *members.List {
	t.Helper()
	list, err := members.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Members train on two ps, one of which is a member at the other, with the bits that a job has elsewhere. A trainer of
// another job can meanwhile neither join this job, nor speak or listen in it, nor end a ps, nor change learning rates.
func TestMembersSameWeights(t *testing.T) {
	const batches, trainers, lanes = 5, 2, 4
	key, lines := memberKey(t, "ours", members.Trainer, "members-toy")
	stolen, line := memberKey(t, "stolen", members.Trainer, "another")
	lines += line
	second, line := memberKey(t, "b", members.PS)
	lines += line
	list := parseMembers(t, lines)
	first := startOn(t, nil, ps.Config{ID: "a", Shards: 1, Members: list})
	startOn(t, nil, ps.Config{ID: "b", Shards: 2, Members: list, NATS: first.URL(), Key: second})
	c := controlConfig(t, first.URL())
	c.Key = key
	c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))

	attacker, err := fabric.DialControl(testContext(t), fabric.Config{URL: first.URL(), Name: "another/t0", Key: stolen})
	if err != nil {
		t.Fatal(err)
	}
	defer attacker.Close()
	frame, err := schema.EncodeControl(schema.Head{}, schema.Control{Drain: &schema.Drain{Server: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"gradbus.v1.ps.j-a.ctl.coordinator", "gradbus.v1.members-toy.t0.ctl.coordinator",
		"gradbus.v1.members-toy.coordinator.ctl.all"} {
		if err := attacker.Publish(subject, frame); err != nil {
			t.Fatal(err)
		}
	}
	o := client.Operator{Server: fabric.Config{URL: first.URL(), Key: stolen}, AnswerWithin: time.Second}
	_, err = o.Drain(testContext(t), "a")
	checkError(t, err, fabric.ErrRefused, stolen.Public())
	_, err = o.ScaleLR(testContext(t), "members-toy", 0, 0, true)
	checkError(t, err, fabric.ErrRefused)
	checkError(t, o.Takeover(testContext(t), "members-toy"), fabric.ErrRefused)
	foreign := c
	foreign.Key = stolen
	_, err = Join(testContext(t), foreign, toyJob("members-toy", trainers, lanes, schema.ApplyUpdate))
	checkError(t, err, fabric.ErrRefused)

	job := toyJob("members-toy", trainers, lanes, schema.ApplyUpdate)
	want := digestOnOne(t, 3, job, batches)
	for i, o := range trainAll(t, c, job, batches) {
		if o.err != nil || o.digest != want {
			t.Errorf("trainer %d: %v, weights %x, want %x", i, o.err, o.digest[:6], want[:6])
		}
	}
	if err := first.Err(); err != nil {
		t.Errorf("the ps has ended: %v", err)
	}
}

// A ps reads its members again: a revoked trainer is cut off, another one of the job is not.
func TestRevokedMember(t *testing.T) {
	key, line := memberKey(t, "a", members.Trainer, "revoked-toy")
	operator, other := memberKey(t, "b", members.Operator)
	config := ps.Config{Shards: 1, Members: parseMembers(t, line+other), Deadline: unhurried}
	server := startOn(t, nil, config)
	states := make(chan fabric.State, 8)
	conn, err := fabric.DialControl(testContext(t), fabric.Config{URL: server.URL(), Name: "revoked-toy/t0", Key: key,
		OnState: func(s fabric.State) { states <- s }})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	config.Members = parseMembers(t, other)
	if err := server.Reload(config); err != nil {
		t.Fatal(err)
	}
	for s := range states {
		if s == fabric.Lost {
			break
		}
	}
	config.Members = nil
	if err := server.Reload(config); err == nil {
		t.Error("members end without a restart")
	}
	c := controlConfig(t, server.URL())
	c.Key = key
	_, err = Join(testContext(t), c, toyJob("revoked-toy", 1, 1, schema.ApplyUpdate))
	checkError(t, err, fabric.ErrRefused)
	var closing sync.WaitGroup
	defer closing.Wait()
	closing.Go(func() { <-server.Asked(); server.Close() })
	o := client.Operator{Server: fabric.Config{URL: server.URL(), Key: operator}, AnswerWithin: time.Minute}
	if _, err := o.Drain(testContext(t), ""); err != nil {
		t.Errorf("the operator, whose line is there: %v", err)
	}
}
