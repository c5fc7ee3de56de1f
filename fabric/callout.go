package fabric

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Guard limits connections from outside this process. Connections of this process are not limited.
type Guard struct {
	// PeerToken is a secret that lifts the limits of a connection that shows it. If it is "", no client can.
	PeerToken string
	// Publish lists the patterns that other connections may publish to, and Deny exceptions from them.
	Publish, Deny []string
	// Member returns the size of the largest message of the member with a connection's name; 0: there is no such
	// member. Clients choose their names themselves. It is called once for each connection, and must not block.
	Member func(name string) (payloadBytes int)
	// Grant returns the permissions of a connection by its member's key and its name, and nil if the key has none for
	// that name. It is called like Member. If it is nil connections need no key, and have Publish and Deny.
	Grant func(key, name string) *Grant
}

// Grant is what a connection of a member may publish and subscribe to: nothing else, or all without limits as another ps.
type Grant struct {
	All                bool
	Publish, Subscribe []string
}

func (g *Grant) equal(other *Grant) bool {
	return g.All == other.All && slices.Equal(g.Publish, other.Publish) && slices.Equal(g.Subscribe, other.Subscribe)
}

// Limits of connections under a Guard. Connections with a member's name have its limits, up to the number that a member
// needs; further ones, and connections without a member's name, are anonymous clients.
const (
	// memberConnectionsMax is one for control and three for data.
	memberConnectionsMax = 4
	// anonymousMax bounds the anonymous clients: joining trainers, tools, unauthenticated clients. Beyond it the oldest
	// one from the address that has most of them is closed; a client of gradbus reconnects by itself.
	anonymousMax = 256
	// AnonymousPayloadBytesMax fits the largest manifest. wideAnonymousMax clients may send messages of that size; the
	// others are cut off beyond narrowPayloadBytesMax, and may find room when they reconnect.
	AnonymousPayloadBytesMax = 1<<20 + 64<<10
	wideAnonymousMax         = 16
	narrowPayloadBytesMax    = 32 << 10
	// SubsMax bounds the subscriptions of a connection: those of ListenAt for three names and some more. A trainer has
	// about three.
	SubsMax = 32

	// controlLineBytesMax bounds a line of the protocol: a subject with up to 1 KiB of spaces, or a greeting with a
	// token.
	controlLineBytesMax = 2 << 10
	tokenSecretBytesMax = 1 << 10
	// subTokensMax exceeds subjectTokensMax and the length of subjects in NATS's own protocols.
	subTokensMax = 12
	// subscriptionBytes is the most memory of a subscription: a subject of controlLineBytesMax and subTokensMax tokens,
	// twice, and its index.
	subscriptionBytes = 11 << 10
	// connectionBytes is the memory of an idle connection, in the server and in the runtime.
	connectionBytes = 20 << 10

	// lookEvery is the interval at which the callout looks for silent or gone connections, and lists the clients.
	lookEvery = 250 * time.Millisecond
	// silentMax is the time for which a connection may be silent if half of ServerConfig.connectionsMax are in use.
	silentMax = time.Second
)

// AnonymousBytes bounds the memory that anonymous and silent connections make a server use, in unfinished messages and
// subscriptions.
func AnonymousBytes(connectionsMax int) int64 {
	return wideAnonymousMax*AnonymousPayloadBytesMax + (anonymousMax-wideAnonymousMax)*narrowPayloadBytesMax +
		anonymousMax*SubsMax*subscriptionBytes + int64(connectionsMax)*connectionBytes
}

// MemberBytes is the same bound for the connections with the name of a member.
func MemberBytes(payloadBytes int) int64 {
	return memberConnectionsMax * (int64(max(payloadBytes, AnonymousPayloadBytesMax)) + SubsMax*subscriptionBytes)
}

// limits are the limits of one connection; zero: none.
type limits struct {
	payloadBytes int
	subs         int
}

// visitor is an admitted connection.
type visitor struct {
	name            string
	key             string // public, and proved; "": none
	grant           *Grant // of the key; nil without a key
	address         string // without the port
	since           time.Time
	anonymousClient bool
	limits
}

// tokens are digests of the secrets that clients must show, so that comparison takes the same time for any secret.
type tokens struct {
	asksToken, asksPeer bool // required
	token, peer         [sha256.Size]byte
}

