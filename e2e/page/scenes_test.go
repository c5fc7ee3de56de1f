package page

import (
	"context"
	"flag"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"testing"

	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

var (
	serve = flag.String("serve", "", "with -run Stage: address to serve a stage at, until interrupted")
	scene = flag.String("scene", "healthy", "with -serve: which stage")
)

// scenes are what the tests and the pictures look at.
var scenes = map[string]func(t testing.TB) *stage{
	"empty": func(t testing.TB) *stage {
		return open(t, statustest.Options{}, 5, func(c *statustest.Cluster) { c.NoJob = true })
	},
	"gathering": func(t testing.TB) *stage {
		return open(t, statustest.Options{Trainers: 4}, 40, func(c *statustest.Cluster) {
			c.Phase = "gathering"
			c.Trainers[3].Away = true
		})
	},
	"healthy": healthy,
	"waiting": func(t testing.TB) *stage {
		s := healthy(t)
		s.with(func(c *statustest.Cluster) { c.Trainers[3].Stopped = true })
		s.step(18)
		return s
	},
	"gpu": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 4, Hosts: 2, Servers: 2, Shards: 4, GPUs: true}, 1800, nil)
		s.with(func(c *statustest.Cluster) {
			g := &c.Trainers[2].GPUs[0]
			g.State, g.Code, g.Reason = schema.GPUUnhealthy, "xid-79", "XID 79: it has fallen off the bus"
			g.Action, g.SinceMS, g.XIDs = "Move the job to another GPU and restart the machine.", c.Now.UnixMilli(),
				map[string]uint64{"79": 1}
			g.Injected = true
			c.Trainers[2].Stuck = true
		})
		s.step(8)
		return s
	},
	"mean": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 4, Apply: "mean"}, 300, nil)
		s.with(func(c *statustest.Cluster) { c.Digests = map[string]uint32{"t2": 0x5a5a} })
		s.step(10)
		return s
	},
	"nan": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 2}, 300, nil)
		s.with(func(c *statustest.Cluster) { c.Trainers[0].Loss = math.NaN() })
		s.step(10)
		return s
	},
	"ended": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 4}, 300, nil)
		s.with(func(c *statustest.Cluster) { c.End(nil) })
		s.step(60)
		return s
	},
	"failed": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 4}, 300, nil)
		s.with(func(c *statustest.Cluster) { c.Trainers[3].Stopped = true })
		s.step(30)
		s.with(func(c *statustest.Cluster) {
			c.End(&schema.Ended{Member: "t3",
				Text: "trainer t3 on box-0 (pid 7103) was last seen 30s ago at batch 2400 (deadline 30s)"})
		})
		s.step(20)
		return s
	},
	"jobs": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 4, Hosts: 2, Shards: 4, Servers: 2}, 1, nil)
		s.with(func(*statustest.Cluster) {
			s.others = append(s.others, statustest.NewCluster(statustest.Options{Job: "digits", Workload: "mnist"}))
		})
		s.step(600)
		s.with(func(*statustest.Cluster) { s.others[0].Trainers[1].Stopped = true })
		s.step(9)
		return s
	},
	"jobs-many": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 4, Hosts: 2, Job: "recommender-of-things-nightly-00"}, 1, nil)
		s.with(func(*statustest.Cluster) {
			for i := range 19 {
				s.others = append(s.others,
					statustest.NewCluster(statustest.Options{Job: fmt.Sprintf("recommender-of-things-nightly-%02d", i+1), Workload: "mnist",
						Place: fmt.Sprintf("rack%02d", i+1)}))
			}
		})
		s.step(8)
		s.with(func(*statustest.Cluster) { s.others[16].Trainers[1].Stopped = true })
		s.step(9)
		return s
	},
	"many": func(t testing.TB) *stage {
		s := open(t, statustest.Options{Trainers: 64, Hosts: 16, Shards: 16, Servers: 4, GPUs: true}, 300, nil)
		s.with(func(c *statustest.Cluster) { c.Trainers[41].Resends = 90 })
		s.step(90)
		return s
	},
}

func healthy(t testing.TB) *stage {
	return open(t, statustest.Options{Trainers: 4, Hosts: 2, Shards: 4, Servers: 2}, 1500, nil)
}

// Stage shows a stage to whoever works on the page.
func TestStage(t *testing.T) {
	if *serve == "" {
		t.Skip("for work on the page: -serve 127.0.0.1:8099 -scene " + *scene)
	}
	s := scenes[*scene](t)
	listener, err := net.Listen("tcp", *serve)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go s.run(ctx)
	t.Logf("http://%s", listener.Addr())
	go func() { _ = http.Serve(listener, s.handler()) }()
	<-ctx.Done()
}
