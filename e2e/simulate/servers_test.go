package simulate

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric"
	"gradbus/ps"
	"gradbus/schema"
)

// server is a ps on a machine of its own.
type server struct {
	*ps.Server
	host         *fabric.Bus
	id, dir      string
	url, replica string
	port         int
	shards       int               // of each job; 0: drawn
	checkpoints  checkpoint.Policy // how often versions are written down
	off          int64             // of its clock, in seconds

	disk    uint32
	liar    bool           // the disk has said that it has what it may not have
	returns bool           // the next job goes on from one that was lost; of system.mu, as the next
	has     bool           // the job is here, or awaited
	takes   bool           // the next job goes on with what is here of another's
	durable schema.Version // the newest that the disk must have
	rotten  int            // full checkpoints to come until nothing goes on from a file of which a bit was changed
}

// start starts a server at the address that it always has.
func (s *system) start(v *server) {
	config := ps.Config{Port: v.port, ID: v.id, Shards: v.shards, Deadline: 3 * time.Second,
		Checkpoints: v.checkpoints, Peer: v.replica}
	config.Checkpoints.Dir = v.dir
	if v.shards == 0 {
		config.Shards = 1 + s.r.IntN(3)
	}
	if s.nats != nil {
		config.NATS = s.nats.URL()
	}
	if v.replica != "" || s.nats != nil && s.peers {
		config.Replicas = 1
	}
	setClock(&v.off)
	defer setClock(nil)
	started, err := ps.Start(context.Background(), config,
		ps.Options{Bus: v.host, Backend: s.backend, Log: slog.New(legal{s.log.Handler()}).With("ps", v.id)})
	if err != nil {
		s.t.Errorf("start the server: %v", err)
		return
	}
	v.Server = started
}

// startServers starts the servers: one, two that hold replicas for each other, or with a control server several.
func (s *system) startServers(n int) {
	urls := []string{"memory://local:4222", "memory://local:4223", "memory://local:4224"}
	for i := range n {
		v := &server{id: string(rune('a' + i)), port: 4222 + i, host: s.bus.Host(), url: urls[i],
			checkpoints: checkpoint.Policy{Every: time.Second}}
		if s.nats != nil {
			v.url = s.nats.URL()
		} else if n > 1 {
			v.replica = urls[1-i]
		}
		if s.nats != nil && i > 0 { // all write to one folder
			v.dir, v.disk = s.servers[0].dir, s.servers[0].disk
		} else {
			v.dir = folder(s.t, v.id)
			_, v.disk = diskOf(v.id)
		}
		s.servers = append(s.servers, v)
		s.start(v)
	}
}

// startNATS starts a server that carries control between those with shards.
func (s *system) startNATS() error {
	var err error
	s.nats, err = fabric.StartServer(fabric.ServerConfig{Bus: s.bus, Port: 4221, JetStream: true, Log: s.log})
	return err
}

// restartNATS ends that server for a time. It has nothing then of what it had.
func (s *system) restartNATS(down time.Duration) {
	s.note("the NATS server is down for %v", down)
	s.nats.Stop()
	time.Sleep(down)
	if err := s.nats.Start(); err != nil {
		s.t.Errorf("start the NATS server: %v", err)
	}
}

// killServer ends a server without a word, and starts it again after a time.
func (s *system) killServer(down time.Duration) {
	v := s.servers[s.r.IntN(len(s.servers))]
	s.note("ps %s killed, for %v", v.id, down)
	s.endServer(v)
	switch s.r.IntN(6) {
	case 0, 1:
		s.note("its machine has had no power")
		control(v.disk, diskLoses, 0)
		for _, other := range s.servers {
			if other.disk == v.disk && other.liar {
				s.doubt(v)
				other.liar = false
			}
		}
	case 2:
		s.note("a bit of its disk is another")
		control(v.disk, diskRots, 0)
		s.doubt(v)
		s.mu.Lock()
		v.rotten = 2
		s.mu.Unlock()
	}
	time.Sleep(down)
	s.start(v)
}

// endServer ends a server without a word.
func (s *system) endServer(v *server) {
	s.mu.Lock()
	for _, p := range s.runs {
		p.ended = p.ended || s.begun[p.run].server == v.id
	}
	s.mu.Unlock()
	control(v.disk, diskFails, 0)
	if s.nats != nil {
		v.host.Kill()
		v.host = s.bus.Host()
	}
	_ = v.RestartNATS(v.Close) // which cannot be heard, nor started again
	control(v.disk, diskWorks, 0)
}

