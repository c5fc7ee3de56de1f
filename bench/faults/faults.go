package faults

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"gradbus/bench/harness"
	"gradbus/fabric"
	"gradbus/internal/temporary"
)

// kind is a fault that there is, how often it is drawn, and how many trainers it ends.
type kind struct {
	name            string
	weight, victims int
	all             bool           // trainers, in place of so many
	ps              bool           // ends one, which is restarted at once; a replica takes over if there is one
	harmless        bool           // no member may be declared lost
	signal          syscall.Signal // by which it ends them; 0: SIGKILL
}

var kinds = []kind{
	{name: "trainer killed", weight: 6, victims: 1},
	// it hands its lanes over
	{name: "trainer interrupted", weight: 2, victims: 1, signal: syscall.SIGINT},
	{name: "trainer stopped", weight: 2, harmless: true}, // SIGSTOP for at most a second
	{name: "connections cut", weight: 2, harmless: true}, // all of a trainer, which may be reopened at once
	{name: "two trainers killed", weight: 2, victims: 2}, // at once
	{name: "ps killed", weight: 2, ps: true},
	// it hands its jobs over, or makes a version durable
	{name: "ps interrupted", weight: 1, ps: true, signal: syscall.SIGTERM},
	{name: "ps and trainer killed", weight: 1, victims: 1, ps: true},
	{name: "all trainers killed", weight: 1, all: true},
	{name: "everything killed", weight: 1, all: true, ps: true},
	{name: natsRestarted, weight: 1, harmless: true}, // of several ps: down for at most a second, it forgets all
	{name: trainersCut, weight: 2},                   // all of a job, from its ps, and refused for a time
	{name: pairCut, weight: 2, harmless: true},       // from each other: trainers reach both
}

// Kinds that not every Config draws.
const (
	natsRestarted = "NATS restarted"
	trainersCut   = "trainers and ps cut"
	pairCut       = "ps and ps cut"
)

// cutMax bounds how long a link is cut: shorter than a trainer may be away before it is lost.
const cutMax = 2 * time.Second

// early follows the name of a kind where a ps was killed before the other one could go on.
const early = " before a replica had caught up"

// Config has the settings of a measurement. The zero value is not usable: begin with harness.SetDefaults.
type Config struct {
	Kills    int    `flag:"kills" default:"20" range:"1 1000000" help:"N: faults in all, at times drawn from the seed"`
	Trainers int    `flag:"trainers" default:"3" range:"1 256" help:"N: trainers of each job"`
	Epochs   int    `flag:"epochs" default:"400" range:"1 1000000" help:"N: epochs of each job, of 43 batches each"`
	Seed     uint64 `flag:"seed" default:"1" help:"SEED: determines times and victims"`
	Replicas int    `flag:"replicas" range:"0 1" help:"N: copies of each shard, 0 or 1: on the other of two ps, or with --servers on one of the others"`
	Servers  int    `flag:"servers" default:"1" range:"1 64" help:"N: ps that hold shards of each job; several use a NATS server"`
	Hybrid   bool   `flag:"hybrid" help:"trainers reduce dense gradients, shards hold tables; every loss restarts from a checkpoint"`

	Only  []string      `flag:"only" help:"LIST: kinds of faults, default all: "`
	Cut   bool          `flag:"cut" help:"also cut links: of trainers to the ps of their job, and with --replicas between the two ps"`
	Every time.Duration `flag:"every" default:"1s" range:"1ms 1h" help:"DURATION: between two checkpoints"`
	JSON  bool          `flag:"json" help:"print one line of JSON and nothing else"`

	Server   string                   // the program ps
	Member   func(m Member) *exec.Cmd // a trainer process
	Progress io.Writer
}

// Check says what is wrong with a Config.
func (c *Config) Check() error {
	if err := harness.CheckSettings(c); err != nil {
		return err
	}
	if c.Hybrid && c.Replicas > 0 {
		return errors.New("hybrid: want no replicas with it: such a job goes back to what is durable")
	}
	if c.Cut && c.Servers > 1 {
		return fmt.Errorf("cut: want 1 server with it, or a pair, not %d", c.Servers)
	}
	for _, name := range c.Only {
		if !slices.Contains(Kinds(), name) {
			return fmt.Errorf("fault %q: want some of %s", name, strings.Join(Kinds(), ", "))
		}
		if needs := c.lacks(name); needs != "" {
			return fmt.Errorf("fault %q: want %s with it", name, needs)
		}
	}
	return nil
}

// lacks says what a kind of faults needs and is not asked for; empty: nothing.
func (c *Config) lacks(name string) string {
	switch {
	case name == natsRestarted && c.Servers == 1:
		return "at least 2 servers"
	case name == trainersCut && !c.Cut:
		return "cut"
	case name == pairCut && (!c.Cut || c.Replicas == 0):
		return "cut and 1 replica"
	}
	return ""
}

