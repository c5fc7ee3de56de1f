package ps

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

const (
	// tickEvery is how often coordinators look at deadlines and send beats.
	tickEvery = time.Second
	// askBefore is how long before a tick shards are asked how they fare, so that what it looks at is no older.
	askBefore = 100 * time.Millisecond
	// lettersMax and letterBytesMax bound what waits for the desk: a second of beats of the largest job, and joins, which
	// may take 1 MiB each. What finds it full is dropped; trainers repeat all of it.
	lettersMax     = 4 * 4096
	letterBytesMax = 64 << 20
)

// desk runs the coordinators of all jobs on one goroutine. Control messages are few: a beat a second for each trainer.
type desk struct {
	server  *Server
	letters chan letter
	bytes   atomic.Int64 // of the letters in letters
	news    chan shardNews
	done    chan struct{}

	shutting chan struct{}
	once     sync.Once

	snapshot atomic.Pointer[Stats]
	turned   moment // when the goroutine last began a turn

	// What follows belongs to the goroutine.
	jobs      map[schema.JobName]*job      // that this ps coordinates
	kept      map[schema.JobName]*kept     // that it keeps shards of
	leaving   map[*kept]struct{}           // whose shards were told to end and have not yet
	waiting   map[schema.JobName][]letter  // joins, until it is known who coordinates the job
	joins     int                          // in waiting
	elsewhere map[schema.JobName]time.Time // until when a job counts as another's, who keeps no shard here
	doubts    []doubted                    // words of coordinators that may be none
	asked     map[schema.JobName]struct{}  // whose assignment the registry is asked about
	own       []ownLetter                  // between this ps and the coordinators on it
	ended     []endedJob
	shown     []schema.JobPulse // jobs that have ended lately, as pulses tell of them
	refused   refusedJoins
	heap      int64 // bytes that the heap was limited to last
}

// letter is a verified control or beat frame.
type letter struct {
	job      schema.JobName
	from, to schema.Member
	view     schema.View
}

func newDesk(s *Server) *desk {
	d := &desk{
		server: s, letters: make(chan letter, lettersMax), news: make(chan shardNews), done: make(chan struct{}),
		shutting: make(chan struct{}), jobs: map[schema.JobName]*job{}, kept: map[schema.JobName]*kept{}, leaving: map[*kept]struct{}{},
		waiting: map[schema.JobName][]letter{}, asked: map[schema.JobName]struct{}{}, elsewhere: map[schema.JobName]time.Time{},
	}
	d.snapshot.Store(&Stats{})
	return d
}

