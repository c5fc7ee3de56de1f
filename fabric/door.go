package fabric

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"gradbus/internal/regular"
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

	// doorEvery is the interval at which the door looks for silent or gone connections, and lists the clients.
	doorEvery = 250 * time.Millisecond
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
	address         string // without the port
	since           time.Time
	anonymousClient bool
	limits
}

// door admits connections to one NATS server, gives each its limits, and closes clients that keep others out. NATS
// supports limits of single connections only by JWT, so the door writes one for each set of limits and passes it to the
// server.
type door struct {
	guard *Guard // nil: connections that show the token are not limited
	log   *slog.Logger
	most  int // largest number of connections

	own         [sha256.Size]byte // digests, so that comparison takes the same time for any secret
	permissions *server.Permissions
	account     nkeys.KeyPair
	user        string // public key

	// mu is held while the door writes a field of a client that the server reads under its own lock: no other goroutine
	// may end a client while it is held, and shut keeps the server from doing so. Lock order: mu, then the locks of
	// NATS.
	mu   sync.Mutex
	nats *server.Server // nil until it is made
	shut bool
	// Secrets of others; required if not empty.
	asksToken, asksPeer bool
	token, peer         [sha256.Size]byte
	inside              map[uint64]*visitor // by NATS's id of the connection
	rights              map[limits]string   // as JWTs
	tidied              time.Time           // last check of all connections because there were too many

	seen atomic.Pointer[connected] // the latest list, for readers that must not wait for the door

	stop chan struct{}
	done chan struct{}
}

// newDoor makes the door of a server whose own connections show a secret; nil if connections are not limited.
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

// ask makes the door require the tokens of a configuration. Admitted connections stay.
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

// newSecret draws the secret of this process's connections.
func newSecret() string { return rand.Text() }

// open begins to watch the connections of a server, until close.
func (d *door) open(nats *server.Server) {
	d.mu.Lock()
	d.nats = nats
	d.mu.Unlock()
	d.look()
	go d.run()
}

// shutPause is the time for which a client that dials an ending server is kept waiting for the end.
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

