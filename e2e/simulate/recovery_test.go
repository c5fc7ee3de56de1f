package simulate

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gradbus/checkpoint"
	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

var singleRow = flag.String("row", "", "rows of the recovery table that have this in them, whose traces are shown")

// What happens when in a row, in virtual time.
const (
	batchTakes    = time.Second
	diesAt        = 16              // the batch in or before which processes die
	versionEvery  = 4               // batches between two versions in a folder
	startedAfter  = 4 * time.Second // after which they are started again, when they count as lost
	splitAt       = 6               // the batch after which the network is split
	startedBeyond = 8 * time.Second // after the network is split, trainers are
	splitFor      = 27 * time.Second
	rowEndsWithin = 2 * time.Minute
	diskWrites    = 12 // operations of a disk after which a version is half written
)

// TestRecoveryRow is what TestRecovery runs, for one row.
func TestRecoveryRow(t *testing.T) {
	if *singleRow == "" {
		t.Skip("runs one row of the recovery table, the text of which, up to the colon, is -row")
	}
	row, err := rowOf(*singleRow)
	if err != nil {
		t.Fatal(err)
	}
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	synctest.Test(t, func(t *testing.T) {
		result, err := json.Marshal(runRow(t, row, backend))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("result %s\n", result)
	})
}

// recovery runs a row.
type recovery struct {
	*system
	row       recoveryRow
	members   []*recoveringTrainer
	allFailed chan struct{} // gets one value when all of the first trainers have been killed or have failed
	stopped   chan struct{} // closed when no process is to start any more
	beyond    *server       // that new trainers name, in or after a split; nil: the coordinator's
	struck    bool          // the processes have died; guarded by system.mu, as are the fields below

	runs      []schema.RunID
	restarted bool                                 // a run goes on from another
	complete  [recoveryLanes]map[schema.Batch]bool // lanes of batches that a trainer knows to be complete
	again     [recoveryLanes]map[schema.Batch]bool // those that were computed again after that
	counts    [recoveryCounts]float32              // values of counts at the end, of the trainer that has most
	ended     int                                  // number of trainers that came to the end of the job
	sum       string                               // digest that they have
	errors    []string                             // of trainers that were not killed, in order
}

// recoveringTrainer is a trainer process of a row.
type recoveringTrainer struct {
	member
	again  bool // it was started after a death
	failed bool // it has ended by an error
}

// runRow runs one row to its end.
func runRow(t *testing.T, row recoveryRow, backend cuda.Backend) recoveryResult {
	s := &system{t: t, r: rand.New(rand.NewPCG(1, 0)), job: recoveryJob(row.job, row.trainers), bus: fabric.NewBus(),
		backend: backend, done: make(chan struct{}), begun: map[schema.RunID]begun{}, began: time.Now()}
	s.log = slog.New(listener{Handler: slog.NewTextHandler(s, &slog.HandlerOptions{ReplaceAttr: withoutTime}), system: s})
	r := &recovery{system: s, row: row, stopped: make(chan struct{}), allFailed: make(chan struct{}, 1)}
	for l := range r.complete {
		r.complete[l], r.again[l] = map[schema.Batch]bool{}, map[schema.Batch]bool{}
	}
	r.startGroup()
	first := row.trainers
	if row.when == whenGathering {
		first--
	}
	for range first {
		r.start(false)
	}
	ended := make(chan struct{})
	go func() { s.all.Wait(); close(ended) }()
	outcome := ""
	select {
	case <-ended:
		outcome = r.outcome()
	case <-r.allFailed:
		outcome = r.outcome()
	case <-time.After(rowEndsWithin):
		outcome = fmt.Sprintf("no end within %v", rowEndsWithin)
	}
	close(r.stopped)
	for _, m := range r.members {
		m.host.Kill()
		m.end(errDead)
	}
	<-ended
	for _, v := range s.servers {
		v.Close()
	}
	if s.nats != nil {
		s.nats.Close()
	}
	return r.result(outcome)
}

