package ps

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// randomControls draws control messages of every kind, whose fields have values that such fields may have and values
// that they may not.
type randomControls struct {
	*rand.Rand
	about   string // the job of the next message
	jobs    []string
	members []schema.Member
	strange []schema.Member
	runs    []schema.RunID
}

func (r *randomControls) job() *schema.Job {
	job := shardtest.SmallJob(some(r, []string{r.about}, r.jobs), 1, 3)
	switch r.IntN(24) {
	case 4:
		job.Trainers = 3
	case 0:
		job.Trainers = pick(r, randomInts)
	case 1:
		job.Lanes = pick(r, randomInts)
	case 2:
		job = &schema.Job{}
	case 3:
		job.Policy = schema.PolicyRecover
	}
	return job
}

// Values of fields: those that are often drawn, and those that seldom are.
var (
	usualInts   = []int{0, 1, 2, 3}
	randomInts  = []int{-1, 7, 4096, 4097, 1 << 20, math.MaxInt32, math.MaxInt, math.MinInt}
	usualTexts  = []string{"", "a", "b", "c", "nats://127.0.0.1:1", "direct", "kept-7-3", "1:1:1"}
	randomTexts = []string{"../../x", "standby", "kept-x", "0000000001-0000000000000007-3", "T 1", "nats://", "\x00",
		"cluster", "lr", "busy", strings.Repeat("x", 5000)}
)

// some draws one of the usual values, or now and then any other.
func some[T any](r *randomControls, usual, others []T) T {
	if r.IntN(24) == 0 {
		return pick(r, others)
	}
	return pick(r, usual)
}

func pick[T any](r *randomControls, all []T) T { return all[r.IntN(len(all))] }

// fill sets a field, and those of what it points to.
func (r *randomControls) fill(v reflect.Value) {
	switch v.Interface().(type) {
	case *schema.Job:
		if r.IntN(24) > 0 {
			v.Set(reflect.ValueOf(r.job()))
		}
		return
	case schema.JobName:
		v.SetString(pick(r, r.jobs))
		return
	case schema.Member:
		v.SetString(string(some(r, r.members, r.strange)))
		return
	case schema.RunID:
		v.SetUint(uint64(pick(r, r.runs)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			r.fill(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if may := strings.Contains(v.Type().Field(i).Tag.Get("json"), ",omitempty"); !may || r.IntN(2) == 0 {
				r.fill(v.Field(i))
			}
		}
	case reflect.Slice:
		for range r.IntN(4) {
			one := reflect.New(v.Type().Elem()).Elem()
			r.fill(one)
			v.Set(reflect.Append(v, one))
		}
	case reflect.String:
		v.SetString(some(r, usualTexts, randomTexts))
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(some(r, usualInts, randomInts)))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(some(r, usualInts, randomInts)))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(r.Float64())
	default:
		panic("no random value of " + v.Type().String())
	}
}

// control draws a message of the i-th kind.
func (r *randomControls) control(i int) (c schema.Control) {
	v := reflect.ValueOf(&c).Elem().Field(i)
	v.Set(reflect.New(v.Type().Elem()))
	r.fill(v.Elem())
	return c
}

// message draws a frame of the i-th kind, with its subject.
func (r *randomControls) message(t testing.TB, i int) fabric.Message {
	t.Helper()
	h := schema.Head{Job: pick(r, r.runs), Generation: schema.Generation(r.IntN(4)), Batch: schema.Batch(r.IntN(5))}
	r.about = pick(r, r.jobs)
	at := fabric.At(r.about, string(some(r, r.members, r.strange)), fabric.KindCtl, "coordinator")
	if r.IntN(3) == 0 {
		at.From, at.To = "coordinator", pick(r, []string{"p-a", "p-b", "p-c"})
	}
	l := schema.Layout{Kind: schema.KindControl}
	body, err := json.Marshal(r.control(i)) // which schema.EncodeControl would cut to what may be
	must(t, err)
	if r.IntN(16) == 0 {
		at.Kind, l.Kind, body = fabric.KindHeartbeat, schema.KindHeartbeat, nil
	}
	l.Body = len(body)
	f := shardtest.NewFrame(t, l)
	f.SetHead(h)
	copy(f.Body(), body)
	return fabric.NewMessage(at.String(), f.Seal())
}

// Whatever a control message says, of a job that is registered here or not, kept here, assigned from elsewhere, over or
// never heard of: no control loop and no ps that holds the replica panics, and both go on.
func TestRandomControlMessages(t *testing.T) {
	const seed, rounds = 5, 300
	t.Logf("seed %d", seed)
	peer := Config{ID: "a", Replicas: 1, NATS: startControl(t, fabric.ServerConfig{}).URL()}
	s := startServer(t, peer)
	m := gather(t, s, shardtest.New(t, shardtest.SmallJob("here", 1, 3)), "j-a")[0]
	peer.ID = "b"
	b := startServer(t, peer)
	by := startServer(t, Config{ID: "c", Replicas: 1, Peer: startServer(t, Config{ID: "d"}).URL()})
	elsewhere := shardtest.SmallJob("elsewhere", 1, 3)
	record(t, s.registry.jobs, 7, elsewhere, schema.DataServer{ID: "b", Shards: []int{0, 1}})
	assign, err := schema.EncodeControl(schema.Head{Job: 7, Generation: 1}, schema.Control{Assign: &schema.Assign{
		Job: elsewhere, Serial: 1, Shards: 2, Own: []int{0, 1}, Cluster: []schema.Member{}}})
	must(t, err)
	b.loop.inbox.receive(fabric.NewMessage("gradbus.v1.elsewhere.coordinator.ctl.p-b", assign))
	eventually(t, "shards are here", func() bool { return b.runHere("elsewhere") == 7 })
	r := &randomControls{Rand: rand.New(rand.NewPCG(seed, 1)),
		jobs:    []string{"here", "elsewhere", "kept", "over", "nowhere", "ps"},
		members: []schema.Member{"t0", "t1", "j-a", "j-b", "j-c", "j-d", "p-a", "p-b"},
		strange: []schema.Member{"t9", "s0", "s1", "all", "p-x", "coordinator", "x", "T", "", "../x"},
		runs:    []schema.RunID{0, m.joined.RunID, 7, 8, 1 << 63}}
	for range rounds {
		for i := range reflect.TypeFor[schema.Control]().NumField() {
			msg := r.message(t, i)
			switch at, err := msg.Parse(); {
			case err == nil && at.To == string(b.member):
				b.loop.inbox.receive(msg)
			case err == nil && at.To == string(by.member):
				by.primary.hear(msg)
			default:
				s.loop.inbox.receive(msg)
			}
			if jobs := s.Stats().Jobs; len(jobs) > 0 {
				r.runs[1] = jobs[0].RunID
			}
		}
	}
	eventually(t, "all are read", func() bool { return len(s.loop.inbox.messages)+len(b.loop.inbox.messages) == 0 })
	reasons := s.Stats().Reasons
	for reason, n := range reasons {
		if n > 0 {
			t.Logf("%s: %d", schema.Reason(reason), n)
		}
	}
	if n := reasons[schema.ReasonOK]; n < rounds {
		t.Errorf("%d messages were taken, want at least %d", n, rounds)
	}
	late := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("late", 1, 1)), "j-z")
	late.join()
	late.start()
	late.leave("")
}
