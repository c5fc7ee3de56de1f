package ps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// shortLease lets tests wait for the end of one. Only where nobody else is alive, whose lease might run out by being
// slow.
const shortLease = 2 * time.Second

// longLease is of ps that are not to lose theirs where the machine has no time for them.
const longLease = 2 * time.Minute

// startControl starts a NATS server as one that is not of gradbus would be.
func startControl(t testing.TB, c fabric.ServerConfig) *fabric.Server {
	t.Helper()
	c.Bus = network(t)
	c.JetStream, c.Log = true, slog.New(slog.DiscardHandler)
	s, err := fabric.StartServer(c)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

func startAt(t testing.TB, c Config) (*Server, error) {
	t.Helper()
	return startFor(t, c, leaseTime)
}

func startFor(t testing.TB, c Config, lease time.Duration) (*Server, error) {
	t.Helper()
	c.Deadline = cmp.Or(c.Deadline, unhurried)
	s, err := Start(context.Background(), c, Options{Bus: network(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		lease: lease})
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

func mustStart(t testing.TB, c Config) *Server {
	t.Helper()
	return mustStartFor(t, c, leaseTime)
}

func mustStartFor(t testing.TB, c Config, lease time.Duration) *Server {
	t.Helper()
	s, err := startFor(t, c, lease)
	must(t, err)
	return s
}

// buckets opens the registry as an observer.
func buckets(t testing.TB, url string, lease time.Duration) (servers, jobs *fabric.Bucket) {
	t.Helper()
	c, err := fabric.DialControl(context.Background(), fabric.Config{URL: url, Bus: network(t), Name: "observer"})
	must(t, err)
	t.Cleanup(c.Close)
	r := newRegistry(c, leaseRecord{}, lease, nil, nil, nil)
	must(t, r.openBuckets(context.Background()))
	return r.servers, r.jobs
}

func ofKeys(t testing.TB, b *fabric.Bucket, of func(fabric.Entry) bool) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := b.All(ctx)
	must(t, err)
	for _, e := range all {
		if of(e) {
			names = append(names, e.Key)
		}
	}
	slices.Sort(names)
	return names
}

// running are the jobs that somebody coordinates, and announced the ps that get shards of new ones.
func running(t testing.TB, b *fabric.Bucket) []string {
	return ofKeys(t, b, func(e fabric.Entry) bool { return !hasEnded(e) })
}

func announced(t testing.TB, b *fabric.Bucket) []string {
	return ofKeys(t, b, func(e fabric.Entry) bool { return !strings.Contains(string(e.Value), `"leaving":true`) })
}

// controlClient is a trainer's connection for control, which is all that joining takes.
type controlClient struct {
	t       testing.TB
	conn    *fabric.Control
	job     *schema.Job
	name    string
	answers chan schema.Control
}

func newControlClient(t testing.TB, url string, job *schema.Job, name string) *controlClient {
	t.Helper()
	conn, err := fabric.DialControl(context.Background(),
		fabric.Config{URL: url, Bus: network(t), Name: string(job.Name) + "/" + name})
	must(t, err)
	t.Cleanup(conn.Close)
	cc := &controlClient{t, conn, job, name, make(chan schema.Control, 1000)}
	for _, to := range []string{name, string(schema.All), "t0"} {
		must(t, conn.Subscribe(fabric.Pattern(string(job.Name), string(schema.Coordinator), fabric.KindCtl, to, false),
			func(m fabric.Message) {
				if v, err := schema.Verify(m.Data, schema.Limits{}); err == nil {
					if c, err := schema.DecodeControl(&v); err == nil {
						cc.answers <- c
					}
				}
			}))
	}
	return cc
}

func (cc *controlClient) say(from string, run schema.RunID, c schema.Control) {
	cc.t.Helper()
	frame, err := schema.EncodeControl(schema.Head{Job: run, Generation: generationFirst}, c)
	must(cc.t, err)
	must(cc.t, cc.conn.Send(fabric.At(string(cc.job.Name), from, fabric.KindCtl, string(schema.Coordinator)), frame))
}

// hear waits for an answer that satisfies, and repeats a join meanwhile, as trainers do.
func (cc *controlClient) hear(what string, is func(schema.Control) bool) schema.Control {
	cc.t.Helper()
	cc.say(cc.name, 0, schema.Control{Join: &schema.Join{Job: cc.job, Host: "test"}})
	deadline, again := time.After(patience), time.NewTicker(time.Second)
	defer again.Stop()
	for {
		select {
		case c := <-cc.answers:
			if is(c) {
				return c
			}
		case <-again.C:
			cc.say(cc.name, 0, schema.Control{Join: &schema.Join{Job: cc.job, Host: "test"}})
		case <-deadline:
			cc.t.Errorf("%s: never heard %s", cc.name, what)
			return schema.Control{Joined: &schema.Joined{}, Ended: &schema.Ended{}}
		}
	}
}

func (cc *controlClient) join() *schema.Joined {
	cc.t.Helper()
	return cc.hear("joined", func(c schema.Control) bool { return c.Joined != nil }).Joined
}

func isFailed(c schema.Control) bool { return c.Ended != nil }

// Whoever joins, and to whichever of many ps the messages come first, a name is one job with one coordinator, which all
// trainers hear of alike; its shards are numbered in the order of the ids. When it has ended nothing of it is left.
func TestOneCoordinatorForEachName(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	var servers []*Server
	for i, id := range []string{"c", "a", "b"} {
		servers = append(servers, mustStartFor(t, Config{NATS: control.URL(), ID: id, Shards: i + 1}, longLease))
	}
	there, registered := buckets(t, control.URL(), longLease)
	if names := announced(t, there); !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Fatalf("announced: %v", names)
	}
	const jobs, trainers = 3, 4
	var all sync.WaitGroup
	joined := make([]*schema.Joined, jobs*trainers)
	for i := range joined {
		c := newControlClient(t, control.URL(), shardtest.SmallJob(fmt.Sprint("job-", i%jobs), trainers, trainers),
			fmt.Sprint("j-", i))
		all.Go(func() { joined[i] = c.join() })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for i, j := range joined {
		if first := joined[i%jobs]; j.RunID != first.RunID || j.Shards != 6 {
			t.Errorf("trainer %d was given run %d of %d shards, want %d of 6", i, j.RunID, j.Shards, first.RunID)
		}
		for n, want := range []struct {
			id     string
			shards []int
		}{{"a", []int{0, 1}}, {"b", []int{2, 3, 4}}, {"c", []int{5}}} {
			if d := j.Servers[n]; d.ID != want.id || !slices.Equal(d.Shards, want.shards) ||
				!strings.HasPrefix(d.URL, "nats://127.0.0.1:") {
				t.Errorf("server %d is %+v, want %+v", n, d, want)
			}
		}
	}
	eventually(t, "each job is coordinated once", func() bool { // statistics are an iteration behind
		coordinated := 0
		for _, s := range servers {
			coordinated += len(s.Stats().Jobs)
		}
		return coordinated == jobs
	})
	if names := running(t, registered); len(names) != jobs {
		t.Errorf("registered: %v", names)
	}
	for i := range joined {
		c := newControlClient(t, control.URL(), shardtest.SmallJob(fmt.Sprint("job-", i%jobs), trainers, trainers),
			fmt.Sprint("l-", i))
		c.say(string(joined[i].Member), joined[i].RunID, schema.Control{Leave: &schema.Leave{}})
	}
	eventually(t, "all jobs are gone from every ps and the registry", func() bool {
		free := len(running(t, registered)) == 0
		for _, s := range servers {
			free = free && len(s.Stats().Jobs) == 0 && s.Stats().Memory == 0
		}
		return free
	})
	for _, s := range servers {
		s.Close()
	}
	eventually(t, "nobody is announced", func() bool { return len(announced(t, there)) == 0 })
}

// A join that comes again, to a ps that was slow, when its job has ended does not register the name again: neither
// where that ps has never heard of the job, nor while another run is on, nor where its trainer left before the start.
func TestLateJoinsRegisterNothing(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	a := mustStartFor(t, Config{NATS: control.URL(), ID: "a"}, longLease)
	gone := map[string]*schema.Job{}
	for _, run := range []struct {
		name     string
		trainers int
	}{{"j-early", 2}, {"j-first", 1}} { // of which the first does not start
		gone[run.name] = shardtest.SmallJob("again", run.trainers, 2)
		c := newControlClient(t, control.URL(), gone[run.name], run.name)
		c.say("t0", c.join().RunID, schema.Control{Leave: &schema.Leave{}})
		eventually(t, run.name+" has left", func() bool { return len(a.Stats().Jobs) == 0 })
	}
	b := mustStartFor(t, Config{NATS: control.URL(), ID: "b"}, longLease)
	// All of it is said on one connection, so that each ps hears it in this order. Every run differs from those before: it
	// could not join what a late join has registered.
	speaker := newControlClient(t, control.URL(), gone["j-first"], "j-speaker")
	late := func() {
		for name, job := range gone {
			speaker.say(name, 0, schema.Control{Join: &schema.Join{Job: job, Host: "test"}})
		}
	}
	for _, run := range []struct {
		name  string
		lanes int
	}{{"j-second", 3}, {"j-third", 4}} {
		c := newControlClient(t, control.URL(), shardtest.SmallJob("again", 1, run.lanes), run.name)
		c.conn = speaker.conn
		late()
		answer := c.hear("an answer", func(c schema.Control) bool { return c.Joined != nil || c.Refused != nil })
		if answer.Joined == nil {
			t.Fatalf("%s: %+v, want that it is joined", run.name, answer.Refused)
		}
		late()
		c.say("t0", answer.Joined.RunID, schema.Control{Leave: &schema.Leave{}})
		gone[run.name] = c.job
	}
	late()
	_, registered := buckets(t, control.URL(), longLease)
	eventually(t, "nothing is registered", func() bool {
		return len(running(t, registered)) == 0 && len(a.Stats().Jobs)+len(b.Stats().Jobs) == 0 &&
			a.Stats().Memory+b.Stats().Memory == 0
	})
}

// A ps whose data server is the cluster of others hears what is sent there to their shards. It says nothing of that,
// neither in a job that it keeps shards of, nor in one that only others may know.
func TestFramesForAnotherAreNotRefused(t *testing.T) {
	b := startServer(t, Config{ID: "b", ControlToken: "the-token-of-peers"})
	// whose shards have the lower numbers
	a := mustStart(t, Config{ID: "a", Shards: 2, ControlToken: "the-token-of-peers", NATS: b.URL()})
	c := newControlClient(t, b.URL(), shardtest.SmallJob("both", 1, 1), "j-a")
	if j := c.join(); len(j.Servers) != 2 || j.Servers[0].ID != "a" {
		t.Fatalf("%+v, want that a is the first", j.Servers)
	}
	eventually(t, "both have shards, and know of each other", func() bool {
		return a.Stats().Memory > 0 && b.Stats().Memory > 0 && !b.registry.alone.Load()
	})
	const keys = 1 << 17 // 1 MiB, which nothing else here comes near to
	heard := b.Stats().Bytes
	hostile := newPublisher(t, b, "both")
	for _, job := range []string{"both", "elsewhere"} {
		hostile.send(fabric.At(job, "t0", fabric.KindLookup, "s0").WithBatch(1).String(),
			shardtest.NewFrame(t, schema.Layout{Kind: schema.KindLookup, Keys: keys}).Seal())
	}
	eventually(t, "b hears both", func() bool { return b.Stats().Bytes >= heard+2*8*keys })
	b.Close() // which waits for whoever works on them
	for reason, n := range b.Stats().Reasons {
		if n > 0 && schema.Reason(reason) != schema.ReasonOK {
			t.Errorf("%d are refused: %v", n, schema.Reason(reason))
		}
	}
}

// A ps that ends while it keeps shards ends the job, whose trainers are told which ps it was; so does one that is
// started anew, though the lease of the first has not run out.
func TestLostShardServerIsNamed(t *testing.T) { testkit.Waits(t, lostShardServerIsNamed) }

func lostShardServerIsNamed(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	a := mustStart(t, Config{NATS: control.URL(), ID: "a"})
	b := mustStart(t, Config{NATS: control.URL(), ID: "b"})
	c := newControlClient(t, control.URL(), shardtest.SmallJob("first", 2, 2), "j-a")
	c.join()
	owner, other := whoCoordinates(t, a, b) // the job is lost by the one that does not
	id := other.registry.self.ID
	other.Close()
	f := c.hear("the failure", isFailed).Ended
	// that it shuts down, or has, if it did not know of the job yet
	if f.Member != schema.ServerMember(id) || !strings.Contains(f.Text, "ps "+id) {
		t.Errorf("%+v, want one that names ps %s", f, id)
	}
	eventually(t, "the job is freed", func() bool { return owner.Stats().Memory == 0 && len(owner.Stats().Jobs) == 0 })

	other = mustStart(t, Config{NATS: control.URL(), ID: id})
	c = newControlClient(t, control.URL(), shardtest.SmallJob("second", 2, 2), "j-b")
	c.join()
	_, other = whoCoordinates(t, owner, other)
	kill(other)
	_ = mustStart(t, Config{NATS: control.URL(), ID: other.registry.self.ID, Port: portOf(t, other)})
	f = c.hear("the failure", isFailed).Ended
	if !strings.Contains(f.Text, "ps "+other.registry.self.ID) || !strings.Contains(f.Text, "started anew") {
		t.Errorf("%+v, want one that says that ps %s was started anew", f, other.registry.self.ID)
	}
}

// whoCoordinates tells which of two ps coordinates the one job that there is.
func whoCoordinates(t testing.TB, a, b *Server) (owner, other *Server) {
	t.Helper()
	eventually(t, "one of them coordinates", func() bool { return len(a.Stats().Jobs)+len(b.Stats().Jobs) == 1 })
	if len(a.Stats().Jobs) == 1 {
		return a, b
	}
	return b, a
}

// kill ends a server without a word, as a signal 9 would: nothing is said or taken back.
func kill(s *Server) {
	s.control.Close()
	s.Close()
}

func portOf(t testing.TB, s *Server) int {
	t.Helper()
	var port int
	_, err := fmt.Sscanf(s.URL()[strings.LastIndex(s.URL(), ":"):], ":%d", &port)
	must(t, err)
	return port
}

// One id is one ps: a second is told where the first is. One that was lost without a word gives its id up with its
// lease.
func TestOneServerForEachID(t *testing.T) { testkit.Waits(t, oneServerForEachID) }

func oneServerForEachID(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	first := mustStart(t, Config{NATS: control.URL(), ID: "a"})
	_, err := startAt(t, Config{NATS: control.URL(), ID: "a"})
	if !errors.Is(err, errTaken) || !strings.Contains(err.Error(), first.URL()) ||
		!strings.Contains(err.Error(), "want another id") {
		t.Fatalf("%v, want that the id is taken, by whom, and what to do", err)
	}
	kill(first)
	second := mustStart(t, Config{NATS: control.URL(), ID: "a"})
	servers, _ := buckets(t, control.URL(), leaseTime)
	e, err := servers.Get(context.Background(), "a")
	must(t, err)
	var there leaseRecord
	must(t, json.Unmarshal(e.Value, &there))
	if there.URL != second.URL() {
		t.Errorf("%+v, want the second, at %s", there, second.URL())
	}
}

// A job whose coordinator was lost without a word does not hold its name: whoever joins next registers it anew, and one
// that nobody asks for again is swept away.
func TestNamesOfDeadJobsAreFree(t *testing.T) { testkit.Waits(t, namesOfDeadJobsAreFree) }

func namesOfDeadJobsAreFree(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	first := mustStartFor(t, Config{NATS: control.URL(), ID: "a"}, shortLease)
	runs := map[string]schema.RunID{}
	for _, name := range []string{"again", "never"} {
		runs[name] = newControlClient(t, control.URL(), shardtest.SmallJob(name, 1, 1), "j-"+name).join().RunID
	}
	_, registered := buckets(t, control.URL(), shortLease)
	if names := running(t, registered); len(names) != 2 {
		t.Fatalf("registered: %v", names)
	}
	kill(first)
	mustStartFor(t, Config{NATS: control.URL(), ID: "b"}, shortLease)
	joined := newControlClient(t, control.URL(), shardtest.SmallJob("again", 1, 1), "j-again").join()
	if joined.RunID == runs["again"] || joined.Servers[0].ID != "b" {
		t.Errorf("%+v, want another run, on b", joined)
	}
	eventually(t, "the other name is free", func() bool { return slices.Equal(running(t, registered), []string{"again"}) })
}

// A control server that was started anew has lost all that was written down, and is told again. Jobs go on.
func TestRegistryIsWrittenAgain(t *testing.T) { testkit.Waits(t, registryIsWrittenAgain) }

func registryIsWrittenAgain(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	url := control.URL()
	a, b := mustStart(t, Config{NATS: url, ID: "a"}), mustStart(t, Config{NATS: url, ID: "b"})
	c := newControlClient(t, url, shardtest.SmallJob("kept", 2, 2), "j-a")
	run := c.join().RunID
	eventually(t, "both have shards", func() bool { return a.Stats().Memory > 0 && b.Stats().Memory > 0 })
	port := 0
	_, err := fmt.Sscanf(url[strings.LastIndex(url, ":"):], ":%d", &port)
	must(t, err)
	control.Close()
	eventually(t, "the loss is noticed", a.controlLost.Load)
	startControl(t, fabric.ServerConfig{Port: port})
	servers, registered := buckets(t, url, leaseTime)
	eventually(t, "both are announced again",
		func() bool { return slices.Equal(announced(t, servers), []string{"a", "b"}) })
	eventually(t, "the job is written down again",
		func() bool { return slices.Equal(running(t, registered), []string{"kept"}) })
	eventually(t, "the trainer is there again", func() bool { return c.conn.Flush(t.Context()) == nil })
	if again := c.join(); again.RunID != run {
		t.Errorf("run %d, want that of before, %d", again.RunID, run)
	}
	second := newControlClient(t, url, shardtest.SmallJob("kept", 2, 2), "j-b")
	if joined := second.join(); joined.RunID != run {
		t.Errorf("the second trainer was given run %d, want %d", joined.RunID, run)
	}
	second.hear("the start", func(c schema.Control) bool { return c.Start != nil || c.Joined != nil && c.Joined.Started })
}

// Where a ps cannot find a place it says what to do.
func TestControlServersThatDoNotServe(t *testing.T) {
	plain, err := fabric.StartServer(fabric.ServerConfig{})
	must(t, err)
	t.Cleanup(plain.Close)
	_, err = startAt(t, Config{NATS: plain.URL()})
	if !errors.Is(err, fabric.ErrNoJetStream) || !strings.Contains(err.Error(), "-js") {
		t.Errorf("%v, want that JetStream is missing and how to set it", err)
	}
	_, err = startAt(t, Config{NATS: "nats://me:secret@127.0.0.1:1"})
	if !errors.Is(err, fabric.ErrNoServer) || !strings.Contains(err.Error(), "127.0.0.1:1") ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("%v, want the address without the password", err)
	}
	for _, c := range []struct {
		config Config
		says   string
	}{
		{Config{ID: "A b"}, "id"},
		{Config{NATS: "nats://x", Advertise: "there"}, "advertise"},
		{Config{NATSCredsFile: "x"}, "nats_creds"},
	} {
		if err := c.config.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want something of %s", c.config, err, c.says)
		}
	}
}

// Buckets that cannot be opened again, because the control server is lost once more, leave a registry that fails and
// does not panic.
func TestRegistryOutlivesFailedOpening(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	c, err := fabric.DialControl(context.Background(), fabric.Config{URL: control.URL(), Name: "ps/a"})
	must(t, err)
	t.Cleanup(c.Close)
	r := newRegistry(c, leaseRecord{ID: "a", Shards: 1}, shortLease, func() int64 { return 0 }, nil,
		slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, r.open(ctx))
	control.Stop()
	soon, cancelSoon := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancelSoon()
	if err := r.openBuckets(soon); err == nil {
		t.Fatal("buckets of a server that has ended are open")
	}
	if err := r.renew(soon); err == nil {
		t.Error("announced at a server that has ended")
	}
	r.drain(soon)
}