// Kinds are the names of all faults.
func Kinds() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// bench is a measurement under way.
type bench struct {
	Config
	ctx    context.Context
	r      *rand.Rand
	work   string // folder
	ps     []*server
	nats   *fabric.Server // of several ps; else nil
	result Result
	kinds  map[string]*Kind

	mu      sync.Mutex
	notices []time.Time // when a ps said that a place is vacant, or that its ps is lost
	serving int         // of ps, which has the jobs
	kept    bool        // other ps have all shards of the job
	hosting []int       // by ps, jobs of which it has shards
	whole   []bool      // by ps, whether it could go on with the job of the other
}

// Run measures.
func Run(ctx context.Context, c Config) (_ *Result, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	b := &bench{Config: c, ctx: ctx, r: rand.New(rand.NewPCG(c.Seed, 0)), kinds: map[string]*Kind{},
		result: Result{Seed: c.Seed, Trainers: c.Trainers, Replicas: c.Replicas, Servers: c.Servers}}
	if b.work, err = temporary.Folder("folder of the benchmark"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(b.work)
	defer func() {
		for _, p := range b.ps {
			p.stop(syscall.SIGTERM)
			p.closeLinks()
		}
		if b.nats != nil {
			b.nats.Close()
		}
	}()
	if err := b.startServers(); err != nil {
		return nil, err
	}
	quiet := b.newJob()
	if err := quiet.run(0); err != nil {
		return nil, fmt.Errorf("the job in which nothing happens: %w", err)
	}
	b.result.Digest = quiet.history.digests[0]
	times := quiet.history.times()
	b.result.QuietMS = ms(pause(times[min(100, len(times)-1):], time.Time{}, time.Now()))
	for b.result.Kills < b.Kills && ctx.Err() == nil {
		j := b.newJob()
		if err := j.run(b.Kills - b.result.Kills); err != nil {
			fmt.Fprintf(b.Progress, "%s: %v\n", j.name, err)
		}
		j.note()
		fmt.Fprintf(b.Progress, "%d of %d kills, %d jobs, %d digests differ\n", b.result.Kills, b.Kills, b.result.Jobs,
			b.result.Differ)
	}
	for _, name := range Kinds() {
		for _, when := range []string{"", early} {
			if k := b.kinds[name+when]; k != nil {
				k.finish()
				b.result.Kinds = append(b.result.Kinds, *k)
			}
		}
	}
	return &b.result, ctx.Err()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (b *bench) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// upTo draws a time.
func (b *bench) upTo(d time.Duration) time.Duration { return time.Duration(b.r.Int64N(int64(d))) }

// noticed is the first notice after a time; zero: there is none.
func (b *bench) noticed(after time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.notices {
		if at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// job is one job, and what happens to it.
type job struct {
	*bench
	name     string
	history  history
	trainers []*process
	faults   []fault
}

type fault struct {
	kind
	at time.Time
}

// process is a trainer.
type process struct {
	*exec.Cmd
	ended chan struct{}
	err   error
	gone  bool // it was told to end

}

func (b *bench) newJob() *job {
	b.result.Jobs++
	return &job{bench: b, name: "faults-" + strconv.Itoa(b.result.Jobs)}
}

// run runs the job to its end, with at most so many faults.
func (j *job) run(most int) error {
	for range j.Trainers {
		if err := j.start(); err != nil {
			return err
		}
	}
	defer func() {
		for _, p := range j.trainers {
			_ = p.Process.Signal(syscall.SIGCONT)
			_ = p.Process.Kill()
			<-p.ended
		}
	}()
	for {
		if done, err := j.proceed(200 + j.r.IntN(1500)); err != nil || done {
			return err
		}
		if len(j.faults) < most {
			if err := j.fault(); err != nil {
				return err
			}
		}
	}
}

// start starts a trainer.
func (j *job) start() error {
	m := Member{Server: j.url(), Job: j.name, Trainers: j.Trainers, Epochs: j.Epochs, Hybrid: j.Hybrid}
	p := &process{Cmd: j.Member(m), ended: make(chan struct{})}
	out, err := p.StdoutPipe()
	if err != nil {
		return err
	}
	var errs strings.Builder
	p.Stderr = &errs
	if err := p.Start(); err != nil {
		return fmt.Errorf("start a trainer: %w", err)
	}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e event
			var at int64
			if n, _ := fmt.Sscanf(lines.Text(), "batch %d %d %d", &e.run, &e.batch, &at); n == 3 {
				j.history.batch(e, at)
			} else if digest, ok := strings.CutPrefix(lines.Text(), "digest "); ok {
				j.history.digest(digest)
			}
		}
		if p.err = p.Wait(); p.err != nil {
			p.err = fmt.Errorf("%w: %s", p.err, errs.String())
		}
	}()
	j.trainers = append(j.trainers, p)
	return nil
}

// proceed waits until so many batches more are complete, or the job is over.
func (j *job) proceed(batches int) (over bool, err error) {
	last, changed := j.history.count(), time.Now()
	for want := last + batches; last < want; {
		if err := j.sleep(time.Millisecond); err != nil {
			return false, err
		}
		for i := 0; i < len(j.trainers); i++ {
			p := j.trainers[i]
			select {
			case <-p.ended:
			default:
				continue
			}
			j.trainers = slices.Delete(j.trainers, i, i+1)
			i--
			if p.err != nil && !p.gone {
				return false, fmt.Errorf("a trainer ended: %w", p.err)
			}
			if over = over || p.err == nil; over && len(j.trainers) == 0 {
				return true, nil
			}
		}
		if now := j.history.count(); now > last {
			last, changed = now, time.Now()
		}
		if time.Since(changed) > 90*time.Second {
			return false, errors.New("no batch was complete for 90 s")
		}
		if over {
			j.leaveOut()
		}
	}
	return false, nil
}

// leaveOut ends trainers that have come too late to be part of a job that is over: they wait for others.
func (j *job) leaveOut() {
	for _, p := range j.trainers {
		if time.Since(j.lastFault()) > 5*time.Second {
			p.gone = true
			_ = p.Process.Kill()
		}
	}
}

func (j *job) lastFault() time.Time {
	if len(j.faults) == 0 {
		return time.Now()
	}
	return j.faults[len(j.faults)-1].at
}

// fault injects one fault and replaces the lost processes.
func (j *job) fault() error {
	k := j.draw()
	order := j.r.Perm(len(j.trainers))
	leaving := func(i int) bool { return j.trainers[i].gone } // it has been replaced, and trains on for a moment
	all := order
	if order = slices.DeleteFunc(slices.Clone(order), leaving); k.all {
		k.victims = len(order)
	}
	victims := max(k.victims, 1)
	if victims > len(order) {
		return nil
	}
	if k.ps && j.Replicas > 0 && !j.withReplica() {
		k.name += early
	}
	chosen := order[:victims]
	j.faults = append(j.faults, fault{k, time.Now()})
	one, signal := j.trainers[chosen[0]].Process, cmp.Or(k.signal, syscall.SIGKILL)
	switch k.name {
	case "trainer stopped":
		_ = one.Signal(syscall.SIGSTOP)
		err := j.sleep(j.upTo(time.Second))
		_ = one.Signal(syscall.SIGCONT)
		return err
	case "connections cut":
		_ = one.Signal(cutSignal)
		return nil
	case natsRestarted:
		j.nats.Stop()
		err := j.sleep(j.upTo(time.Second))
		return errors.Join(err, j.nats.Start())
	case trainersCut:
		return j.cut(j.server().fromTrainers)
	case pairCut:
		return j.cut(j.ps[0].fromPeer, j.ps[1].fromPeer)
	}
	lost := j.victim()
	if k.ps {
		lost.stop(signal)
	}
	dead := chosen[:k.victims]
	if k.all {
		dead = all
	}
	for _, i := range dead {
		j.trainers[i].gone = true
		_ = j.trainers[i].Process.Signal(signal)
	}
	if k.ps {
		if err := j.startServer(lost); err != nil {
			return err
		}
	}
	for range k.victims {
		if err := j.sleep(j.upTo(800 * time.Millisecond)); err != nil {
			return err
		}
		if err := j.start(); err != nil {
			return err
		}
	}
	return nil
}

// draw draws a kind.
func (j *job) draw() kind {
	var all []kind
	sum := 0
	for _, k := range kinds {
		if (len(j.Only) == 0 || slices.Contains(j.Only, k.name)) && j.lacks(k.name) == "" {
			all, sum = append(all, k), sum+k.weight
		}
	}
	at := j.r.IntN(sum)
	for _, k := range all {
		if at -= k.weight; at < 0 {
			return k
		}
	}
	panic("faults: no kind was drawn")
}

// note adds what has come of the job to the result.
func (j *job) note() {
	times := j.history.times()
	for _, d := range j.history.digests {
		if d != j.result.Digest {
			j.result.Differ++
		}
	}
	if len(j.history.digests) == 0 {
		j.result.Lost++
	}
	for i, f := range j.faults {
		until := time.Now()
		if i+1 < len(j.faults) {
			until = j.faults[i+1].at
		}
		k := j.kinds[f.name]
		if k == nil {
			k = &Kind{Name: f.name}
			j.kinds[f.name] = k
		}
		k.Kills++
		j.result.Kills++
		k.pauses = append(k.pauses, ms(pause(times, f.at, until)))
		if at := j.noticed(f.at); !f.harmless && (j.Replicas > 0 || !f.ps) && !at.IsZero() && at.Before(until) {
			k.notices = append(k.notices, ms(at.Sub(f.at)))
		}
		k.Again += j.history.again(f.at, until)
	}
}
