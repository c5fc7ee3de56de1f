package trainer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// startControl starts a NATS server as one that is not of gradbus would be.
func startControl(t *testing.T, c fabric.ServerConfig) *fabric.Server {
	t.Helper()
	c.JetStream = true
	if testkit.InFakeTime(t) {
		c.Bus = bus
	}
	s, err := fabric.StartServer(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// startSeveral starts a ps for each of shards, in whose order their ids are, at a control server.
func startSeveral(t *testing.T, control string, config ps.Config, shards ...int) (all []*ps.Server) {
	t.Helper()
	for i, n := range shards {
		config.NATS, config.ID, config.Shards = control, fmt.Sprint("ps-", i), n
		all = append(all, startServerWith(t, config))
	}
	return all
}

// controlConfig is of trainers that know the control server alone.
func controlConfig(t *testing.T, control string) Config {
	return patient(Config{Server: control, Bus: busOf(control), Backend: testBackend(t)})
}

// digestOnOne is what a job comes to on one ps.
func digestOnOne(t *testing.T, shards int, job *schema.Job, batches uint64) [32]byte {
	t.Helper()
	o := trainAll(t, testConfig(t, startServer(t, shards)), job, batches)[0]
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.digest
}

// However the shards lie on several ps, and whichever way trainers reach them, the weights are those of one ps.
func TestSeveralServersSameWeights(t *testing.T) {
	const batches = 7
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		want := digestOnOne(t, 3, toyJob("one", 2, 6, apply), batches)
		for _, shards := range [][]int{{1, 2}, {2, 1}, {1, 1, 1}} {
			control := startControl(t, fabric.ServerConfig{})
			servers := startSeveral(t, control.URL(), ps.Config{}, shards...)
			for _, data := range [][2]string{{"direct", "direct"}, {"cluster", "cluster"}, {"direct", "cluster"}} {
				t.Run(fmt.Sprintf("%s/%v/%v", apply, shards, data), func(t *testing.T) {
					before := control.Clients()
					job := toyJob("several", 2, 6, apply)
					out := make([]outcome, 2)
					var all sync.WaitGroup
					for i := range out {
						c := controlConfig(t, control.URL())
						c.Member, c.Route = schema.TrainerMember(i), data[i]
						all.Go(func() { out[i] = train(testContext(t), c, job, newToy(t, job), batches) })
					}
					all.Wait()
					for i, o := range out {
						if o.err != nil || o.digest != want {
							t.Errorf("trainer %d: %v, weights %x, want %x", i, o.err, o.digest[:6], want[:6])
						}
						if o.stats.Traffic.Dropped != 0 {
							t.Errorf("trainer %d: %+v", i, o.stats)
						}
					}
					poll(t, "the ways by the cluster are closed", func() bool { return len(control.Clients()) <= len(before) })
				})
			}
			for i, s := range servers {
				if s.Stats().Bytes == 0 {
					t.Errorf("nothing went to ps %d of %v", i, shards)
				}
				s.Close()
			}
			control.Close()
		}
	}
}

// After the job's deadline without a control server everybody gives up, and says why.
func TestControlGoneIsNamed(t *testing.T) { testkit.Waits(t, controlGoneIsNamed) }

func controlGoneIsNamed(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	servers := startSeveral(t, control.URL(), ps.Config{Deadline: shortDeadline}, 1, 1)
	job := toyJob("gone", 1, 2, schema.ApplyUpdate)
	w := newToy(t, job)
	w.enter = func(b schema.Batch, _ lane.Lane) {
		if b == 4 {
			control.Stop()
		}
		if b > 4 {
			time.Sleep(100 * time.Millisecond) // batches need not wait for anything
		}
	}
	c := controlConfig(t, control.URL())
	c.LeaveWithin = time.Second
	s := joinAll(t, c, job)[0]
	checkError(t, s.Run(testContext(t), w, 1e6, nil), ErrServerLost, "control server "+control.URL(), "out of reach",
		"deadline "+shortDeadline.String(), "job gone")
	for i, server := range servers {
		poll(t, fmt.Sprintf("ps %d frees the job", i), func() bool { return server.Stats().Memory == 0 })
	}
}

// What a trainer is told where it cannot take part.
func TestSeveralServersErrors(t *testing.T) {
	job := toyJob("wrong", 1, 2, schema.ApplyUpdate)
	join := func(c Config) error {
		s, err := Join(testContext(t), c, job)
		if err == nil {
			err = errors.Join(errors.New("joined"), s.Close())
		}
		return err
	}
	control := startControl(t, fabric.ServerConfig{PayloadBytesMax: 1 << 16})
	c := controlConfig(t, control.URL())
	c.AnswerWithin = time.Second
	t.Run("nobody is announced", func(t *testing.T) {
		checkError(t, join(c), errNoServers, control.URL(), "ps --nats "+control.URL())
	})
	t.Run("a ps that does not answer", func(t *testing.T) {
		conn, err := fabric.DialControl(testContext(t), fabric.Config{URL: control.URL(), Name: "mute"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		bucket, err := conn.OpenBucket(testContext(t), fabric.BucketConfig{Name: schema.ServersBucket, BytesMax: 1 << 20})
		if err == nil {
			_, err = bucket.Create(testContext(t), "mute", []byte("{}"))
		}
		if err != nil {
			t.Fatal(err)
		}
		c := c
		c.AnswerWithin = 100 * time.Millisecond
		checkError(t, join(c), ErrNoAnswer, "the first is mute", "want one of this trainer's version, which has wire 1")
	})
	t.Run("no JetStream", func(t *testing.T) {
		plain, err := fabric.StartServer(fabric.ServerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		c := c
		c.Server = plain.URL()
		checkError(t, join(c), fabric.ErrNoJetStream, "-js")
	})
	c.AnswerWithin = testTimeout
	port := fabrictest.DeadPort(t)
	server := startServerWith(t, ps.Config{NATS: control.URL(), ID: "far", Advertise: fmt.Sprint("127.0.0.1:", port)})
	t.Run("not to be reached", func(t *testing.T) {
		checkError(t, join(c), fabric.ErrNoServer, "ps far", fmt.Sprint("127.0.0.1:", port), "--advertise", `--route cluster`)
	})
	t.Run("chunks beyond the cluster's messages", func(t *testing.T) {
		c := c
		c.Route = schema.DataCluster
		job.ChunkBytes = 1 << 18
		defer func() { job.ChunkBytes = schema.ChunkBytesMin }()
		checkError(t, join(c), &Refused{}, "chunk_bytes", strings.TrimPrefix(control.URL(), "nats://"), "65536",
			"max_payload")
	})
	t.Run("by the cluster it goes", func(t *testing.T) {
		c := c
		c.Route = schema.DataCluster
		if o := trainAll(t, c, job, 3)[0]; o.err != nil {
			t.Error(o.err)
		}
	})
	t.Run("no such way", func(t *testing.T) {
		c := c
		c.Route = "pigeon"
		checkError(t, join(c), ErrConfig, `route "pigeon"`, schema.DataCluster)
	})
	poll(t, "nothing is left", func() bool { return server.Stats().Memory == 0 })
}

// A control server behind TLS, with a token of its own in its address, and data servers without TLS: each is dialed as
// it wants to be, directly and by the cluster. Without its certificate nobody gets in, and says why.
func TestControlOverTLS(t *testing.T) {
	const batches = 4
	authority := certtest.NewAuthority(t)
	certificate, roots := authority.Issue(t, "127.0.0.1").TLS, authority.Pool
	control := startControl(t, fabric.ServerConfig{TLS: &tls.Config{Certificates: []tls.Certificate{certificate}},
		Token: "inner"})
	url := strings.Replace(control.URL(), "://", "://inner@", 1)
	trust := &tls.Config{RootCAs: roots}
	startSeveral(t, url, ps.Config{NATSTLS: trust, Token: "outer-of-sixteen"}, 1, 1)
	want := digestOnOne(t, 2, toyJob("plain", 2, 4, schema.ApplyUpdate), batches)
	for _, data := range []string{schema.DataDirect, schema.DataCluster} {
		c := controlConfig(t, url)
		c.TLS, c.Token, c.Route = trust, "outer-of-sixteen", data
		for i, o := range trainAll(t, c, toyJob("tls", 2, 4, schema.ApplyUpdate), batches) {
			if o.err != nil || o.digest != want {
				t.Errorf("%s, trainer %d: %v, weights %x, want %x", data, i, o.err, o.digest[:6], want[:6])
			}
		}
	}
	c := controlConfig(t, url)
	c.Token = "outer-of-sixteen"
	_, err := Join(testContext(t), c, toyJob("tls", 1, 1, schema.ApplyUpdate))
	checkError(t, err, fabric.ErrRefused, "certificate")
	if strings.Contains(err.Error(), "inner") {
		t.Errorf("%v tells the token", err)
	}
	c.TLS, c.Server = trust, control.URL()
	_, err = Join(testContext(t), c, toyJob("tls", 1, 1, schema.ApplyUpdate))
	checkError(t, err, fabric.ErrRefused, "wrong token")
}

// A ps that was killed is announced for some seconds more. A job that comes meanwhile does not fail: it waits for that,
// and runs on those that are there.
func TestJoinBesideADeadServer(t *testing.T) { testkit.Waits(t, joinBesideADeadServer) }

func joinBesideADeadServer(t *testing.T) {
	dead := "nats://127.0.0.1:1"
	if testkit.InFakeTime(t) {
		dead = "memory://local:65535"
	}
	control := startControl(t, fabric.ServerConfig{})
	startSeveral(t, control.URL(), ps.Config{}, 2)
	observer, err := fabric.DialControl(testContext(t),
		fabric.Config{URL: control.URL(), Bus: busOf(control.URL()), Name: "observer"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(observer.Close)
	servers, err := observer.LookBucket(testContext(t), schema.ServersBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := servers.Put(testContext(t), "dead",
		fmt.Appendf(nil, `{"id":"dead","incarnation":"7","url":%q,"shards":1,"memory_bytes":1000000000000,"host":"box"}`,
			dead)); err != nil {
		t.Fatal(err)
	}
	for i, o := range trainAll(t, controlConfig(t, control.URL()), toyJob("new", 2, 4, schema.ApplyUpdate), 3) {
		if o.err != nil {
			t.Errorf("trainer %d: %v", i, o.err)
		}
	}
}