// harmDisk has the disk of a server do badly for a while.
func (s *system) harmDisk(while time.Duration) {
	v := s.servers[s.r.IntN(len(s.servers))]
	switch s.r.IntN(4) {
	case 0, 1:
		after := int64(s.r.IntN(100))
		s.note("the disk of ps %s fails after %d operations, for %v", v.id, after, while)
		control(v.disk, diskFails, after)
	case 2:
		room := int64(s.r.IntN(100_000))
		s.note("the disk of ps %s has room for %d bytes, for %v", v.id, room, while)
		control(v.disk, diskIsFull, room)
	case 3:
		s.note("the disk of ps %s lies, for %v", v.id, while)
		control(v.disk, diskLies, 0)
		v.liar = true
	}
	if time.Sleep(while); s.r.IntN(2) == 0 {
		s.killServer(time.Duration(s.r.IntN(3000)) * time.Millisecond)
	}
	control(v.disk, diskWorks, 0)
}

// server is one by its id; nil: it has not started yet.
func (s *system) server(id string) *server {
	i := slices.IndexFunc(s.servers, func(v *server) bool { return v.id == id })
	if i < 0 {
		return nil
	}
	return s.servers[i]
}

// durable notes what a server says: which version is durable. What goes on from a file that may have rotted may be
// nothing: an increment was asked for, over it, while the next full checkpoint was written.
func (s *system) durable(server string, version schema.Version, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.server(server)
	if v == nil {
		return
	}
	s.written++
	rotten := false
	for _, other := range s.servers {
		if other.disk == v.disk && other.rotten > 0 {
			if full {
				other.rotten--
			}
			rotten = true
		}
	}
	if !rotten {
		v.durable = version
	}
}

// returns notes that the next job that a server registers goes on from one that was lost, or that a job is registered:
// if it is another one, nothing of the one before is to be found in it.
func (s *system) returns(server string, next bool, run schema.RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.server(server)
	if v == nil {
		return
	}
	if !next && !v.returns {
		s.doubtLocked(v)
	}
	if pair := s.nats == nil && len(s.servers) > 1; !next {
		s.begun[run] = begun{server: v.id, at: time.Now(), takes: v.takes, anew: pair && !v.takes && !v.returns}
	}
	v.takes = false
	if v.returns = next; next {
		return
	}
	for _, other := range s.servers { // who had been asked for it, too
		if other.disk == v.disk {
			other.returns = false
		}
	}
}

// takesOver notes that the next job that a server registers goes on with what it has of that of another.
func (s *system) takesOver(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.server(server); v != nil {
		v.takes = true
	}
}

// another is the number of the server that a trainer names in place of the first. Of two that hold replicas for each
// other, all trainers of a new job name the first: only where the job is at the other one that is named.
func (s *system) another() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.servers) - 1
	if s.nats == nil && !s.servers[last].has {
		return 0
	}
	return last
}

// has notes that a server has the job, or that its trainers are awaited there.
func (s *system) has(server string, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.server(server); v != nil {
		v.has = has
	}
}

// doubt has nothing be expected of what a disk has.
func (s *system) doubt(v *server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubtLocked(v)
}

func (s *system) doubtLocked(v *server) {
	for _, other := range s.servers {
		if other.disk == v.disk {
			other.durable = 0
		}
	}
}

// begins checks that a run which begins at a version has lost nothing that was durable. Of two servers that hold
// replicas for each other another one may have gone on, from memory and a little less.
func (s *system) begins(version schema.Version) {
	want := schema.Version(0)
	for _, v := range s.servers {
		want = max(want, v.durable)
	}
	if (len(s.servers) == 1 || s.nats != nil) && version < want {
		s.t.Errorf("a run begins at version %d, and version %d was durable", version, want)
	}
}

// cutServer cuts a server off from everybody for a while.
func (s *system) cutServer(cut time.Duration) {
	v := s.servers[s.r.IntN(len(s.servers))]
	s.note("ps %s cut off for %v", v.id, cut)
	s.cut(v.host, cut, func() bool {
		s.noteLocked("ps %s cut off no more", v.id)
		return true
	})
}

// legal panics when a ps logs an illegal transition, which ends the job in production.
type legal struct{ slog.Handler }

// Handle implements slog.Handler.
func (l legal) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "illegal transition" {
		panic(r.Message)
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l legal) WithAttrs(attrs []slog.Attr) slog.Handler { return legal{l.Handler.WithAttrs(attrs)} }