// Check implements server.Authentication. A client that greets twice keeps its limits.
func (d *door) Check(client server.ClientAuthentication) bool {
	options := client.GetOpts()
	shown := sha256.Sum256([]byte(options.Token))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		d.mu.Unlock()
		time.Sleep(shutPause) // the end of the server ends the connection; a refusal would mean a wrong token
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

// receive finds the limits of a connection without special rights, and makes room for it.
func (d *door) receive(name, address string, now time.Time) *visitor {
	v := &visitor{name: name, address: address, since: now}
	if d.isMember(v) {
		return v
	}
	v.anonymousClient, v.subs = true, SubsMax
	wide, anonymous := d.anonymous()
	// Checking all connections for each greeting would delay all of them.
	if anonymous >= anonymousMax && now.Sub(d.tidied) >= doorEvery {
		d.tidied = now
		d.forget()
		d.promote()
		wide, anonymous = d.anonymous()
	}
	if anonymous >= anonymousMax {
		d.evict()
	}
	if v.payloadBytes = narrowPayloadBytesMax; wide < wideAnonymousMax {
		v.payloadBytes = AnonymousPayloadBytesMax
	}
	return v
}

// isMember gives a visitor a member's limits if it has the name of one that does not have all its connections yet.
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
		case there.anonymousClient || there.name != v.name:
		case d.nats.GetClient(id) == nil: // gone
			delete(d.inside, id)
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

func (d *door) anonymous() (wide, all int) {
	for _, v := range d.inside {
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
func (d *door) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.shut {
		d.seen.Store(&connected{names: openNames(d.nats), faded: fadedNames(d.nats), anonymousBytes: d.held()})
	}
}

// held bounds the memory that the present anonymous and silent connections can make the server use. The caller holds
// mu.
func (d *door) held() int64 {
	d.forget()
	total := int64(d.nats.NumClients()) * connectionBytes
	for _, v := range d.inside {
		if v.anonymousClient {
			total += int64(v.payloadBytes) + int64(v.subs)*subscriptionBytes
		}
	}
	return total
}

// forget removes connections that have ended.
func (d *door) forget() {
	for id := range d.inside {
		if d.nats.GetClient(id) == nil {
			delete(d.inside, id)
		}
	}
}

// promote counts anonymous clients as members if they have become such: a server may learn of a job after its trainers
// have dialed. NATS keeps the limits that they were admitted with.
func (d *door) promote() {
	for _, v := range d.inside {
		if v.anonymousClient {
			d.isMember(v)
		}
	}
}

// evict closes the oldest one from the address that has most guests.
func (d *door) evict() {
	from := map[string]int{}
	for _, v := range d.inside {
		if v.anonymousClient {
			from[v.address]++
		}
	}
	out := uint64(0)
	for id, v := range d.inside {
		if !v.anonymousClient {
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
		"address", d.inside[out].address, "most", anonymousMax)
	delete(d.inside, out)
	_ = d.nats.DisconnectClientByID(out) // else it has ended by itself
}

// makeRoom closes connections that have been silent for silentMax, the oldest first, if half of all are in use.
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
		_ = d.nats.DisconnectClientByID(c.Cid) // else it has ended by itself
	}
	if len(silent) > 0 {
		d.log.Warn("half of all connections are taken; those that say nothing are closed", "closed",
			min(tooMany, len(silent)), "most", d.most)
	}
}

// write returns the JWT with limits, which the server checks as if the client had sent it.
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

// rightsMax bounds the number of cached limits: one for each message size of jobs.
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

// credsBytesMax bounds a file of NATS credentials: a signed token and a key.
const credsBytesMax = 1 << 20

// userCredentials reads a file of credentials for each connection, as nats.UserCredentials does, without blocking on
// special files.
func userCredentials(path string) nats.Option {
	read := func() (o nats.Options, err error) {
		text, err := regular.Read(path, credsBytesMax)
		if err == nil {
			err = nats.UserCredentialBytes(text)(&o)
		}
		return o, err
	}
	return nats.UserJWT(func() (string, error) {
		o, err := read()
		if err != nil {
			return "", err
		}
		return o.UserJWT()
	}, func(nonce []byte) ([]byte, error) {
		o, err := read()
		if err != nil {
			return nil, err
		}
		return o.SignatureCB(nonce)
	})
}

var (
	// errUnauthorized reports that the server requires a token, or another one.
	errUnauthorized = errors.New("authorization violation")
	// errNotSecure reports that TLS was requested and the server has none.
	errNotSecure = errors.New("the server has no secure connection")
)

// serverInfo is the part of a server's INFO that is used.
type serverInfo struct {
	PayloadMax   int    `json:"max_payload"`
	TLSRequired  bool   `json:"tls_required"`
	TLSAvailable bool   `json:"tls_available"`
	LameDuck     bool   `json:"ldm"`
	Nonce        string `json:"nonce"`
}

// connectOptions is the CONNECT message of a client.
type connectOptions struct {
	Verbose      bool   `json:"verbose"`
	Pedantic     bool   `json:"pedantic"`
	TLSRequired  bool   `json:"tls_required"`
	Token        string `json:"auth_token,omitempty"`
	JWT          string `json:"jwt,omitempty"`
	Signature    string `json:"sig,omitempty"`
	User         string `json:"user,omitempty"`
	Password     string `json:"pass,omitempty"`
	Name         string `json:"name"`
	Lang         string `json:"lang"`
	Version      string `json:"version"`
	Protocol     int    `json:"protocol"`
	Echo         bool   `json:"echo"`
	Headers      bool   `json:"headers"`
	NoResponders bool   `json:"no_responders"`
}

// wireSession is one authenticated connection.
type wireSession struct {
	conn    net.Conn
	reader  *wireReader
	info    serverInfo
	witness *tlsWitness
}

// show authenticates the client by a file of credentials, by the address, or by the token: the first that is set.
func (o *connectOptions) show(config *Config, at *url.URL, nonce string) error {
	switch {
	case at == nil:
		o.Token = config.Server.token
	case config.CredsFile != "":
		var from nats.Options
		if err := userCredentials(config.CredsFile)(&from); err != nil {
			return err
		}
		token, err := from.UserJWT()
		if err != nil {
			return err
		}
		signature, err := from.SignatureCB([]byte(nonce))
		if err != nil {
			return err
		}
		o.JWT, o.Signature = token, base64.RawURLEncoding.EncodeToString(signature)
	case at.User != nil:
		if password, ok := at.User.Password(); ok {
			o.User, o.Password = at.User.Username(), password
		} else {
			o.Token = at.User.Username()
		}
	default:
		o.Token, _ = config.latest()
	}
	return nil
}

// greet takes a new connection to an address, nil in process, through INFO, TLS and CONNECT, until the server has
// answered a PING. The caller closes the connection, also if greet fails.
func greet(ctx context.Context, raw net.Conn, at *url.URL, config *Config, witness *tlsWitness) (*wireSession, error) {
	if err := raw.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return nil, err
	}
	s := &wireSession{conn: raw, reader: newWireReader(raw, config.Buffers), witness: witness}
	var e wireEvent
	if err := s.reader.next(&e); err != nil {
		return nil, err
	}
	if err := s.told(&e); err != nil {
		return nil, err
	}
	if e.op != opInfo {
		return nil, fmt.Errorf("%w: no INFO", errProtocol)
	}
	secure, err := s.secure(ctx, config, at)
	if err != nil {
		return nil, err
	}
	options := connectOptions{TLSRequired: secure, Name: config.Name, Lang: "go", Version: "gradbus",
		Protocol: 1, Echo: true}
	if err := options.show(config, at, s.info.Nonce); err != nil {
		return nil, err
	}
	text, err := json.Marshal(&options)
	if err != nil {
		return nil, err
	}
	if _, err := s.conn.Write([]byte("CONNECT " + string(text) + "\r\nPING\r\n")); err != nil {
		// The server may have sent a reason before it closed the connection.
		if said := s.awaitPong(&e); said != nil {
			return nil, said
		}
		return nil, err
	}
	if err := s.awaitPong(&e); err != nil {
		return nil, err
	}
	return s, raw.SetDeadline(time.Time{})
}

