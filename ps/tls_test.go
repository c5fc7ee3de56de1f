package ps

import (
	"crypto/tls"
	"testing"

	"gradbus/fabric"
	"gradbus/internal/certificate/certtest"
	"gradbus/schema"
)

// Over TLS with certificates on both sides another ps has a whole version of a job: one that holds the replica, and
// each of two that do so for each other. Each of these hears the other's shards, and may hear its own, within its
// process.
func TestReplicationOverTLS(t *testing.T) {
	t.Parallel()
	ours := certtest.NewAuthority(t)
	own := []tls.Certificate{ours.Issue(t, "127.0.0.1").TLS}
	dial := &tls.Config{Certificates: own, RootCAs: ours.Pool}
	of := Config{ID: "a", Shards: 2, Token: "secret-of-sixteen", ControlToken: "the-token-of-peers", PeerTLS: dial,
		TLS: &tls.Config{Certificates: own, ClientCAs: ours.Pool, ClientAuth: tls.RequireAndVerifyClientCert}}
	for _, peers := range []bool{false, true} {
		first := of
		if peers {
			first.ControlToken, first.Replicas, first.NATSTLS = "", 1, dial
			first.NATS = startControl(t, fabric.ServerConfig{TLS: of.TLS}).URL()
		}
		s, l := startWatched(t, first)
		other := first
		if other.ID, other.Replicas, other.NATSTLS = "b", 1, dial; !peers {
			other.Peer = s.URL()
		}
		m, stop, told := trainKept(t, s, l) // on the first alone
		b, _ := startWatched(t, other)
		p := told("a version that is whole elsewhere", func(p *schema.ReplicaReport) bool { return p.Ready })
		if p.Version == 0 || p.Peers != peers || p.Failure != "" {
			t.Errorf("%+v", p)
		}
		for _, k := range []*replicaStore{s.replicas, b.replicas} {
			for _, from := range []*Server{s, b} {
				if peers || k == b.replicas && from == s {
					hears := &replicaSource{server: schema.DataServer{ID: from.ID(), URL: from.registry.self.URL}}
					must(t, k.listen(t.Context(), &replicaJob{job: m.p.Job}, hears))
					hears.conn.Close()
				}
			}
		}
		stop()
		m.leave("")
	}
}
