package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"gradbus/fabric"
	"gradbus/schema"
)

// ownServer is what a trainer of a job that reduces between trainers is reached at, and the connection by which it
// reads what arrives there.
type ownServer struct {
	server *fabric.Server
	conn   *fabric.Conn
	url    string      // as the other trainers reach it
	fail   func(error) // set before anything is published

	// take takes what others send. They may do so a moment before it is set, which ready says by its end.
	take  func(fabric.Message)
	ready chan struct{}
	once  sync.Once
}

// opens has what others have sent be taken, or dropped.
func (o *ownServer) opens(take func(fabric.Message)) {
	o.once.Do(func() {
		o.take = take
		close(o.ready)
	})
}

// receive takes a message when it is known who takes it. Those behind it wait, too.
func (o *ownServer) receive(m fabric.Message) {
	if <-o.ready; o.take == nil {
		m.Release()
		return
	}
	o.take(m)
}

// dataAddress is where a trainer's data server listens: Config.DataHost, or the address of this machine on the way to
// the server where that is elsewhere and whoever reaches the address has to show a token there; else loopback.
func dataAddress(c Config, local string) (host string, port int, err error) {
	if c.DataHost == "" {
		c.DataHost = local
		if checkDataHost(c) != nil {
			return "", 0, nil
		}
		return local, 0, nil
	}
	if host, port, err = parseHost("data host", c.DataHost); err != nil {
		return "", 0, err
	}
	return host, port, checkDataHost(c)
}

// parseHost reads an address whose port may be left out; 0 is none.
func parseHost(what, address string) (host string, port int, err error) {
	host, text := splitPort(address)
	if text != "" {
		port, err = strconv.Atoi(text)
	}
	if host == "" || strings.ContainsAny(host, "/@ ") || err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%s %q: want a name or an IP, and maybe a port, as in 10.0.0.2:4300", what, address)
	}
	return host, port, nil
}

// splitPort is the host and the port, or none, of an address whose port may be left out.
func splitPort(address string) (host, port string) {
	if host, port, err := net.SplitHostPort(address); err == nil {
		return host, port
	}
	return strings.Trim(address, "[]"), ""
}

// checkDataHost refuses a data server that other machines reach and anybody may use.
func checkDataHost(c Config) error {
	host, _ := splitPort(c.DataHost)
	ip := net.ParseIP(host)
	if host == "" || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	if c.Token == "" {
		return fmt.Errorf("data host %s: other machines can reach it, and there is no token: give one, or listen "+
			"at 127.0.0.1", c.DataHost)
	}
	if err := fabric.CheckToken(c.Token); err != nil {
		return fmt.Errorf("data host %s: other machines can reach it: %w", c.DataHost, err)
	}
	if c.DataTLS == nil && (c.TLS != nil || strings.HasPrefix(c.Server, "tls:")) {
		return fmt.Errorf("data host %s: the way to the ps is encrypted, and the one between trainers is not: give this "+
			"trainer a certificate (--tls-cert and --tls-key)", c.DataHost)
	}
	return nil
}

// startOwnServer starts this trainer's data server. It gives nil where shards add up everything. local is this
// machine's address on the way to the server; "" within one process.
func startOwnServer(ctx context.Context, c Config, job *schema.Job, local string) (*ownServer, error) {
	if !job.Plan().Reduces(schema.ByTrainers) {
		return nil, nil
	}
	host, port, err := dataAddress(c, local)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	guard := &fabric.Guard{Publish: []string{fabric.All}, Member: func(name string) int {
		if of, member, _ := strings.Cut(name, "/"); of == string(job.Name) && job.HasTrainer(schema.Member(member)) {
			return job.MessageBytesMax()
		}
		return 0
	}}
	server, err := fabric.StartServer(fabric.ServerConfig{Bus: c.Bus, Host: host, Port: port, Name: string(job.Name),
		Token: c.Token, TLS: c.DataTLS, Guard: guard, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("start this trainer's data server: %w", err)
	}
	o := &ownServer{server: server, url: server.URL(), ready: make(chan struct{})}
	if o.conn, err = fabric.Dial(ctx, fabric.Config{Server: server, Name: "own", Token: c.Token, Log: c.Log}); err != nil {
		o.close()
		return nil, fmt.Errorf("connect to this trainer's data server: %w", err)
	}
	if c.Bus == nil { // there nobody may be kept waiting
		err = o.listen(string(job.Name), fabric.Any)
	}
	if err != nil {
		o.close()
		return nil, err
	}
	if o.url, err = c.advertised(o.url, host, local); err != nil {
		o.close()
		return nil, fmt.Errorf("address of this trainer's data server: %w", err)
	}
	return o, nil
}

// advertised is the address by which other trainers reach the data server that listens at host, with the URL own.
func (c *Config) advertised(own, host, local string) (string, error) {
	u, err := url.Parse(own)
	if err != nil {
		return "", err
	}
	switch ip := net.ParseIP(host); {
	case c.Advertise != "":
		host, port := splitPort(c.Advertise)
		u.Host = net.JoinHostPort(host, cmp.Or(port, u.Port()))
	case ip != nil && ip.IsUnspecified() && local != "":
		// Of all addresses, the one by which this machine reaches the server is as good a guess as any.
		u.Host = net.JoinHostPort(local, u.Port())
	}
	return u.String(), nil
}

// publish sends a frame to other trainers. It cannot fail on a connection within this process unless that is closing;
// who misses what was sent asks for it again.
func (o *ownServer) publish(to fabric.Subject, frame fabric.Payload) {
	if err := o.conn.SendInPlace(to, frame); err != nil && !errors.Is(err, fabric.ErrClosed) &&
		!errors.Is(err, fabric.ErrLost) {
		o.fail(fmt.Errorf("publish at this trainer's data server: %w", err))
	}
}

func (o *ownServer) close() {
	if o == nil {
		return
	}
	o.opens(nil)
	if o.conn != nil {
		o.conn.Close()
	}
	o.server.Close()
}

// listen takes what other trainers send to a member of a job.
func (o *ownServer) listen(job, member string) error {
	for _, pattern := range []string{
		fabric.Pattern(job, fabric.Any, fabric.KindReduce, member, true),
		fabric.Pattern(job, fabric.Any, fabric.KindPull, member, false),
	} {
		if err := o.conn.Subscribe(pattern, o.receive); err != nil {
			return fmt.Errorf("listen at this trainer's data server: %w", err)
		}
	}
	return nil
}

// listenOwn takes what other trainers contribute to this one's reduce range.
func (s *membership) listenOwn(own *ownServer) error {
	s.own, own.fail, s.reducer.own = own, s.fail, own
	own.opens(s.reducer.receive)
	if s.config.Bus != nil {
		return own.listen(string(s.job.Name), string(s.joined.Member))
	}
	return nil
}

// connectPeers dials the data servers of all other trainers and listens there.
func (s *membership) connectPeers(ctx context.Context) error {
	at := map[schema.Member]string{}
	for _, p := range s.joined.Peers {
		at[p.Member] = p.URL
	}
	for _, d := range s.servers {
		if d.peer == "" {
			continue
		}
		if d.url = at[d.peer]; d.url == "" {
			return fmt.Errorf("the coordinator does not say where trainer %s of job %s is", d.peer, s.job.Name)
		}
		if err := s.connectData(ctx, d); err != nil {
			return err
		}
	}
	return nil
}
