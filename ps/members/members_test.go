package members

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"gradbus/fabric"
	"gradbus/fabric/fabrictest"
)

func TestMain(m *testing.M) { fabrictest.Main(m) }

// permissions are, by member and name of the connection, what it may (+) and may not (-) publish (pub) and subscribe to
// (sub). They are written from the subjects of docs/protocol.md, not from the table in the code.
const permissions = `
films films/t3
+ pub gradbus.v1.films.t3.dense.s0.7.2
+ pub gradbus.v1.films.t3.dense.s63.7.2
+ pub gradbus.v1.films.t3.sparse.s0.7.2
+ pub gradbus.v1.films.t3.ack.s0
+ pub gradbus.v1.films.t3.lookup.s0.7
+ pub gradbus.v1.films.t3.pool.s0.7
+ pub gradbus.v1.films.t3.pull.s0
+ pub gradbus.v1.films.t3.reduce.t4.7.2
+ pub gradbus.v1.films.t3.mean.all.7.2
+ pub gradbus.v1.films.t3.ack.t4
+ pub gradbus.v1.films.t3.ctl.coordinator
+ pub gradbus.v1.films.t3.beat.all
+ pub gradbus.v1.films.t3.module.s0.tower
+ pub gradbus.v1.films.t3.replica.s0.7.2
+ pub gradbus.v1.films.t3.fill.s0.7.2
- pub gradbus.v1.films.t4.dense.s0.7.2
- pub gradbus.v1.films.t4.ctl.coordinator
- pub gradbus.v1.films.t4.beat.all
- pub gradbus.v1.films.t30.dense.s0.7.2
- pub gradbus.v1.films.s0.mean.all.7.2
- pub gradbus.v1.films.s0.rows.t4.7
- pub gradbus.v1.films.s0.ack.t4
- pub gradbus.v1.films.s1.state.p-a.7.2
- pub gradbus.v1.films.coordinator.ctl.all
- pub gradbus.v1.films.coordinator.ctl.t4
- pub gradbus.v1.films.coordinator.beat.all
- pub gradbus.v1.films.j-0123456789ab.ctl.coordinator
- pub gradbus.v1.films.p-a.ctl.coordinator
- pub gradbus.v1.films--dense.t3.dense.s0.7.2
- pub gradbus.v1.books.t3.dense.s0.7.2
- pub gradbus.v1.books.t3.ctl.coordinator
- pub gradbus.v1.books.j-0123456789ab.ctl.coordinator
- pub gradbus.v1.ps.t3.ctl.coordinator
- pub gradbus.v1.ps.p-a.beat.all
- pub gradbus.v1.films.t3
- pub gradbus.v2.films.t3.ctl.coordinator
- pub $KV.gradbus-jobs.films
- pub $KV.gradbus-servers.a
- pub $JS.API.INFO
- pub $JS.API.STREAM.PURGE.KV_gradbus-jobs
- pub $JS.ACK.x
- pub $SYS.REQ.SERVER.PING
- pub $SYS.REQ.USER.AUTH
- pub $SYS.REQ.ACCOUNT.PING.CONNZ
- pub $SRV.PING
- pub _INBOX.gradbus.x
- pub _INBOX.x
- pub gradbus-ps.a.report
+ sub gradbus.v1.films.*.*.t3
+ sub gradbus.v1.films.*.*.t3.>
+ sub gradbus.v1.films.*.*.all
+ sub gradbus.v1.films.*.*.all.>
+ sub gradbus.v1.films.coordinator.*.t3
+ sub gradbus.v1.films.coordinator.*.all
+ sub gradbus.v1.films.s0.mean.all.>
+ sub gradbus.v1.films.s0.rows.t3.>
+ sub gradbus.v1.films.s0.ack.t3
+ sub gradbus.v1.films.t4.reduce.t3.>
- sub >
- sub gradbus.>
- sub gradbus.v1.>
- sub gradbus.v1.films.>
- sub gradbus.v1.*.*.*.t3
- sub gradbus.v1.*.*.*.all
- sub gradbus.v1.films.*.*.*
- sub gradbus.v1.films.*.*.t4
- sub gradbus.v1.films.*.*.t4.>
- sub gradbus.v1.films.*.*.s0
- sub gradbus.v1.films.*.dense.s0.>
- sub gradbus.v1.films.*.ctl.coordinator
- sub gradbus.v1.films.coordinator.ctl.j-0123456789ab
- sub gradbus.v1.films.coordinator.ctl.p-a
- sub gradbus.v1.books.*.*.t3
- sub gradbus.v1.books.*.*.all
- sub gradbus.v1.ps.*.*.all
- sub $KV.>
- sub $KV.gradbus-jobs.films
- sub $JS.API.>
- sub $SYS.>
- sub $SYS.REQ.USER.AUTH
- sub $SRV.>
- sub _INBOX.>
- sub _INBOX.gradbus.>

films films/j-0123456789ab
+ pub gradbus.v1.films.j-0123456789ab.ctl.coordinator
- pub gradbus.v1.films.j-ba9876543210.ctl.coordinator
- pub gradbus.v1.films.j-0123456789ab.ctl.t3
- pub gradbus.v1.films.j-0123456789ab.ctl.all
- pub gradbus.v1.films.j-0123456789ab.beat.all
- pub gradbus.v1.films.j-0123456789ab.dense.s0.7.2
- pub gradbus.v1.films.t3.ctl.coordinator
- pub gradbus.v1.films.coordinator.ctl.all
- pub gradbus.v1.books.j-0123456789ab.ctl.coordinator
- pub gradbus.v1.ps.j-0123456789ab.ctl.coordinator
- pub $JS.API.INFO
- pub _INBOX.x
+ sub gradbus.v1.films.coordinator.ctl.j-0123456789ab
- sub gradbus.v1.films.coordinator.ctl.j-ba9876543210
- sub gradbus.v1.films.coordinator.ctl.*
- sub gradbus.v1.films.coordinator.*.j-0123456789ab
- sub gradbus.v1.films.*.ctl.j-0123456789ab
- sub gradbus.v1.films.*.*.all
- sub gradbus.v1.films.*.*.t3
- sub gradbus.v1.*.coordinator.ctl.j-0123456789ab
- sub gradbus.v1.books.coordinator.ctl.j-0123456789ab
- sub _INBOX.gradbus.>
- sub >

films films--dense/t0
+ pub gradbus.v1.films--dense.t0.ctl.coordinator
- pub gradbus.v1.films.t0.ctl.coordinator
+ sub gradbus.v1.films--dense.*.*.t0
- sub gradbus.v1.films.*.*.t0

every books/t0
+ pub gradbus.v1.books.t0.dense.s0.7.2
- pub gradbus.v1.films.t0.dense.s0.7.2
- pub gradbus.v1.ps.t0.ctl.coordinator
+ sub gradbus.v1.books.*.*.t0
- sub gradbus.v1.films.*.*.t0
- sub gradbus.v1.films.*.*.all

anna films/j-0123456789ab
+ pub gradbus.v1.films.j-0123456789ab.ctl.coordinator
- pub gradbus.v1.films.t3.ctl.coordinator
- pub gradbus.v1.films.coordinator.ctl.all
- pub gradbus.v1.books.j-0123456789ab.ctl.coordinator
- pub $KV.gradbus-jobs.films
+ sub gradbus.v1.films.coordinator.ctl.j-0123456789ab
- sub gradbus.v1.films.*.*.all
- sub gradbus.v1.books.coordinator.ctl.j-0123456789ab
- sub >

anna ps/j-0123456789ab
+ pub gradbus.v1.ps.j-0123456789ab.ctl.coordinator
- pub gradbus.v1.ps.p-a.beat.all
+ sub gradbus.v1.ps.coordinator.ctl.j-0123456789ab
- sub gradbus.v1.ps.*.*.all

other-ps ps/b
+ pub gradbus.v1.films.coordinator.ctl.all
+ pub gradbus.v1.films.s0.mean.all.7.2
+ pub gradbus.v1.ps.p-b.beat.all
+ pub $KV.gradbus-servers.b
+ pub $JS.API.INFO
+ sub gradbus.v1.*.*.ctl.coordinator
+ sub gradbus.v1.*.*.beat.all
+ sub gradbus.v1.*.*.*.s0.>
`

