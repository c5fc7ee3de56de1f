package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// clusterPatience bounds every wait for elections: they are a matter of a second, and of minutes on a machine that is
// busy.
const clusterPatience = 3 * time.Minute

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
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: t.TempDir(),
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
	for deadline := time.Now().Add(clusterPatience); !led(all); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the cluster has no leader within %v", clusterPatience)
		}
	}
	return all, strings.Join(addresses, ",")
}

// led reports whether one of the servers leads all of them.
func led(all []*server.Server) bool {
	return slices.ContainsFunc(all, func(s *server.Server) bool {
		return s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(all)
	})
}

// skipElections skips a test of a cluster.
func skipElections(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("three servers elect leaders again and again where the machine is busy; without -short they may " +
			"take their time")
	}
}

// Members that start at once on a fresh cluster all have their buckets, and can write to them. Servers lose the answers
// to equal requests that overtake each other.
func TestBucketsOpenedAtOnce(t *testing.T) {
	skipElections(t)
	const members = 4
	_, urls := startCluster(t)
	var all sync.WaitGroup
	for i := range members {
		c := dialControl(t, Config{URL: urls, Name: fmt.Sprint("c", i), Log: discard()})
		all.Go(func() {
			for _, name := range []string{"servers", "jobs"} {
				b, err := c.OpenBucket(t.Context(), BucketConfig{Name: name, BytesMax: 1 << 20, TTL: time.Hour})
				if err == nil {
					_, err = b.Create(t.Context(), fmt.Sprint(i), nil)
				}
				if err != nil {
					t.Errorf("member %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
}

// A bucket whose servers cannot elect a leader is out of reach, and not gone: its owner does not make it again.
func TestBucketWithoutLeaderIsNotGone(t *testing.T) {
	skipElections(t)
	servers, urls := startCluster(t)
	c := dialControl(t, Config{URL: urls, Name: "c", Log: discard()})
	b, err := c.OpenBucket(t.Context(), BucketConfig{Name: "things", BytesMax: 1 << 20, TTL: time.Hour})
	must(t, err)
	leader := b.stream.CachedInfo().Cluster.Leader
	slices.SortFunc(servers, func(a, _ *server.Server) int { // the leader first
		if a.Name() == leader {
			return -1
		}
		return 1
	})
	for _, s := range servers[:2] {
		s.Shutdown()
		s.WaitForShutdown()
	}
	for deadline := time.Now().Add(clusterPatience); c.Flush(t.Context()) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server that is left is not reached")
		}
	}
	for name, ask := range map[string]func(context.Context) error{
		"put":  func(ctx context.Context) error { _, err := b.Put(ctx, "a", nil); return err },
		"all":  func(ctx context.Context) error { _, err := b.All(ctx); return err },
		"look": b.Look,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		err := ask(ctx)
		cancel()
		read := err == nil && name != "put" // the server that is left may answer by what it has
		if !read && !errors.Is(err, ErrLost) || errors.Is(err, ErrNoBucket) {
			t.Errorf("%s: %v, want ErrLost", name, err)
		}
	}
}

// On a cluster a bucket outlives any one of its servers, and so does the connection.
func TestBucketOutlivesAServer(t *testing.T) {
	skipElections(t)
	servers, urls := startCluster(t)
	c := dialControl(t, Config{URL: urls, Name: "c", Log: discard()})
	ctx, cancel := context.WithTimeout(t.Context(), clusterPatience)
	defer cancel()
	// what was asked of a server that ended is never answered
	soon := func(what string, call func(context.Context) error) {
		t.Helper()
		for {
			within, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := call(within)
			cancel()
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: not within %v: %v", what, clusterPatience, err)
			}
		}
	}
	things := BucketConfig{Name: "things", BytesMax: 1 << 20, TTL: time.Hour}
	var b *Bucket
	soon("open", func(ctx context.Context) (err error) {
		b, err = c.OpenBucket(ctx, things)
		return err
	})
	soon("put", func(ctx context.Context) error {
		_, err := b.Put(ctx, "a", []byte("x"))
		return err
	})
	info, err := c.js.Stream(ctx, "KV_things")
	must(t, err)
	for _, s := range servers {
		if s.Name() == info.CachedInfo().Cluster.Leader {
			s.Shutdown()
			s.WaitForShutdown()
		}
	}
	if n := info.CachedInfo().Config.Replicas; n != clusterReplicas {
		t.Fatalf("%d servers keep the bucket, want %d", n, clusterReplicas)
	}
	var e Entry
	soon("read from another server", func(ctx context.Context) (err error) {
		e, err = b.Get(ctx, "a")
		return err
	})
	if string(e.Value) != "x" {
		t.Errorf("read %q, want x", e.Value)
	}
	soon("write another", func(ctx context.Context) error {
		_, err := b.Put(ctx, "b", nil)
		return err
	})
	var all []Entry
	soon("open again and list", func(ctx context.Context) error {
		again, err := c.OpenBucket(ctx, things)
		if err == nil {
			all, err = again.All(ctx)
		}
		return err
	})
	if len(all) != 2 {
		t.Errorf("%+v, want both keys", all)
	}
	deleteOfTwo(t, soon, b, e)
}

// deleteOfTwo deletes one of a bucket's two keys.
func deleteOfTwo(t *testing.T, soon func(string, func(context.Context) error), b *Bucket, e Entry) {
	t.Helper()
	soon("delete", func(ctx context.Context) error {
		// else an earlier try has deleted it, and its answer was lost
		if err := b.Delete(ctx, e.Key, e.Revision); !errors.Is(err, ErrKeyExists) {
			return err
		}
		return nil
	})
	soon("list the other", func(ctx context.Context) error {
		all, err := b.All(ctx)
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("%+v, want the other alone", all)
		}
		return err
	})
}