// callout answers the auth callout of one embedded NATS server: it admits connections, gives each its permissions and
// limits as a signed user JWT, and closes clients that keep others out. Connections of this process show its own key,
// for which the server asks no callout.
//
// Requests arrive on a connection in an account of their own, which no client can enter, because they contain what
// clients show. They are answered from tokens and mu alone, so a client never waits for anything but other greetings.
type callout struct {
	guard *Guard // nil: connections that show the token are not limited
	log   *slog.Logger
	most  int // largest number of connections

	issuer nkeys.KeyPair // signs answers; the server trusts no other
	key    *Key          // of line
	nats   *server.Server
	line   *nats.Conn
	tokens atomic.Pointer[tokens]
	shut   atomic.Bool

	mu     sync.Mutex          // Lock order: mu, then the locks of NATS
	inside map[uint64]*visitor // by NATS's id of the connection
	tidied time.Time           // last check of all connections because there were too many

	seen atomic.Pointer[connected] // the latest list, for readers that must not wait for mu

	stop chan struct{}
	done chan struct{}
}

// calloutAccount is the account of the callout's own connection. Everything else is in the global account.
const calloutAccount = "gradbus-callout"

// newCallout adds a callout to the options of a server, and own as the key of this process's connections. It returns
// nil, and adds nothing, if connections are not limited.
func newCallout(config *ServerConfig, options *server.Options, own *Key) (*callout, error) {
	if !config.limited() {
		return nil, nil
	}
	issuer, err := nkeys.CreateAccount()
	if err != nil {
		return nil, err
	}
	c := &callout{
		guard: config.Guard, log: config.Log, most: config.connectionsMax, issuer: issuer, inside: map[uint64]*visitor{},
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	c.ask(config)
	if c.key, err = NewKey(); err != nil {
		return nil, err
	}
	account := server.NewAccount(calloutAccount)
	options.Accounts = []*server.Account{account}
	options.AuthCallout = &server.AuthCallout{Account: calloutAccount}
	if options.AuthCallout.Issuer, err = issuer.PublicKey(); err != nil {
		return nil, err
	}
	for _, user := range []struct {
		key     *Key
		account *server.Account // nil: the global one
	}{{own, nil}, {c.key, account}} {
		options.Nkeys = append(options.Nkeys, &server.NkeyUser{Nkey: user.key.public, Account: user.account})
		options.AuthCallout.AuthUsers = append(options.AuthCallout.AuthUsers, user.key.public)
	}
	return c, nil
}

// ask makes the callout require the tokens of a configuration. Admitted connections stay.
func (c *callout) ask(config *ServerConfig) {
	peer := ""
	if config.Guard != nil {
		peer = config.Guard.PeerToken
	}
	c.tokens.Store(&tokens{
		asksToken: config.Token != "", token: sha256.Sum256([]byte(config.Token)),
		asksPeer: peer != "", peer: sha256.Sum256([]byte(peer)),
	})
}

// newSecret draws a name that no other process can guess.
func newSecret() string { return rand.Text() }

// answerersMax bounds the goroutines that answer greetings: a greeting takes some signatures, and no waiting.
const answerersMax = 4

// open answers the callout of a server that does not listen yet, and watches its connections, until close.
func (c *callout) open(on *server.Server) error {
	c.nats = on
	line, err := nats.Connect("", nats.InProcessServer(on), nats.Name(calloutAccount), c.key.option(),
		nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	c.line = line
	for range min(answerersMax, runtime.GOMAXPROCS(0)) {
		if _, err := c.line.QueueSubscribe(server.AuthCalloutSubject, "answerers", c.answer); err != nil {
			return err
		}
	}
	if err := c.line.Flush(); err != nil {
		return err
	}
	c.look()
	go c.run()
	return nil
}

// leave turns further clients away, without the error that would mean a wrong token. The server is about to end the
// present ones.
func (c *callout) leave() {
	if !c.shut.Swap(true) {
		close(c.stop)
	}
}

// close ends the callout of a server that has been shut down.
func (c *callout) close() {
	if c.line != nil {
		c.line.Close()
		<-c.done
	}
}

func (c *callout) run() {
	defer close(c.done)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.makeRoom(time.Now())
			c.look()
		case <-c.stop:
			return
		}
	}
}