// awaitPong reads until the server has answered a PING.
func (s *wireSession) awaitPong(e *wireEvent) error {
	for e.op = opNone; e.op != opPong; {
		if err := s.reader.next(e); err != nil {
			return err
		}
		e.lease.Release() // nothing is subscribed to; nil except from an odd server
		if err := s.told(e); err != nil {
			return err
		}
	}
	return nil
}

// told handles INFO and -ERR.
func (s *wireSession) told(e *wireEvent) error {
	switch e.op {
	case opErr:
		return serverError(e.text)
	case opInfo:
		var info serverInfo
		if err := json.Unmarshal(e.text, &info); err != nil {
			return fmt.Errorf("%w: INFO: %w", errProtocol, err)
		}
		if info.PayloadMax > 0 {
			s.info.PayloadMax = min(info.PayloadMax, payloadBytesMaxMax)
			s.reader.payloadMax = s.info.PayloadMax
		}
		info.PayloadMax = s.info.PayloadMax
		s.info = info
	}
	return nil
}

// secure upgrades the connection if either side requires it. In process there is nothing to protect.
func (s *wireSession) secure(ctx context.Context, config *Config, at *url.URL) (bool, error) {
	if at == nil {
		return false, nil
	}
	_, roots := config.latest()
	wanted := roots != nil || at.Scheme == "tls"
	if wanted && !s.info.TLSRequired && !s.info.TLSAvailable {
		return false, errNotSecure
	}
	if !wanted && !s.info.TLSRequired {
		return false, nil
	}
	if s.reader.lo != s.reader.hi { // bytes injected before TLS must not be read as if they had been sent under it
		return false, fmt.Errorf("%w: bytes between INFO and TLS", errProtocol)
	}
	conn, err := s.witness.handshake(ctx, s.conn, roots, at.Hostname())
	if err != nil {
		return false, err
	}
	s.conn, s.reader.source = conn, conn
	return true, nil
}

