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

// credsBytesMax bounds a file of NATS credentials: a signed token and a key.
const credsBytesMax = 1 << 20

// userCredentials reads a file of credentials for each connection, as nats.UserCredentials does, without waiting for
// what is no file.
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
	// errUnauthorized: the server does not know the token, or asks for one.
	errUnauthorized = errors.New("authorization violation")
	// errNotSecure: TLS was asked for, and the server has none.
	errNotSecure = errors.New("the server has no secure connection")
)

// serverInfo is what is read of a server's INFO.
type serverInfo struct {
	PayloadMax   int    `json:"max_payload"`
	TLSRequired  bool   `json:"tls_required"`
	TLSAvailable bool   `json:"tls_available"`
	LameDuck     bool   `json:"ldm"`
	Nonce        string `json:"nonce"`
}

// connectOptions is what a client says of itself.
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

// wireSession is one connection that the server has let in.
type wireSession struct {
	conn    net.Conn
	reader  *wireReader
	info    serverInfo
	witness *tlsWitness
}

// show says who the client is: by a file of credentials, by the address, or by the token, the first that is there.
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

// greet takes a fresh connection to an address, nil in process, through INFO, TLS and CONNECT, until the server has
// answered a PING. The connection is the caller's to close, also where greet fails.
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
		// The server may have said why before it hung up.
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

// awaitPong reads until the server has taken in what was sent.
func (s *wireSession) awaitPong(e *wireEvent) error {
	for e.op = opNone; e.op != opPong; {
		if err := s.reader.next(e); err != nil {
			return err
		}
		e.lease.Release() // nothing is subscribed to; nil but for a strange server
		if err := s.told(e); err != nil {
			return err
		}
	}
	return nil
}

// told takes in INFO and -ERR.
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

// secure upgrades the connection where either side wants it. In process there is nothing to protect.
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
	if s.reader.lo != s.reader.hi { // injected on the way, to be read as if it had been sent under TLS
		return false, fmt.Errorf("%w: bytes between INFO and TLS", errProtocol)
	}
	conn, err := s.witness.handshake(ctx, s.conn, roots, at.Hostname())
	if err != nil {
		return false, err
	}
	s.conn, s.reader.source = conn, conn
	return true, nil
}

// serverError is what a server reports with -ERR.
func serverError(text []byte) error {
	said := oneLine(text)
	lower := strings.ToLower(said)
	if strings.HasPrefix(lower, "authorization violation") || strings.HasPrefix(lower, "user authentication") ||
		strings.HasPrefix(lower, "account authentication") {
		return fmt.Errorf("%w: the server says %q", errUnauthorized, said)
	}
	return fmt.Errorf("the server says %q", said)
}

// tlsWitness notes whether a server asked for this side's certificate, and whether one was shown. From TLS 1.3 on a
// server looks at it after the handshake, and all that the client learns of a refusal may be that the connection is
// cut.
type tlsWitness struct{ asked, shown atomic.Bool }

// options are those of one connection. What they are made of stays as it is.
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
			shown = &own[0] // also where the server names other authorities: it then says what it wants
		}
		w.asked.Store(true)
		w.shown.Store(shown != nil && len(shown.Certificate) > 0)
		return shown, err
	}
	return c
}

// explain says what is wrong with certificates and what would be right; nil where something else is.
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

// isCut tells whether the other side has hung up, with or without a word.
func isCut(err error) bool {
	return isAlert(err) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isAlert tells whether the other side ended TLS, and said why.
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