func is(digest, want [sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare(digest[:], want[:]) == 1
}

// answer handles a request of the server about one client.
func (c *callout) answer(m *nats.Msg) {
	request, err := jwt.DecodeAuthorizationRequestClaims(string(m.Data))
	if err != nil {
		c.log.Error("greeting not read", "err", err)
		return
	}
	answer := jwt.NewAuthorizationResponseClaims(request.UserNkey)
	answer.Audience = request.Server.ID
	if c.shut.Load() {
		_ = c.nats.DisconnectClientByID(request.ClientInformation.ID) // else it has ended by itself
		answer.Error = "the server ends"
	} else if answer.Jwt, err = c.admit(request); err != nil {
		answer.Error = err.Error()
	}
	text, err := answer.Encode(c.issuer)
	if err == nil {
		err = m.Respond([]byte(text))
	}
	if err != nil && !isClosed(err) {
		c.log.Error("greeting not answered", "connection", clip(request.ConnectOptions.Name), "err", err)
	}
}

// Causes of a refusal, for the server's log. A client learns none.
var (
	errWrongToken = errors.New("wrong token")
	errNoGrant    = errors.New("no member's key, or not for this job and name")
	errSlotHeld   = errors.New("another key holds this slot")
)

// admit returns the user JWT of a client, or why it is refused. A client that greets twice keeps its limits.
func (c *callout) admit(request *jwt.AuthorizationRequestClaims) (string, error) {
	if c.guard != nil && c.guard.Grant != nil {
		return c.admitMember(request)
	}
	asked, shown := c.tokens.Load(), sha256.Sum256([]byte(request.ConnectOptions.Token))
	switch {
	case asked.asksPeer && is(shown, asked.peer):
		return c.write(request, limits{}, &Grant{All: true})
	case asked.asksToken && !is(shown, asked.token):
		return "", errWrongToken
	case c.guard == nil:
		return c.write(request, limits{}, &Grant{All: true})
	}
	limit, err := c.enter(request, "", nil)
	if err != nil {
		return "", err
	}
	return c.write(request, limit, nil)
}

// admitMember admits a client that proves a key. Its grant is looked up after it is among those that recheck sees, so
// none stays whose key is revoked meanwhile.
func (c *callout) admitMember(request *jwt.AuthorizationRequestClaims) (string, error) {
	shown, key := &request.ConnectOptions, request.ConnectOptions.Nkey
	first := c.guard.Grant(key, shown.Name)
	if first == nil || !signed(key, request.ClientInformation.Nonce, shown.SignedNonce) {
		return "", errNoGrant
	}
	limit, err := c.enter(request, key, first)
	if err != nil {
		return "", err
	}
	if grant := c.guard.Grant(key, shown.Name); grant == nil || !grant.equal(first) { // changed meanwhile
		return "", errNoGrant
	}
	return c.write(request, limit, first)
}

// enter registers a client and returns its limits. A name that a connection with another key has is refused.
func (c *callout) enter(request *jwt.AuthorizationRequestClaims, key string, grant *Grant) (limits, error) {
	id, name := request.ClientInformation.ID, request.ConnectOptions.Name
	c.mu.Lock()
	defer c.mu.Unlock()
	if key != "" {
		for other, there := range c.inside {
			if there.name == name && there.key != key && c.nats.GetClient(other) != nil {
				return limits{}, errSlotHeld
			}
		}
	}
	v := c.inside[id]
	if v == nil || v.name != name || v.key != key {
		delete(c.inside, id)
		if grant != nil && grant.All {
			v = &visitor{name: name}
		} else {
			v = c.receive(name, request.ClientInformation.Host, time.Now())
		}
		v.key, v.grant = key, grant
		c.inside[id] = v
	}
	return v.limits, nil
}

// recheck closes the connections of keys whose grants are gone or have changed.
func (c *callout) recheck() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, v := range c.inside {
		if v.key == "" {
			continue
		}
		if now := c.guard.Grant(v.key, v.name); now == nil || !now.equal(v.grant) {
			delete(c.inside, id)
			_ = c.nats.DisconnectClientByID(id) // else it has ended by itself
		}
	}
}

// write returns a signed user JWT. A nil grant stands for the guard's own permissions.
func (c *callout) write(request *jwt.AuthorizationRequestClaims, limit limits, grant *Grant) (string, error) {
	user := jwt.NewUserClaims(request.UserNkey)
	user.Audience = server.DEFAULT_GLOBAL_ACCOUNT
	if limit != (limits{}) {
		user.Limits.Payload, user.Limits.Subs = int64(limit.payloadBytes), int64(limit.subs)
	}
	switch {
	case grant == nil:
		user.Pub = jwt.Permission{Allow: c.guard.Publish, Deny: c.guard.Deny}
	case !grant.All:
		user.Pub, user.Sub = permission(grant.Publish), permission(grant.Subscribe)
	}
	return user.Encode(c.issuer)
}

// permission allows subjects, and nothing else: an empty list in a JWT allows everything.
func permission(subjects []string) jwt.Permission {
	if len(subjects) == 0 {
		return jwt.Permission{Deny: []string{All}}
	}
	return jwt.Permission{Allow: subjects}
}

