package fabric

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// Guard says what connections from outside this process may do. Connections of this process may do anything.
type Guard struct {
	// PeerToken is a secret; a connection that shows it may do anything, too. With "" no client may.
	PeerToken string
	// Publish lists the patterns that others may publish to, Deny those of them that they may not.
	Publish, Deny []string
	// Member gives the size of the largest message of the member that connections of a name belong to; 0: there is no such
	// member. Names are what clients say of themselves. It is called at once for each connection, and must not wait.
	Member func(name string) (payloadBytes int)
}

// Limits of connections under a Guard. A name has a member's limits for as many connections as a member needs;
// connections beyond them, and connections without a member's name, are guests.
const (
	// memberConnectionsMax is one for control and three for data.
	memberConnectionsMax = 4
	// guestsMax bounds the guests: joining trainers, tools, unauthenticated clients. Beyond it the oldest guest from the
	// address that has most of them is closed; a client of gradbus reconnects by itself.
	guestsMax = 256
	// GuestPayloadBytesMax holds the largest manifest. So large may be the messages of wideGuestsMax guests; the others
	// are cut off beyond narrowPayloadBytesMax, and find more room when they are back.
	GuestPayloadBytesMax  = 1<<20 + 64<<10
	wideGuestsMax         = 16
	narrowPayloadBytesMax = 32 << 10
	// SubsMax bounds the subscriptions of a connection: those of ListenAt for three names and some more. A trainer has
	// some three.
	SubsMax = 32

	// controlLineBytesMax bounds a line of the protocol: a subject with up to 1 KiB of spaces, or a greeting with a token.
	controlLineBytesMax = 2 << 10
	tokenSecretBytesMax = 1 << 10
	// subTokensMax is above subjectTokensMax and what NATS's own protocols take.
	subTokensMax = 12
	// subscriptionBytes is what a subscription takes at most: a subject of controlLineBytesMax and subTokensMax tokens,
	// twice, and what leads to it.
	subscriptionBytes = 11 << 10
	// connectionBytes is what a connection takes that does nothing, in the server and in the runtime.
	connectionBytes = 20 << 10

	// doorEvery is how often the door looks for connections that are silent or gone, and notes who is connected.
	doorEvery = 250 * time.Millisecond
	// silentMax is how long a connection may say nothing where half of ServerConfig.connectionsMax are taken.
	silentMax = time.Second
)

// GuestBytes bounds what guests and silent connections make a server hold, in unfinished messages and subscriptions.
func GuestBytes(connectionsMax int) int64 {
	return wideGuestsMax*GuestPayloadBytesMax + (guestsMax-wideGuestsMax)*narrowPayloadBytesMax +
		guestsMax*SubsMax*subscriptionBytes + int64(connectionsMax)*connectionBytes
}

// MemberBytes is the same for the connections that go by the name of a member.
func MemberBytes(payloadBytes int) int64 {
	return memberConnectionsMax * (int64(max(payloadBytes, GuestPayloadBytesMax)) + SubsMax*subscriptionBytes)
}

// limits are those of one connection; zero is none.
type limits struct {
	payloadBytes int
	subs         int
}

// visitor is a connection that was let in.
type visitor struct {
	name    string
	address string // without the port
	since   time.Time
	guest   bool
	limits
}

// door lets connections in to one NATS server, gives each its limits, and closes clients that keep others out. NATS
// knows limits of single connections only by JWT, so the door writes one for each kind of limits and has the server
// read it.
type door struct {
	guard *Guard // nil: who shows the token may do anything
	log   *slog.Logger
	most  int // connections

	own         [sha256.Size]byte // digests, so that comparing takes the same time for any
	permissions *server.Permissions
	account     nkeys.KeyPair
	user        string // public key

	// mu is held while anything of a client is written that the server reads under its own lock: no other goroutine may
	// end a client while it is held, and shut keeps the server from doing so. Lock order: mu, then the locks of NATS.
	mu   sync.Mutex
	nats *server.Server // nil until it was made
	shut bool
	// what others show; asked for where it is not empty
	asksToken, asksPeer bool
	token, peer         [sha256.Size]byte
	inside              map[uint64]*visitor // by NATS's id of the connection
	rights              map[limits]string   // as JWTs
	tidied              time.Time           // when all were looked over last because there were too many

	seen atomic.Pointer[connected] // the latest, for readers that must not wait for the door

	stop chan struct{}
	done chan struct{}
}

