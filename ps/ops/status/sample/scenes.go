package sample

import (
	"fmt"
	"math"
	"slices"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Scene is a situation that someone looks at.
type Scene struct {
	Name  string
	About string
	play  func(t *stage) status.Update
}

// stage plays a scene.
type stage struct {
	*Cluster
	tracker *status.Tracker
}

func (s *stage) open(o Options) *stage {
	s.Cluster = NewCluster(o)
	s.tracker = s.NewTracker()
	return s
}

func (s *stage) seconds(n int) status.Update { return s.Play(s.tracker, n) }

// Scenes are all there are, in the order of a tour.
func Scenes() []Scene { return append(append(well(), stopped()...), wrong()...) }

// well are scenes in which there is nothing to mend.
func well() []Scene {
	return []Scene{
		{"empty", "one ps, and no job", func(s *stage) status.Update {
			s.open(Options{}).NoJob = true
			return s.seconds(20)
		}},
		{"gathering", "three of four trainers have joined", func(s *stage) status.Update {
			s.open(Options{Trainers: 4}).Phase = "gathering"
			s.Trainers[3].Away = true
			return s.seconds(40)
		}},
		{"healthy", "four trainers on two machines, all well", func(s *stage) status.Update {
			return s.open(Options{Trainers: 4, Hosts: 2, Shards: 4, Servers: 2}).seconds(300)
		}},
		{"mean", "trainers keep replicas, which are equal", func(s *stage) status.Update {
			return s.open(Options{Trainers: 4, Apply: "mean"}).seconds(300)
		}},
		{"ended", "the job has ended well", func(s *stage) status.Update {
			s.open(Options{Trainers: 4}).seconds(300)
			s.End(nil)
			return s.seconds(60)
		}},
		{"many", "64 trainers on 16 machines, 16 shards on four ps", func(s *stage) status.Update {
			return s.open(Options{Trainers: 64, Hosts: 16, Shards: 16, Servers: 4, GPUs: true}).seconds(120)
		}},
	}
}

// stopped are scenes in which a job waits for a trainer.
func stopped() []Scene {
	return []Scene{
		{"waiting", "t3 has been stopped for 18 s", func(s *stage) status.Update {
			s.open(Options{Trainers: 4, Hosts: 2, Shards: 4, Servers: 2}).seconds(300)
			s.Trainers[3].Stopped = true
			return s.seconds(18)
		}},
		{"gone", "t3 has been killed", func(s *stage) status.Update {
			s.open(Options{Trainers: 4, Hosts: 2}).seconds(300)
			s.Trainers[3].Gone = true
			return s.seconds(4)
		}},
		{"held-up", "t1 is alive and does not get on", func(s *stage) status.Update {
			s.open(Options{Trainers: 4}).seconds(300)
			s.Trainers[1].Stuck = true
			return s.seconds(12)
		}},
	}
}

// wrong are scenes in which something is not as it should be.
func wrong() []Scene {
	return []Scene{
		{"slow", "t3 has computed three times as long as before for two minutes", func(s *stage) status.Update {
			s.open(Options{Trainers: 4, Hosts: 2}).seconds(300)
			s.Trainers[3].Slow = 3
			return s.seconds(120)
		}},
		{"throttled", "the same, since its GPU is throttled", func(s *stage) status.Update {
			s.open(Options{Trainers: 4, Hosts: 2, GPUs: true}).seconds(300)
			t := s.Trainers[3]
			t.Slow = 3
			degrade(&t.GPUs[0], s.Cluster)
			return s.seconds(120)
		}},
		{"gpu-unhealthy", "a GPU has fallen off the bus", func(s *stage) status.Update {
			s.open(Options{Trainers: 4, Hosts: 2, GPUs: true}).seconds(300)
			fallOff(&s.Trainers[2].GPUs[0], s.Cluster)
			s.Trainers[2].Stuck = true
			return s.seconds(8)
		}},
		{"gpu-injected", "the same, injected for a rehearsal", func(s *stage) status.Update {
			s.open(Options{Trainers: 2, GPUs: true}).seconds(300)
			fallOff(&s.Trainers[1].GPUs[0], s.Cluster)
			s.Trainers[1].GPUs[0].Injected = true
			return s.seconds(8)
		}},
		{"replicas-differ", "a replica differs from the others", func(s *stage) status.Update {
			s.open(Options{Trainers: 4, Apply: "mean"}).seconds(300)
			s.Digests = map[string]uint32{"t2": 0x5a5a}
			return s.seconds(10)
		}},
		{"loss-nan", "the loss is not a number", func(s *stage) status.Update {
			s.open(Options{Trainers: 2}).seconds(300)
			s.Trainers[0].Loss = math.NaN()
			return s.seconds(10)
		}},
		{"shard-busy", "the shards are the bottleneck", func(s *stage) status.Update {
			s.open(Options{Trainers: 8, Shards: 2}).seconds(300)
			s.Servers[0].Busy = 0.97
			return s.seconds(120)
		}},
		{"server-silent", "a ps that keeps shards has stopped", func(s *stage) status.Update {
			s.open(Options{Trainers: 4, Hosts: 2, Shards: 4, Servers: 2}).seconds(300)
			s.Servers[1].Stopped = true
			return s.seconds(9)
		}},
		{"disk-full", "nothing can be saved", func(s *stage) status.Update {
			s.open(Options{}).seconds(60)
			s.Servers[0].Disk.FreeBytes = 12 << 20
			return s.seconds(5)
		}},
		{"failed", "the job has failed", func(s *stage) status.Update {
			s.open(Options{Trainers: 4}).seconds(300)
			s.Trainers[3].Stopped = true
			s.seconds(30)
			s.End(&schema.Failed{Member: "t3",
				Text: "trainer t3 on box-0 (pid 7103) was last seen 30s ago at batch 2400 (deadline 30s)"})
			return s.seconds(20)
		}},
	}
}

// Play plays a scene to its end: the tracker may be asked further, at the time that is returned.
func Play(name string) (u status.Update, t *status.Tracker, c *Cluster, err error) {
	all := Scenes()
	i := slices.IndexFunc(all, func(s Scene) bool { return s.Name == name })
	if i < 0 {
		return u, nil, nil, fmt.Errorf("scene %q: want one of Scenes", name)
	}
	var s stage
	u = all[i].play(&s)
	return u, s.tracker, s.Cluster, nil
}

func degrade(g *schema.GPUReport, c *Cluster) {
	g.State, g.Code, g.Reason = schema.GPUDegraded, "hw-slowdown",
		"clocks were lowered by the hardware in 6 of the last 10 minutes"
	g.Action, g.SinceMS, g.Throttled = "Look at the machine's cooling and power supply.", c.Now.UnixMilli(),
		[]string{"hw_slowdown"}
	clock, temperature := int64(585_000_000), schema.Real(91)
	g.SMClockHz, g.Temperature = &clock, &temperature
}

func fallOff(g *schema.GPUReport, c *Cluster) {
	g.State, g.Code, g.Reason = schema.GPUUnhealthy, "xid-79", "XID 79: it has fallen off the bus"
	g.Action, g.SinceMS = "Move the job to another GPU and restart the machine.", c.Now.UnixMilli()
	g.XIDs = map[string]uint64{"79": 1}
}
