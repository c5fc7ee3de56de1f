package trainer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

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
}

// checkDataHost refuses a data server that other machines reach and anybody may use.
func checkDataHost(c Config) error {
	ip := net.ParseIP(c.DataHost)
	if c.DataHost == "" || c.DataHost == "localhost" || ip != nil && ip.IsLoopback() {
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

// startOwnServer starts this trainer's data server. It gives nil where shards add up everything.
func startOwnServer(ctx context.Context, c Config, job *schema.Job) (*ownServer, error) {
	if !job.Plan().Reduces(schema.ByTrainers) {
		return nil, nil
	}
	if err := checkDataHost(c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	guard := &fabric.Guard{Publish: []string{fabric.All}, Member: func(name string) int {
		if of, member, _ := strings.Cut(name, "/"); of == string(job.Name) && job.HasTrainer(schema.Member(member)) {
			return job.MessageBytesMax()
		}
		return 0
	}}
	server, err := fabric.StartServer(fabric.ServerConfig{Bus: c.Bus, Host: c.DataHost, Name: string(job.Name),
		Token: c.Token, TLS: c.DataTLS, Guard: guard, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("start this trainer's data server: %w", err)
	}
	o := &ownServer{server: server, url: server.URL()}
	if o.conn, err = fabric.Dial(ctx, fabric.Config{Server: server, Name: "own", Token: c.Token, Log: c.Log}); err != nil {
		o.close()
		return nil, fmt.Errorf("connect to this trainer's data server: %w", err)
	}
	if c.Advertise != "" {
		u, err := url.Parse(o.url)
		if err != nil {
			o.close()
			return nil, fmt.Errorf("address of this trainer's data server: %w", err)
		}
		u.Host = net.JoinHostPort(c.Advertise, u.Port())
		o.url = u.String()
	}
	return o, nil
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
	if o.conn != nil {
		o.conn.Close()
	}
	o.server.Close()
}

// listenOwn takes what other trainers contribute to this one's reduce range. None of them can before it was told the
// address, which is after the start.
func (s *Session) listenOwn(own *ownServer) error {
	s.own, own.fail, s.reducer.own = own, s.fail, own
	job, member := string(s.job.Name), string(s.joined.Member)
	for _, pattern := range []string{
		fabric.Pattern(job, fabric.Any, fabric.KindReduce, member, true),
		fabric.Pattern(job, fabric.Any, fabric.KindPull, member, false),
	} {
		if err := own.conn.Subscribe(pattern, s.reducer.receive); err != nil {
			return fmt.Errorf("listen at this trainer's data server: %w", err)
		}
	}
	return nil
}

// connectPeers dials the data servers of all other trainers and listens there.
func (s *Session) connectPeers(ctx context.Context) error {
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