// startGroup starts the servers: one; two of which each holds replicas for the other; or two that share a control
// server, each with a shard of the job.
func (r *recovery) startGroup() {
	replica := r.row.keeps == keepsReplica
	servers, shared := 1, r.row.shards > 1 && !replica
	if replica && r.row.shards > 1 && r.row.who != whoReplica && r.row.who != whoTrainer && r.row.who != whoTrainers {
		shared, r.peers = true, true
	}
	if shared || replica {
		servers = 2
	}
	if shared {
		if err := r.startNATS(); err != nil {
			r.t.Fatal(err)
		}
	}
	each := r.row.shards
	if shared {
		each = 1
	}
	for i := range servers {
		v := &server{id: string(rune('a' + i)), port: 4222 + i, host: r.bus.Host(), shards: each,
			url: fmt.Sprintf("memory://local:%d", 4222+i)}
		if shared {
			v.url = r.nats.URL()
		} else if replica {
			v.replica = fmt.Sprintf("memory://local:%d", 4223-i)
		}
		v.checkpoints = checkpoint.Policy{Batches: versionEvery}
		owner := v
		if shared && i > 0 {
			owner = r.servers[0] // all write to one folder
		}
		_, v.disk = diskOf(owner.id)
		if r.row.keeps != keepsNothing {
			v.dir = folder(r.t, owner.id)
		}
		r.servers = append(r.servers, v)
		r.system.start(v)
	}
}

// coordinators gives the server that has the job, and the other one; nil where there is none.
func (r *recovery) coordinators() (has, other *server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	has = r.servers[0]
	for _, v := range r.servers {
		if v.has {
			has = v
		}
	}
	for _, v := range r.servers {
		if v != has {
			other = v
		}
	}
	return has, other
}

// start starts a trainer process.
func (r *recovery) start(again bool) {
	r.mu.Lock()
	m := &recoveringTrainer{again: again}
	m.member = member{name: fmt.Sprintf("m%d", len(r.members)), host: r.bus.Host(), gone: make(chan struct{})}
	r.members = append(r.members, m)
	if r.split != nil {
		r.split.put(m.host, 1)
	}
	r.mu.Unlock()
	ctx, end := context.WithCancelCause(context.Background())
	m.end = end
	at, _ := r.coordinators()
	if r.beyond != nil {
		at = r.beyond
	}
	config := trainer.Config{Server: at.url, Bus: m.host, Backend: r.backend, Log: r.log.With("process", m.name),
		HeartbeatEvery: 500 * time.Millisecond, RetryAfter: 300 * time.Millisecond, ReconnectTimeout: 20 * time.Second,
		LeaveWithin: time.Second, AnswerWithin: 5 * time.Second, TelemetryEvery: -1}
	if strings.HasSuffix(r.row.job, " start") {
		config.Dense = startValues()
	}
	if r.row.when == whenGathering {
		config.OnWaiting = func(missing int) {
			if missing == 1 {
				go r.strike()
			}
		}
	}
	r.note("%s starts", m.name)
	r.all.Go(func() {
		defer close(m.gone)
		err := r.train(ctx, config, m)
		if r.note("%s ends: %v", m.name, err); err == nil || ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if m.failed = true; r.over || r.beyond != nil && again {
			return // the error says so, or what it cannot reach
		}
		r.errors = append(r.errors, err.Error())
		if !slices.ContainsFunc(r.members, func(m *recoveringTrainer) bool { return !m.again && !m.dead && !m.failed }) {
			select {
			case r.allFailed <- struct{}{}:
			default:
			}
		}
	})
}

// train is what a trainer process does.
func (r *recovery) train(ctx context.Context, config trainer.Config, m *recoveringTrainer) (err error) {
	session, err := trainer.Join(ctx, config, r.job)
	if err != nil {
		return err
	}
	defer func() {
		if ending := session.Abort(err); err == nil {
			err = ending
		}
	}()
	run := session.RunID()
	r.begins(m, run, session.Version() > 0)
	follow := func() {
		if run != session.RunID() {
			run = session.RunID()
			r.begins(m, run, true)
		}
	}
	victim := m.name == fmt.Sprintf("m%d", r.row.trainers-1)
	w := counted{ctx: ctx, job: r.job, enter: func(b schema.Batch, l lane.Lane) {
		follow()
		r.computes(b, l)
		first, lanes := session.Lanes()
		if r.row.when == whenInBatch && victim && b == diesAt && l == first+lane.Lane(lanes-1) {
			r.strikeAndWait()
		}
	}}
	if len(r.job.Modules) > 0 {
		if w.module, err = session.Module("head"); err != nil {
			return err
		}
	}
	left := recoveryBatches - min(recoveryBatches, uint64(session.Version()))
	if left == 0 {
		return r.ends(ctx, session)
	}
	err = session.Run(ctx, w, left, func(p trainer.Progress) {
		follow()
		if _, ok := r.row.split(); ok {
			r.system.complete(&m.member, run, session.Version(), p.Batch)
		}
		r.completes(session, p.Batch)
		time.Sleep(batchTakes / 2)
		if p.Batch == splitAt && r.beyond == nil {
			if _, ok := r.row.split(); ok {
				r.strikeAndWait()
			}
		}
		if p.Batch == diesAt-1 && victim && r.row.who != whoNobody {
			switch r.row.when {
			case whenBetween:
				r.strikeAndWait()
			case whenWriting:
				r.strikeWhenWriting()
			}
		}
		time.Sleep(batchTakes / 2)
	})
	if err != nil {
		return err
	}
	err = r.ends(ctx, session)
	follow()
	return err
}