// serverError returns the error that a server reports with -ERR.
func serverError(text []byte) error {
	said := oneLine(text)
	lower := strings.ToLower(said)
	if strings.HasPrefix(lower, "authorization violation") || strings.HasPrefix(lower, "user authentication") ||
		strings.HasPrefix(lower, "account authentication") {
		return fmt.Errorf("%w: the server says %q", errUnauthorized, said)
	}
	return fmt.Errorf("the server says %q", said)
}

// tlsWitness records whether a server asked for this side's certificate, and whether one was shown. From TLS 1.3 on the
// server checks it after the handshake, and all that the client may see of a refusal is a closed connection.
type tlsWitness struct{ asked, shown atomic.Bool }

// options returns the TLS configuration of one connection. It does not change from.
func (w *tlsWitness) options(from *tls.Config) *tls.Config {
	c := &tls.Config{}
	if from != nil {
		c = from.Clone()
	}
	c.MinVersion = cmp.Or(c.MinVersion, tls.VersionTLS12)
	own, show := slices.Clone(c.Certificates), c.GetClientCertificate
	c.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		shown, err := &tls.Certificate{}, error(nil)
		if show != nil {
			shown, err = show(request)
		} else if len(own) > 0 {
			shown = &own[0] // even if the server names other authorities: its refusal says what it wants
		}
		w.asked.Store(true)
		w.shown.Store(shown != nil && len(shown.Certificate) > 0)
		return shown, err
	}
	return c
}

// explain returns what is wrong with certificates and what would be valid; nil if the error has another cause.
func (w *tlsWitness) explain(err error) error {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var unverified *tls.CertificateVerificationError
	switch {
	case errors.Is(err, errNotSecure) || errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("it speaks no TLS: start it with --tls-cert and --tls-key, or dial nats:// without --tls-ca and "+
			"--tls-cert: %w", err)
	case errors.As(err, &authority):
		return fmt.Errorf("its certificate is signed by an unknown authority: name its file with --tls-ca: %w", err)
	case errors.As(err, &host):
		return fmt.Errorf("its certificate is for another host: dial a name that it has, or have one made for this one: %w",
			err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its certificate is not good at this time: replace it there, or set the clock: %w", err)
	case w.asked.Load() && isCut(err) && !w.shown.Load():
		return fmt.Errorf("it asks for a certificate and none was given: show one with --tls-cert and --tls-key: %w", err)
	case w.asked.Load() && isCut(err):
		return fmt.Errorf("it turns the certificate down that it was shown: want one (--tls-cert, --tls-key) that its "+
			"--tls-ca vouches for and whose time is not over: %w", err)
	case errors.As(err, &unverified), errors.As(err, &record), isAlert(err), errors.Is(err, nats.ErrSecureConnRequired):
		return err
	}
	return nil
}

// isCut reports whether the other side has closed the connection.
func isCut(err error) bool {
	return isAlert(err) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isAlert reports whether the other side ended TLS with an alert.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// handshake begins TLS on a connection.
func (w *tlsWitness) handshake(ctx context.Context, plain net.Conn, from *tls.Config, host string) (net.Conn, error) {
	options := w.options(from)
	options.ServerName = cmp.Or(options.ServerName, host)
	conn := tls.Client(plain, options)
	return conn, conn.HandshakeContext(ctx)
}