// newDoor makes the door of a server whose own connections show a secret; nil where everybody may do anything.
func newDoor(config *ServerConfig, secret string) (*door, error) {
	if config.Guard == nil && config.Token == "" {
		return nil, nil
	}
	d := &door{
		guard: config.Guard, log: config.Log, most: config.connectionsMax, own: sha256.Sum256([]byte(secret)),
		inside: map[uint64]*visitor{}, rights: map[limits]string{},
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	d.ask(config)
	if d.guard == nil {
		return d, nil
	}
	d.permissions = &server.Permissions{Publish: &server.SubjectPermission{Allow: d.guard.Publish, Deny: d.guard.Deny}}
	var err error
	if d.account, err = nkeys.CreateAccount(); err != nil {
		return nil, err
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	d.user, err = user.PublicKey()
	return d, err
}

// ask has the door ask for the tokens of a configuration. Who is inside stays.
func (d *door) ask(config *ServerConfig) {
	peer := ""
	if config.Guard != nil {
		peer = config.Guard.PeerToken
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asksToken, d.token = config.Token != "", sha256.Sum256([]byte(config.Token))
	d.asksPeer, d.peer = peer != "", sha256.Sum256([]byte(peer))
}

// newSecret draws what the connections of this process show.
func newSecret() string { return rand.Text() }

// open begins to look after the connections of a server, until close.
func (d *door) open(nats *server.Server) {
	d.mu.Lock()
	d.nats = nats
	d.mu.Unlock()
	d.look()
	go d.run()
}

// shutPause is how long a client that dials an ending server is kept waiting for the end.
const shutPause = 250 * time.Millisecond

// close admits no further client. The server ends the present ones.
func (d *door) close() {
	d.mu.Lock()
	was := d.shut
	d.shut = true
	running := d.nats != nil
	d.mu.Unlock()
	if !was {
		close(d.stop)
	}
	if running {
		<-d.done
	}
}

func (d *door) run() {
	defer close(d.done)
	ticker := time.NewTicker(doorEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			d.makeRoom(time.Now())
			d.look()
		case <-d.stop:
			return
		}
	}
}

func is(digest, want [sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare(digest[:], want[:]) == 1
}

// Check implements server.Authentication. A client that greets twice stays what it is.
func (d *door) Check(client server.ClientAuthentication) bool {
	options := client.GetOpts()
	shown := sha256.Sum256([]byte(options.Token))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		d.mu.Unlock()
		time.Sleep(shutPause) // the end of the server ends the connection: to be refused means that the token is wrong
		d.mu.Lock()
		return false
	}
	if d.nats == nil {
		return false
	}
	v := d.inside[client.GetID()]
	switch {
	case is(shown, d.own), d.asksPeer && is(shown, d.peer):
		v = &visitor{}
	case d.asksToken && !is(shown, d.token):
		return false
	case d.guard == nil:
		v = &visitor{}
	case v == nil:
		v = d.receive(options.Name, addressOf(client), time.Now())
	}
	if v.limits != (limits{}) {
		rights, err := d.write(v.limits)
		if err != nil {
			d.log.Error("connection refused, its limits cannot be written", "connection", clip(options.Name), "err", err)
			return false
		}
		options.JWT = rights
		client.RegisterUser(&server.User{Account: d.nats.GlobalAccount(), Permissions: d.permissions})
	}
	d.inside[client.GetID()] = v
	return true
}

// receive finds the limits of a connection that has no special right, and makes room for it.
func (d *door) receive(name, address string, now time.Time) *visitor {
	v := &visitor{name: name, address: address, since: now}
	if d.isMember(v) {
		return v
	}
	v.guest, v.subs = true, SubsMax
	wide, guests := d.guests()
	// A walk over all connections for each greeting would keep all of them waiting.
	if guests >= guestsMax && now.Sub(d.tidied) >= doorEvery {
		d.tidied = now
		d.forget()
		d.promote()
		wide, guests = d.guests()
	}
	if guests >= guestsMax {
		d.evict()
	}
	if v.payloadBytes = narrowPayloadBytesMax; wide < wideGuestsMax {
		v.payloadBytes = GuestPayloadBytesMax
	}
	return v
}

// isMember gives a visitor a member's limits where it goes by the name of one who has not all its connections yet.
func (d *door) isMember(v *visitor) bool {
	if d.guard.Member == nil {
		return false
	}
	payload := d.guard.Member(v.name)
	if payload <= 0 {
		return false
	}
	taken := 0
	for id, there := range d.inside {
		switch {
		case there.guest || there.name != v.name:
		case d.nats.GetClient(id) == nil: // gone
			delete(d.inside, id)
		default:
			taken++
		}
	}
	if taken >= memberConnectionsMax {
		return false
	}
	v.guest, v.limits = false, limits{max(payload, GuestPayloadBytesMax), SubsMax}
	return true
}

func (d *door) guests() (wide, all int) {
	for _, v := range d.inside {
		if v.guest {
			all++
			if v.payloadBytes > narrowPayloadBytesMax {
				wide++
			}
		}
	}
	return wide, all
}

// look notes who is connected.
func (d *door) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.shut {
		d.seen.Store(&connected{names: openNames(d.nats), faded: fadedNames(d.nats), guestBytes: d.held()})
	}
}

// held bounds what the guests who are inside can make the server hold, and the connections that are silent. mu is held.
func (d *door) held() int64 {
	d.forget()
	total := int64(d.nats.NumClients()) * connectionBytes
	for _, v := range d.inside {
		if v.guest {
			total += int64(v.payloadBytes) + int64(v.subs)*subscriptionBytes
		}
	}
	return total
}

// forget takes those off the list who are gone.
func (d *door) forget() {
	for id := range d.inside {
		if d.nats.GetClient(id) == nil {
			delete(d.inside, id)
		}
	}
}

// promote counts guests as members who have become such: a server may hear of a job after its trainers have dialed.
// NATS keeps to the limits that they came with.
func (d *door) promote() {
	for _, v := range d.inside {
		if v.guest {
			d.isMember(v)
		}
	}
}

// evict shows the oldest guest out of those from the address that has most.
func (d *door) evict() {
	from := map[string]int{}
	for _, v := range d.inside {
		if v.guest {
			from[v.address]++
		}
	}
	out := uint64(0)
	for id, v := range d.inside {
		if !v.guest {
			continue
		}
		if there := d.inside[out]; out == 0 ||
			cmp.Or(cmp.Compare(from[there.address], from[v.address]), v.since.Compare(there.since), cmp.Compare(id, out)) < 0 {
			out = id
		}
	}
	if out == 0 {
		return
	}
	d.log.Warn("too many connections of no member of a job; the oldest is closed", "connection", clip(d.inside[out].name),
		"address", d.inside[out].address, "most", guestsMax)
	delete(d.inside, out)
	_ = d.nats.DisconnectClientByID(out) // gone by itself, else
}

// makeRoom ends connections that have said nothing for silentMax, the oldest first, where half of all are taken.
func (d *door) makeRoom(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget()
	tooMany := d.nats.NumClients() - d.most/2
	if tooMany <= 0 || d.shut {
		return
	}
	all, err := d.nats.Connz(&server.ConnzOptions{Limit: math.MaxInt32})
	if err != nil {
		return // only for options that are not used here
	}
	silent := slices.DeleteFunc(all.Conns, func(c *server.ConnInfo) bool {
		return d.inside[c.Cid] != nil || now.Sub(c.Start) < silentMax
	})
	slices.SortFunc(silent, func(a, b *server.ConnInfo) int { return cmp.Compare(a.Cid, b.Cid) })
	for _, c := range silent[:min(tooMany, len(silent))] {
		_ = d.nats.DisconnectClientByID(c.Cid) // gone by itself, else
	}
	if len(silent) > 0 {
		d.log.Warn("half of all connections are taken; those that say nothing are closed", "closed",
			min(tooMany, len(silent)), "most", d.most)
	}
}

// write gives the JWT that says limits, which the server checks as if it came with the client.
func (d *door) write(l limits) (string, error) {
	if text, ok := d.rights[l]; ok {
		return text, nil
	}
	claims := jwt.NewUserClaims(d.user)
	claims.Limits.Payload, claims.Limits.Subs = int64(l.payloadBytes), int64(l.subs)
	text, err := claims.Encode(d.account)
	if err != nil {
		return "", err
	}
	if len(d.rights) >= rightsMax {
		clear(d.rights)
	}
	d.rights[l] = text
	return text, nil
}

// rightsMax bounds the limits that are remembered: one for each size of message of jobs.
const rightsMax = 64

func addressOf(client server.ClientAuthentication) string {
	at := client.RemoteAddress()
	if at == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(at.String())
	if err != nil {
		return at.String()
	}
	return host
}