// refused are members and names under which they are not let in.
const refused = `
films books/t3
films books/j-0123456789ab
films ps/t3
films ps/j-0123456789ab
films films/coordinator
films films/s0
films films/p-a
films films/t
films films/t3x
films films
films coordinator
films replica/a
films *.*/t3
films films/t3/t4
every ps/t0
every ps/j-0123456789ab
anna films/t3
anna ps/b
anna films/p-a
stranger films/t3
stranger films/j-0123456789ab
`

type party struct {
	list *List
	keys map[string]nkeys.KeyPair
	url  string
}

// newParty starts a server with a members file that has films (a trainer of that job), every (of all jobs), anna (an
// operator) and other-ps, and not stranger.
func newParty(t *testing.T) *party {
	p := &party{keys: map[string]nkeys.KeyPair{}}
	var file strings.Builder
	for _, m := range []Member{{Role: Trainer, Name: "films", Jobs: []string{"films"}},
		{Role: Trainer, Name: "every", Jobs: []string{"*"}}, {Role: Operator, Name: "anna"}, {Role: PS, Name: "other-ps"},
		{Name: "stranger"}} {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		p.keys[m.Name] = pair
		if m.Key, err = pair.PublicKey(); err != nil {
			t.Fatal(err)
		}
		if m.Role != "" {
			file.WriteString(m.Line() + "\n")
		}
	}
	var err error
	if p.list, err = Parse("# members\n\n" + file.String()); err != nil {
		t.Fatal(err)
	}
	server, err := fabric.StartServer(fabric.ServerConfig{JetStream: true, Guard: &fabric.Guard{Grant: p.list.Grant}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	p.url = server.URL()
	return p
}

func (p *party) connect(member, name string) (*nats.Conn, error) {
	pair := p.keys[member]
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	return nats.Connect(p.url, nats.Name(name), nats.Nkey(public, pair.Sign), nats.NoReconnect(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// Every role may do at a real server what the rows above say, and nothing else of them.
func TestPermissions(t *testing.T) {
	p := newParty(t)
	rows, member, name := 0, "", ""
	for line := range strings.SplitSeq(permissions, "\n") {
		words := strings.Fields(line)
		switch len(words) {
		case 2:
			member, name = words[0], words[1]
		case 3:
			rows++
			conn, err := p.connect(member, name)
			if err != nil {
				t.Fatalf("%s as %s: %v", member, name, err)
			}
			if words[1] == "pub" {
				err = conn.Publish(words[2], nil)
			} else {
				_, err = conn.SubscribeSync(words[2])
			}
			if err == nil {
				err = conn.Flush()
			}
			if err == nil {
				err = conn.LastError()
			}
			conn.Close()
			if (err == nil) != (words[0] == "+") {
				t.Errorf("%s as %s: %s: %v", member, name, line, err)
			}
		}
	}
	if rows < 120 {
		t.Errorf("%d rows, want at least 120", rows)
	}
}

// No member gets a name that is not of its role and jobs.
func TestRefusedNames(t *testing.T) {
	p := newParty(t)
	for line := range strings.SplitSeq(strings.TrimSpace(refused), "\n") {
		words := strings.Fields(line)
		if conn, err := p.connect(words[0], words[1]); err == nil {
			conn.Close()
			t.Errorf("%s is let in as %s", words[0], words[1])
		}
	}
}

func TestParse(t *testing.T) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	key, _ := pair.PublicKey()
	seed, _ := pair.Seed()
	for text, want := range map[string]string{
		"trainer a " + key + " films\nps a " + key:       "line 2: member a: its name or key",
		"trainer a " + key:                               "want jobs for a trainer alone",
		"operator a " + key + " films":                   "want jobs for a trainer alone",
		"king a " + key:                                  `role "king": want one of`,
		"trainer a " + string(seed) + " films":           "public half",
		"trainer A " + key + " films":                    `member "A"`,
		"trainer a " + key + " films-*":                  `job "films-*"`,
		"trainer a " + key + " ps":                       "what ps say to each other",
		"trainer a":                                      "want role, name, key",
		"trainer a " + key + " films books":              "want role, name, key",
		"trainer a " + key + " films,":                   `job ""`,
		"# a comment\n\n  ps a " + key + "  \r\nx y z\n": "line 4",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if _, err := Parse(text); strings.Contains(err.Error(), string(seed)) {
			t.Errorf("the error tells a seed: %v", err)
		}
	}
	list, err := Parse("trainer a " + key + " films,books\n")
	if err != nil || !slices.Equal(list.Names(), []string{"a"}) {
		t.Errorf("%+v, %v", list, err)
	}
}