// receive takes what comes in for coordinators. It never waits.
func (d *desk) receive(m fabric.Message) {
	s := d.server
	subject, err := m.Parse()
	if err != nil || subject.From != string(schema.Coordinator) { // whose beats are our own, or nearly
		s.counters.received(len(m.Data))
	}
	if err != nil {
		s.counters.count(schema.ReasonMalformed)
		return
	}
	view, err := schema.Verify(m.Data, s.limits)
	if err != nil {
		d.refuse(&subject, schema.Head{}, schema.Refusing(err))
		return
	}
	head := view.Head()
	if kindToken(head.Kind) != subject.Kind {
		d.refuse(&subject, head, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s", head.Kind, subject.Kind))
		return
	}
	bytes := int64(len(view.Bytes()))
	if d.bytes.Add(bytes) <= letterBytesMax {
		select {
		case d.letters <- letter{schema.JobName(subject.Job), schema.Member(subject.From), schema.Member(subject.To), view}:
			return
		default:
		}
	}
	d.bytes.Add(-bytes)
	s.counters.dropped.Add(1)
}

// taken gives back the room of a letter that waits no more.
func (d *desk) taken(l *letter) { d.bytes.Add(-int64(len(l.view.Bytes()))) }

// refuse tells a sender in the coordinator's name why its frame went nowhere.
func (d *desk) refuse(subject *fabric.Subject, head schema.Head, r *refusal) {
	if d.server.control != nil {
		d.server.refuseAs(d.server.control, schema.Coordinator, subject, head, r)
	}
}

// close asks the goroutine to take leave of all jobs and end.
func (d *desk) close() { d.once.Do(func() { close(d.shutting) }) }

// run is the desk's goroutine.
func (d *desk) run(ctx context.Context) {
	defer close(d.done)
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	ask := time.NewTimer(tickEvery - askBefore)
	defer ask.Stop()
	for {
		d.turned.set(d.server.now())
		select {
		case l := <-d.letters:
			d.taken(&l)
			d.read(ctx, &l)
		case n := <-d.news:
			d.hear(n)
		case c := <-d.server.registry.results:
			d.claimed(c)
		case q := <-d.server.registry.answers:
			d.answered(ctx, &q)
		case n := <-d.server.registry.news:
			d.look(ctx, n)
		case <-ticker.C:
			d.readAll(ctx)
			d.tick(ctx, d.server.now())
			ask.Reset(tickEvery - askBefore)
		case <-ask.C:
			d.askShards()
		case <-d.shutting:
			d.shutdown()
			return
		case <-ctx.Done():
			d.shutdown()
			return
		}
		d.readOwn(ctx)
		d.publishStats()
	}
}

// readAll reads what has come before a tick: a beat that waits here, because this process had no time for it, is a sign of life all the same.
// Where so many wait that reading them takes until the next tick, what the registry has found out goes between them.
func (d *desk) readAll(ctx context.Context) {
	for range len(d.letters) { // nobody else takes any
		l := <-d.letters
		d.taken(&l)
		d.read(ctx, &l)
		select {
		case c := <-d.server.registry.results:
			d.claimed(c)
		case n := <-d.server.registry.news:
			d.look(ctx, n)
		default:
		}
		d.readOwn(ctx)
	}
}

// tick beats for every job and lets its coordinator look at deadlines; coordinators elsewhere are told how our shards fare.
func (d *desk) tick(ctx context.Context, now time.Time) {
	// A connection that the server gave up belongs to a trainer that may be cut off: it has until the deadline to come back.
	var clients []string
	if len(d.jobs)+len(d.kept) > 0 {
		clients = append(d.server.nats.Clients(), d.server.nats.Faded()...)
	}
	d.checkFit()
	d.limitHeap()
	for _, name := range slices.Sorted(maps.Keys(d.kept)) {
		d.kept[name].tickModules(now, clients)
		d.tickKept(d.kept[name], now)
	}
	d.readOwn(ctx)
	maps.DeleteFunc(d.elsewhere, func(_ schema.JobName, until time.Time) bool { return now.After(until) })
	for _, name := range slices.Sorted(maps.Keys(d.jobs)) {
		j := d.jobs[name]
		if d.server.controlLost.Load() {
			d.carryOut(j, j.coordinator.Blind(now, d.server.control.Address()))
			continue
		}
		j.coordinator.Connections(clients)
		d.carryOut(j, j.coordinator.Tick(now))
		if j.coordinator.Phase() != Ended {
			d.putOff(j, now)
			d.beat(j)
		}
	}
	d.pulse(now)
}

// askShards asks our shards how they fare. They have answered by the next tick, unless they are at work for longer.
func (d *desk) askShards() {
	for _, k := range d.kept {
		for _, i := range k.own {
			k.workers[i].refresh()
		}
	}
}

// beat tells a job's trainers, and who keeps its shards, that the coordinator is there.
func (d *desk) beat(j *job) {
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindBeat})
	if err != nil {
		d.server.log.Error("build beat", "err", err)
		return
	}
	f.SetHead(schema.Head{Job: j.run, Generation: generationFirst, Lanes: uint16(j.manifest.Lanes)})
	d.server.post(fabric.At(string(j.manifest.Name), string(schema.Coordinator), fabric.KindBeat, string(schema.All)), f.Seal())
}