// receive finds the limits of a connection without special rights, and makes room for it.
func (c *callout) receive(name, address string, now time.Time) *visitor {
	v := &visitor{name: name, address: address, since: now}
	if c.isMember(v) {
		return v
	}
	v.anonymousClient, v.subs = true, SubsMax
	wide, anonymous := c.anonymous()
	// Checking all connections for each greeting would delay all of them.
	if anonymous >= anonymousMax && now.Sub(c.tidied) >= lookEvery {
		c.tidied = now
		c.forget()
		c.promote()
		wide, anonymous = c.anonymous()
	}
	if anonymous >= anonymousMax {
		c.evict()
	}
	if v.payloadBytes = narrowPayloadBytesMax; wide < wideAnonymousMax {
		v.payloadBytes = AnonymousPayloadBytesMax
	}
	return v
}

// isMember gives a visitor a member's limits if it has the name of one that does not have all its connections yet.
func (c *callout) isMember(v *visitor) bool {
	if c.guard.Member == nil {
		return false
	}
	payload := c.guard.Member(v.name)
	if payload <= 0 {
		return false
	}
	taken := 0
	for id, there := range c.inside {
		switch {
		case there.anonymousClient || there.name != v.name:
		case c.nats.GetClient(id) == nil: // gone
			delete(c.inside, id)
		default:
			taken++
		}
	}
	if taken >= memberConnectionsMax {
		return false
	}
	v.anonymousClient, v.limits = false, limits{max(payload, AnonymousPayloadBytesMax), SubsMax}
	return true
}

func (c *callout) anonymous() (wide, all int) {
	for _, v := range c.inside {
		if v.anonymousClient {
			all++
			if v.payloadBytes > narrowPayloadBytesMax {
				wide++
			}
		}
	}
	return wide, all
}

// look lists the clients.
func (c *callout) look() {
	c.mu.Lock()
	held := c.held()
	c.mu.Unlock()
	own, err := c.line.GetClientID()
	if err != nil {
		return // the server ends
	}
	c.seen.Store(&connected{names: openNames(c.nats, own), faded: fadedNames(c.nats), anonymousBytes: held})
}

// held bounds the memory that the present anonymous and silent connections can make the server use. The caller holds
// mu.
func (c *callout) held() int64 {
	c.forget()
	total := int64(c.nats.NumClients()) * connectionBytes
	for _, v := range c.inside {
		if v.anonymousClient {
			total += int64(v.payloadBytes) + int64(v.subs)*subscriptionBytes
		}
	}
	return total
}

// forget removes connections that have ended.
func (c *callout) forget() {
	for id := range c.inside {
		if c.nats.GetClient(id) == nil {
			delete(c.inside, id)
		}
	}
}

// promote counts anonymous clients as members if they have become such: a server may learn of a job after its trainers
// have dialed. NATS keeps the limits that they were admitted with.
func (c *callout) promote() {
	for _, v := range c.inside {
		if v.anonymousClient {
			c.isMember(v)
		}
	}
}

// evict closes the oldest one from the address that has most guests.
func (c *callout) evict() {
	from := map[string]int{}
	for _, v := range c.inside {
		if v.anonymousClient {
			from[v.address]++
		}
	}
	out := uint64(0)
	for id, v := range c.inside {
		if !v.anonymousClient {
			continue
		}
		if there := c.inside[out]; out == 0 ||
			cmp.Or(cmp.Compare(from[there.address], from[v.address]), v.since.Compare(there.since), cmp.Compare(id, out)) < 0 {
			out = id
		}
	}
	if out == 0 {
		return
	}
	c.log.Warn("too many connections of no member of a job; the oldest is closed", "connection", clip(c.inside[out].name),
		"address", c.inside[out].address, "most", anonymousMax)
	delete(c.inside, out)
	_ = c.nats.DisconnectClientByID(out) // else it has ended by itself
}

// makeRoom closes connections that have been silent for silentMax, the oldest first, if half of all are in use. Those
// that have greeted wait for an answer.
func (c *callout) makeRoom(now time.Time) {
	tooMany := c.nats.NumClients() - c.most/2
	if tooMany <= 0 {
		return
	}
	all, err := c.nats.Connz(&server.ConnzOptions{Limit: math.MaxInt32})
	if err != nil {
		return // only for options that are not used here
	}
	silent := slices.DeleteFunc(all.Conns, func(there *server.ConnInfo) bool {
		return there.Lang != "" || c.has(there.Cid) || now.Sub(there.Start) < silentMax
	})
	slices.SortFunc(silent, func(a, b *server.ConnInfo) int { return cmp.Compare(a.Cid, b.Cid) })
	for _, there := range silent[:min(tooMany, len(silent))] {
		_ = c.nats.DisconnectClientByID(there.Cid) // else it has ended by itself
	}
	if len(silent) > 0 {
		c.log.Warn("half of all connections are taken; those that say nothing are closed", "closed",
			min(tooMany, len(silent)), "most", c.most)
	}
}

func (c *callout) has(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inside[id] != nil
}