// strikeAndWait ends the processes that die. The caller may be a goroutine of one of them.
func (r *recovery) strikeAndWait() {
	done := make(chan struct{})
	go func() { defer close(done); r.strike() }()
	<-done
}

// strikeWhenWriting ends them when the disk of the versions has stopped in the middle of one.
func (r *recovery) strikeWhenWriting() {
	at, _ := r.coordinators()
	disk := at.disk
	control(disk, diskFails, diskWrites)
	r.all.Go(func() {
		for control(disk, diskAsks, 0) == 0 {
			select {
			case <-r.stopped:
				return
			case <-time.After(time.Millisecond):
			}
			if r.isOver() {
				r.note("no version is written")
				return
			}
		}
		r.strike()
		control(disk, diskWorks, 0)
	})
}

// strike ends the processes that die, once, and has them started again.
func (r *recovery) strike() {
	r.mu.Lock()
	again := r.struck || r.row.who == whoNobody
	r.struck = true
	members := slices.Clone(r.members)
	r.mu.Unlock()
	if again {
		return
	}
	has, other := r.coordinators()
	if n, ok := r.row.split(); ok {
		r.splitNetwork(has, other, n)
		return
	}
	var servers []*server
	switch r.row.who {
	case whoTrainer, whoBoth:
		members = members[len(members)-1:]
	case whoTrainers:
	default:
		members = nil
	}
	switch r.row.who {
	case whoCoordinator, whoBoth:
		servers = []*server{has}
	case whoOther, whoReplica:
		servers = []*server{other}
	}
	for _, m := range members {
		r.note("%s is killed", m.name)
		r.mu.Lock()
		m.dead = true
		r.mu.Unlock()
		m.host.Kill()
		m.end(errDead)
	}
	for _, v := range servers {
		r.note("ps %s is killed", v.id)
		r.endServer(v)
	}
	r.all.Go(func() {
		if r.row.when == whenGathering {
			defer r.startUnlessOver(false)
		}
		time.Sleep(startedAfter)
		for _, v := range servers {
			r.note("ps %s starts", v.id)
			r.system.start(v)
		}
		time.Sleep(time.Second) // those that are alive rejoin first
		for range members {
			r.startUnlessOver(true)
		}
	})
}

// splitNetwork cuts the coordinator's ps off from the replica's and the last n trainers, for a while. On their side as many
// trainers start as the job has.
func (r *recovery) splitNetwork(has, other *server, n int) {
	p := &split{link: fabric.LinkCut, oneWay: r.row.when == splitOneWay}
	if r.row.when == splitRefused {
		p.link = fabric.LinkRefused
	}
	r.note("the network is split")
	p.put(has.host, 0)
	p.put(other.host, 1)
	r.mu.Lock()
	r.split, r.beyond = p, other
	members := slices.Clone(r.members)
	r.mu.Unlock()
	for i, m := range members {
		half := 0
		if i >= len(members)-n {
			half = 1
		}
		p.put(m.host, half)
	}
	r.all.Go(func() {
		time.Sleep(startedBeyond)
		for range r.row.trainers {
			r.startUnlessOver(true)
		}
		time.Sleep(splitFor - startedBeyond)
		r.mu.Lock()
		r.split = nil
		for _, m := range r.members {
			if m.again && r.over { // it would begin a new job
				m.host.Kill()
				m.end(errDead)
			}
		}
		r.mu.Unlock()
		p.heal()
		r.note("the network is whole")
	})
}

// startUnlessOver starts a trainer process where there is still something to train.
func (r *recovery) startUnlessOver(again bool) {
	r.mu.Lock()
	left := slices.ContainsFunc(r.members, func(m *recoveringTrainer) bool { return !m.dead && !m.failed })
	over := r.over || len(r.errors) > 0 && !left
	r.mu.Unlock()
	select {
	case <-r.stopped:
	default:
		if !over {
			r.start(again)
		}
	}
}
