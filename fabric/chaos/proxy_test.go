package chaos

import (
	"bytes"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
)

const (
	toServer = "CONNECT {\"name\":\"j/t0\",\"verbose\":false}\r\nSUB gradbus.v1.j.*.mean.all.> 1\r\nPING\r\n" +
		"PUB gradbus.v1.j.t0.dense.s0.1.2 5\r\nab\r\ne\r\nPUB a.b inbox 0\r\n\r\nHPUB x 12 " +
		"14\r\nNATS/1.0\r\n\r\nhi\r\nUNSUB 1\r\npub lower 1\r\nz\r\nPONG\r\n"
	fromServer = "INFO {\"server_id\":\"x\",\"max_payload\":8388608}\r\nPONG\r\n+OK\r\nMSG gradbus.v1.j.s0.mean.all.1.2 " +
		"1 3\r\nxyz\r\n" +
		"MSG a.b 2 reply 1\r\n\n\r\nHMSG x 3 12 14\r\nNATS/1.0\r\n\r\nhi\r\n-ERR 'no'\r\nPING\r\n"
)

// Without rules a stream passes byte for byte, however it is cut up on the way.
func TestStreamsPassUnchanged(t *testing.T) {
	e := newEnds(t, 1)
	for _, c := range []struct {
		direction Direction
		text      string
	}{{ToServer, toServer}, {FromServer, fromServer}} {
		if got := e.pass(c.direction, c.text, len(c.text)); string(got) != c.text {
			t.Errorf("%v: got %q, want %q", c.direction, got, c.text)
		}
		for i := range len(c.text) {
			from := e.member
			if c.direction == FromServer {
				from = e.server
			}
			if _, err := io.WriteString(from, c.text[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
		if got := e.pass(c.direction, "", len(c.text)); string(got) != c.text {
			t.Errorf("%v, byte by byte: got %q, want %q", c.direction, got, c.text)
		}
	}
	want := map[string]Counts{"dense": {Messages: 2, Bytes: 10}, Other: {Messages: 6, Bytes: 6},
		"": {Messages: 8, Bytes: 16}, "mean": {}}
	for kind, want := range want {
		if got := e.proxy.Counts(ToServer, kind); got != want {
			t.Errorf("to server, %q: %+v, want %+v", kind, got, want)
		}
	}
	if got, want := e.proxy.Counts(FromServer, "mean"), (Counts{Messages: 2, Bytes: 6}); got != want {
		t.Errorf("from server, mean: %+v, want %+v", got, want)
	}
}

func publication(i int) string {
	payload := fmt.Sprintf("payload %d", i)
	return fmt.Sprintf("PUB gradbus.v1.j.t0.dense.s0.1.%d %d\r\n%s\r\n", i, len(payload), payload)
}

const mark = "PING\r\n"

func TestDrop(t *testing.T) {
	e := newEnds(t, 1, Rule{Direction: ToServer, Kinds: []string{"dense"}, Drop: 1})
	other := "PUB gradbus.v1.j.t0.sparse.s0.1.2 1\r\nx\r\n"
	if got := e.pass(ToServer, publication(0)+publication(1)+other+mark, len(other+mark)); string(got) != other+mark {
		t.Errorf("got %q", got)
	}
	if got, want := e.proxy.Counts(ToServer, "dense"), (Counts{Messages: 2, Bytes: 18, Dropped: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestRepeat(t *testing.T) {
	e := newEnds(t, 1, Rule{Direction: ToServer, Repeat: 1})
	want := publication(0) + publication(0) + mark
	if got := e.pass(ToServer, publication(0)+mark, len(want)); string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// One bit of the payload changes and nothing of the framing does, header blocks included.
func TestFlip(t *testing.T) {
	e := newEnds(t, 1, Rule{Direction: ToServer, Flip: 1})
	changed := map[int]bool{}
	for i := range 200 {
		in := fmt.Sprintf("HPUB gradbus.v1.j.t0.dense.s0.1.%d 12 16\r\nNATS/1.0\r\n\r\n1234\r\n", i)
		got, n, at := e.pass(ToServer, in, len(in)), 0, 0
		for j := range got {
			if d := bits.OnesCount8(got[j] ^ in[j]); d > 0 {
				n, at = n+d, len(in)-j
				changed[8*at+bits.TrailingZeros8(got[j]^in[j])] = true
			}
		}
		if n != 1 || at < 3 || at > 6 {
			t.Fatalf("%d bits changed, the last %d bytes before the end: %q", n, at, got)
		}
	}
	if len(changed) < 24 {
		t.Errorf("only %d different bits of 32 were changed", len(changed))
	}
	empty := "PUB gradbus.v1.j.t0.dense.s0.1.2 0\r\n\r\n"
	if got := e.pass(ToServer, empty, len(empty)); string(got) != empty {
		t.Errorf("empty: got %q", got)
	}
	if got := e.proxy.Counts(ToServer, "dense"); got.Flipped != 200 || got.Messages != 201 {
		t.Errorf("%+v", got)
	}
}

// What is delayed or put behind arrives all the same, each once and whole.
func TestDelayAndReorder(t *testing.T) {
	for name, rule := range map[string]Rule{
		"delay":   {Direction: ToServer, Delay: 0.5, DelayMax: 5 * time.Millisecond},
		"reorder": {Direction: ToServer, Reorder: 0.5, DelayMax: 5 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, 2, rule)
			const messages = 500
			var all strings.Builder
			for i := range messages {
				all.WriteString(publication(i))
			}
			go func() { _, _ = io.WriteString(e.member, all.String()) }()
			seen, inversions, last := map[string]bool{}, 0, -1
			for _, raw := range e.frames(messages) {
				var i, size int
				if _, err := fmt.Sscanf(string(raw), "PUB gradbus.v1.j.t0.dense.s0.1.%d %d", &i, &size); err != nil ||
					string(raw) != publication(i) {
					t.Fatalf("got %q: %v", raw, err)
				}
				if i < last {
					inversions++
				}
				seen[string(raw)], last = true, i
			}
			if c := e.proxy.Counts(ToServer, ""); len(seen) != messages || c.Delayed+c.Reordered < messages/3 || c.Spared > 0 {
				t.Errorf("%d different messages of %d; %v", len(seen), messages, c)
			}
			if inversions < 20 {
				t.Errorf("only %d messages arrived before an earlier one", inversions)
			}
			eventually(t, "nothing is held back", func() bool { return e.proxy.Holds() == 0 })
		})
	}
}

// A lone message that is put behind later ones does not wait for them for ever.
func TestReorderWithoutSuccessor(t *testing.T) {
	e := newEnds(t, 1, Rule{Direction: ToServer, Reorder: 1, DelayMax: time.Millisecond})
	if got := e.pass(ToServer, publication(3), len(publication(3))); string(got) != publication(3) {
		t.Errorf("got %q", got)
	}
}

// What is held back is bounded: beyond, messages pass.
func TestHeldIsBounded(t *testing.T) {
	e := newEnds(t, 1, Rule{Direction: ToServer, Delay: 1, DelayMax: 1<<63 - 1})
	var all strings.Builder
	for i := range heldMessagesMax + 10 {
		all.WriteString(publication(i))
	}
	go func() { _, _ = io.WriteString(e.member, all.String()) }()
	e.frames(10)
	if got, want := e.proxy.Counts(ToServer, ""), uint64(10); got.Spared != want || got.Delayed != heldMessagesMax ||
		e.proxy.Holds() != heldMessagesMax {
		t.Errorf("%v; %d held", got, e.proxy.Holds())
	}
}

// fates lists what happens to messages under a seed, from two members whose messages come in any order.
func fates(seed uint64, order *rand.Rand) (all map[string][]fate, counts [flip + 1]int) {
	rule := Rule{Drop: 0.05, Repeat: 0.05, Delay: 0.05, Reorder: 0.05, Flip: 0.05}
	d, left := newDice(seed), map[string]int{}
	for i := range 200 {
		left[fmt.Sprintf("gradbus.v1.j.t%d.dense.s0.%d.0", i%2, i/2)] = 100
	}
	var subjects []string
	for i := range 200 {
		subjects = append(subjects, fmt.Sprintf("gradbus.v1.j.t%d.dense.s0.%d.0", i%2, i/2))
	}
	all = map[string][]fate{}
	for len(subjects) > 0 {
		i := order.IntN(len(subjects))
		s := subjects[i]
		f := rule.fate(float64(d.roll(ToServer, "j/"+s[13:15], []byte(s))>>11) / (1 << 53))
		all[s] = append(all[s], f)
		counts[f]++
		if left[s]--; left[s] == 0 {
			subjects[i] = subjects[len(subjects)-1]
			subjects = subjects[:len(subjects)-1]
		}
	}
	return all, counts
}

// A seed fixes every decision, whatever the order in which messages of different subjects come, and rates are as told.
func TestSeedFixesDecisions(t *testing.T) {
	a, counts := fates(7, rand.New(rand.NewPCG(1, 1)))
	b, _ := fates(7, rand.New(rand.NewPCG(2, 2)))
	c, _ := fates(8, rand.New(rand.NewPCG(1, 1)))
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Error("another order gave other decisions")
	}
	if fmt.Sprint(a) == fmt.Sprint(c) {
		t.Error("another seed gave the same decisions")
	}
	for f := drop; f <= flip; f++ { // 20,000 draws of 0.05: 1000 with a standard deviation of 31
		if n := counts[f]; n < 800 || n > 1200 {
			t.Errorf("fate %d: %d of 20000, want about 1000", f, n)
		}
	}
}

func TestDiceIsBounded(t *testing.T) {
	d := newDice(1)
	for i := range 4 * subjectsMax {
		d.roll(ToServer, "", fmt.Append(nil, i))
	}
	if len(d.now) > subjectsMax || len(d.before) > subjectsMax {
		t.Errorf("remembers %d and %d subjects", len(d.now), len(d.before))
	}
}

func TestRulesByMember(t *testing.T) {
	e := newEnds(t, 1, Rule{Direction: ToServer, Members: []string{"j/t1"}, Drop: 1})
	in := "CONNECT {\"name\":\"j/t0\"}\r\n" + publication(1) + mark
	if got := e.pass(ToServer, in, len(in)); string(got) != in {
		t.Errorf("t0: got %q", got)
	}
	e.connect()
	connect := "CONNECT {\"name\":\"j/t1\"}\r\n"
	if got := e.pass(ToServer, connect+publication(1)+mark, len(connect+mark)); string(got) != connect+mark {
		t.Errorf("t1: got %q", got)
	}
}

func TestCutRefuseRedirect(t *testing.T) {
	e := newEnds(t, 1)
	e.pass(ToServer, mark, len(mark))
	e.proxy.Cut()
	if n, err := e.member.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes of a cut connection", n)
	}
	e.proxy.Refuse(true)
	refused, err := e.proxy.listener.Addr(), error(nil)
	eventually(t, "a connection is refused", func() bool {
		var c io.ReadCloser
		if c, err = dialRaw(refused.String()); err != nil {
			return false
		}
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
		return err != nil && e.proxy.Totals().Refused > 0
	})
	e.proxy.Refuse(false)
	other := newEnds(t, 1)
	if err := e.proxy.Redirect("nats://" + other.listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if err := e.proxy.Redirect("127.0.0.1:1"); err == nil {
		t.Error("redirected to an address without a scheme")
	}
	e.listener = other.listener
	e.connect()
	e.pass(ToServer, mark, len(mark))
	if got := e.proxy.Totals(); got.Connections != 2 || got.Cut != 1 || got.Broken != 0 {
		t.Errorf("totals %+v", got)
	}
}

// A stalled direction is not read: the sender's socket fills. The other direction goes on.
func TestStall(t *testing.T) {
	e := newEnds(t, 1)
	e.pass(ToServer, "CONNECT {\"name\":\"j/t0\"}\r\n", 25)
	e.proxy.Stall(FromServer, "j/t0", "")
	text := strings.Repeat("MSG a 1 65536\r\n"+strings.Repeat("x", 1<<16)+"\r\n", 224) // 14 MiB: more than sockets hold
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(e.server, text)
		wrote <- err
	}()
	e.pass(ToServer, mark, len(mark))
	if n := e.proxy.Counts(FromServer, "").Messages; n != 0 {
		t.Errorf("%d messages passed a stall", n)
	}
	select {
	case err := <-wrote:
		t.Fatalf("14 MiB were taken in by nobody: %v", err)
	default:
	}
	e.proxy.Resume()
	if got := e.pass(FromServer, "", len(text)); !bytes.Equal(got, []byte(text)) {
		t.Error("the stream is not what was sent")
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// A stall of one kind begins with its first message, and holds up what is behind it.
func TestStallOfAKind(t *testing.T) {
	e := newEnds(t, 1)
	e.proxy.Stall(ToServer, "", "dense")
	heartbeat := "PUB gradbus.v1.j.t0.beat.all 1\r\nx\r\n"
	if got := e.pass(ToServer, heartbeat+publication(1)+mark, len(heartbeat)); string(got) != heartbeat {
		t.Errorf("got %q", got)
	}
	if n := e.proxy.Counts(ToServer, "dense").Messages; n != 0 {
		t.Errorf("%d messages passed a stall", n)
	}
	e.proxy.Resume()
	if got := e.pass(ToServer, "", len(publication(1)+mark)); string(got) != publication(1)+mark {
		t.Errorf("got %q", got)
	}
}

// What is not the protocol ends its connection, and no other.
func TestBrokenFraming(t *testing.T) {
	for _, text := range []string{
		"PUB\r\n", "PUB a\r\n", "PUB a b\r\n", "PUB a -1\r\n", "PUB a 99999999\r\n", "HPUB a 5 2\r\n12\r\n",
		"PUB a 2\r\nabcd\r\n",
		strings.Repeat("x", 2*lineBytesMax),
	} {
		e := newEnds(t, 1)
		go func() { _, _ = io.WriteString(e.member, text) }()
		if got, err := io.ReadAll(e.server); err == nil && len(got) > 0 {
			t.Errorf("%.20q: passed %.20q", text, got)
		}
		eventually(t, "the connection counts as broken", func() bool { return e.proxy.Totals().Broken == 1 })
	}
}

// A real server and real members do not notice a proxy without rules.
func TestMembersThroughAProxy(t *testing.T) {
	server, err := fabric.StartServer(fabric.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	proxy, err := Start(Config{Server: server.URL(), Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	conn, err := fabric.Dial(t.Context(), fabric.Config{URL: proxy.URL(), Name: "j/t0"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got := make(chan int, 100)
	if err := conn.Subscribe(fabric.Pattern("j", fabric.Any, fabric.KindMean, "all", true),
		func(m fabric.Message) { got <- len(m.Data) }); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := conn.Publish(fabric.At("j", "s0", fabric.KindMean, "all").WithBatch(uint64(i)).String(),
			make([]byte, i*1000)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if n := <-got; n != i*1000 {
			t.Fatalf("message %d has %d bytes", i, n)
		}
	}
	if up, down := proxy.Counts(ToServer, "mean"), proxy.Counts(FromServer, "mean"); up.Messages != 100 ||
		down.Messages != 100 {
		t.Errorf("counts %+v and %+v", up, down)
	}
}
