package fabric

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startCluster starts three NATS servers that are one cluster with JetStream.
func startCluster(t *testing.T) (all []*server.Server, urls string) {
	t.Helper()
	const count = 3
	var routes []*url.URL
	var listeners []net.Listener
	for range count { // ports are held until all are drawn
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
	}
	var addresses []string
	for i := range count {
		port := listeners[i].Addr().(*net.TCPAddr).Port
		listeners[i].Close()
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "three", Host: "127.0.0.1", Port: port}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		all = append(all, s)
	}
	for _, s := range all {
		if !s.ReadyForConnections(readyTimeout) {
			t.Fatal("a server of the cluster is not ready")
		}
		addresses = append(addresses, "nats://"+s.Addr().String())
	}
	eventually(t, "the cluster has a leader", func() bool {
		for _, s := range all {
			if s.JetStreamIsLeader() {
				return s.JetStreamClusterPeers() != nil && len(s.JetStreamClusterPeers()) == count
			}
		}
		return false
	})
	return all, strings.Join(addresses, ",")
}

// On a cluster a bucket outlives any one of its servers, and so does the connection.
func TestBucketOutlivesAServer(t *testing.T) {
	servers, urls := startCluster(t)
	c := dialControl(t, Config{URL: urls, Name: "c", Log: discard()})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := c.OpenBucket(ctx, BucketConfig{Name: "things", BytesMax: 1 << 20, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	info, err := c.js.Stream(ctx, "KV_things")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		if s.Name() == info.CachedInfo().Cluster.Leader {
			s.Shutdown()
			s.WaitForShutdown()
		}
	}
	if n := info.CachedInfo().Config.Replicas; n != clusterReplicas {
		t.Fatalf("%d servers keep the bucket, want %d", n, clusterReplicas)
	}
	soon := func(call func(context.Context) error) func() bool { // what was asked of the server that ended is never answered
		return func() bool {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return call(ctx) == nil
		}
	}
	var e Entry
	eventually(t, "the key is read from another server", soon(func(ctx context.Context) (err error) {
		e, err = b.Get(ctx, "a")
		return err
	}))
	if string(e.Value) != "x" {
		t.Errorf("read %q, want x", e.Value)
	}
	eventually(t, "another is written", soon(func(ctx context.Context) error {
		_, err := b.Put(ctx, "b", nil)
		return err
	}))
	if again, err := c.OpenBucket(ctx, BucketConfig{Name: "things", BytesMax: 1 << 20, TTL: time.Hour}); err != nil {
		t.Errorf("open again: %v", err)
	} else if all, err := again.All(ctx); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v, want both keys", all, err)
	}
}