// carryOut publishes and logs what a coordinator decided, and frees the job where it has ended.
func (d *desk) carryOut(j *job, decisions []Decision) {
	log := d.server.log.With("job", j.manifest.Name)
	for _, decision := range decisions {
		if decision.Record != nil {
			d.server.registry.noteLR(lrRecord{j.manifest.Name, j.run, decision.Record})
		}
		switch decision.To {
		case "":
		case d.server.member:
			d.own = append(d.own, ownLetter{j.manifest.Name, j.run, schema.Coordinator, decision.Control})
		default:
			d.send(j.manifest.Name, j.run, decision.To, decision.Control)
		}
		if decision.Note == "" || decision.Control.Refused != nil && decision.Control.Refused.Reason != schema.RefusedLR { // see joinRefused
			continue
		}
		about := log
		if decision.Who != "" {
			about = log.With("member", decision.Who)
		}
		if decision.Control.Failed != nil {
			about.Warn(decision.Note)
		} else {
			about.Info(decision.Note)
		}
	}
	if j.coordinator.Phase() == Ended {
		d.free(j)
	}
}

// send publishes a control message from the coordinator.
func (d *desk) send(name schema.JobName, run schema.RunID, to schema.Member, c schema.Control) {
	d.sendAs(schema.Coordinator, name, run, to, c)
}

func (d *desk) sendAs(from schema.Member, name schema.JobName, run schema.RunID, to schema.Member, c schema.Control) {
	frame, err := schema.EncodeControl(schema.Head{Job: run, Generation: generationFirst}, c)
	if err != nil {
		d.server.log.Error("encode control", "job", name, "message", c.Name(), "err", err)
		return
	}
	d.server.post(fabric.At(string(name), string(from), fabric.KindCtl, string(to)), frame)
}

// free ends a job that this ps coordinates. Its name may be registered again when this returns.
func (d *desk) free(j *job) {
	if d.jobs[j.manifest.Name] != j {
		return
	}
	d.drop(j)
	d.remember(j)
	d.show(j, time.Now())
	if f := j.coordinator.Failed(); f != nil { // before anybody was admitted
		d.turnAway(j.manifest.Name, &schema.Refused{Reason: "server_full", Text: f.Text})
	}
}

// drop takes a job out of the registry and has its shards let go.
func (d *desk) drop(j *job) {
	delete(d.jobs, j.manifest.Name)
	d.server.registry.end(j.manifest.Name, endedRun{j.run, j.coordinator.Joiners()})
	for i := range j.servers {
		if member := schema.ServerMember(j.servers[i].ID); member != d.server.member {
			d.send(j.manifest.Name, j.run, member, schema.Control{Release: &schema.Release{}})
		}
	}
	if k := d.kept[j.manifest.Name]; k != nil && k.run == j.run {
		d.release(k)
	}
}

// shutdown ends every job. Whoever waits for the desk waits for what it has released, too.
func (d *desk) shutdown() {
	const why = "the parameter server is shutting down"
	for _, name := range slices.Sorted(maps.Keys(d.jobs)) {
		d.carryOut(d.jobs[name], d.jobs[name].coordinator.Fail(schema.Coordinator, why))
	}
	for _, name := range slices.Sorted(maps.Keys(d.kept)) {
		d.keeperFailed(d.kept[name], d.server.member, why)
		d.release(d.kept[name])
	}
	for name := range d.waiting {
		d.turnAway(name, &schema.Refused{Reason: "shutting_down", Text: why})
	}
	for {
		select {
		case l := <-d.letters:
			d.taken(&l)
			d.sendAway(&l)
		default:
			d.publishStats()
			return
		}
	}
}

// forget takes it that all that was released is free. The goroutine has ended.
func (d *desk) forget() {
	clear(d.leaving)
	d.publishStats()
}

func (d *desk) publishStats() {
	stats := &Stats{}
	for _, name := range slices.Sorted(maps.Keys(d.jobs)) {
		j := d.jobs[name]
		status := j.coordinator.Status()
		if k := d.kept[name]; k != nil {
			status.Bytes = k.memory.Bytes()
		}
		stats.Jobs = append(stats.Jobs, status)
	}
	for _, k := range d.held() {
		stats.Memory += k.memory.Bytes()
	}
	d.snapshot.Store(stats)
}

// newRunID draws the number that tells this run of a job from every other.
func newRunID() (schema.RunID, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, err
		}
		if id := schema.RunID(binary.LittleEndian.Uint64(b[:])); id != 0 {
			return id, nil
		}
	}
}
