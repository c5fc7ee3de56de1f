package harness

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/ps"
	"gradbus/schema"
)

// Role is the work of one member. It returns when the work is done or ctx ends; its result is what encoding/json can
// write. After an error no member continues, so a role need not tell the others.
type Role func(ctx context.Context, m *Member) (result any, err error)

// ErrStopped: the driver wanted the member to end while it was waiting to begin.
var ErrStopped = errors.New("stopped while waiting to begin")

// progressEvery is the shortest interval between two progress reports of a member.
const progressEvery = 100 * time.Millisecond

// Member is the view that a role has of itself and of its driver. Its methods may be called from any goroutine.
type Member struct {
	// Name is the driver's name of this member, for example t0.
	Name string

	alone    bool // it has a process of its own
	settings json.RawMessage
	done     chan struct{}
	stop     sync.Once
	released chan struct{}        // one for each release; room for goesMax
	asks     chan json.RawMessage // room for one: the driver waits for the answer

	mu     sync.Mutex // held while a value is sent, so that its parts stay together
	send   func(message) error
	shown  time.Time
	counts [2]int // of the last progress that was sent
	clock  clockOf
}

// goesMax bounds the releases ahead of their waits: the driver sends one only after it saw the wait, so there is never
// more than one.
const goesMax = 4

func newMember(name string, settings json.RawMessage, send func(message) error) *Member {
	return &Member{Name: name, alone: true, settings: settings, done: make(chan struct{}),
		released: make(chan struct{}, goesMax), asks: make(chan json.RawMessage, 1), send: send}
}

// Settings decodes this member's settings, whose JSON may have no field that into lacks.
func (m *Member) Settings(into any) error {
	if err := decode(m.settings, into); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	return nil
}

// Tell gives the driver a named value, for Handle.Told. A later value of the same name takes the place of the first.
func (m *Member) Tell(key string, value any) error { return m.say(opTell, key, value) }

// Say gives the driver a line to print. Lines of all members come out in the order in which they arrive.
func (m *Member) Say(line string) error { return m.say(opSay, "", line) }

// Feed tells the driver that SayAt will be called for streams: "" is the member's own. It comes before a Wait, so that
// the driver knows of all streams before the first line.
func (m *Member) Feed(streams ...string) error {
	for _, stream := range streams {
		if err := m.event(stream, 0, ""); err != nil {
			return err
		}
	}
	return nil
}

// SayAt gives the driver a line about an event at a time. Lines of all streams come out in the order of their times. In
// a stream times rise. Several members may feed one with the same lines, of which each comes out once; the own stream,
// "", belongs to this member alone.
func (m *Member) SayAt(stream string, at time.Time, line string) error {
	ns := at.UnixNano()
	if stream == "" {
		m.mu.Lock()
		ns = m.clock.next(at)
		m.mu.Unlock()
	}
	return m.event(stream, ns, line)
}

func (m *Member) event(stream string, at int64, line string) error {
	if stream == "" {
		stream = "member " + m.Name
	}
	return m.tell(message{Op: opEvent, Key: stream, At: at}, line)
}

func (m *Member) say(op, key string, value any) error {
	return m.tell(message{Op: op, Key: key}, value)
}

// tell sends a message with a value.
func (m *Member) tell(whole message, value any) error {
	op, key := whole.Op, whole.Key
	data, err := json.Marshal(value)
	if err == nil {
		whole.Value = data
		err = m.sendAll(whole)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, key, err)
	}
	return nil
}

func (m *Member) sendAll(whole message) error {
	all, err := split(whole)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, part := range all {
		if err := m.send(part); err != nil {
			return err
		}
	}
	return nil
}

// Wait blocks until the driver releases the members of its choice, which it does when all of them wait. Errors: ctx's
// cause, ErrStopped.
func (m *Member) Wait(ctx context.Context) error {
	if err := m.sendAll(message{Op: opWait}); err != nil {
		return fmt.Errorf("wait for the other trainers: %w", err)
	}
	select {
	case <-m.released:
		return nil
	case <-m.done:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Serve answers what the driver asks (Handle.Ask), one question after the other, until the driver wants the member to
// end. Errors: that of answer, ctx's cause.
func (m *Member) Serve(ctx context.Context, answer func(context.Context, json.RawMessage) (any, error)) error {
	for {
		select {
		case question := <-m.asks:
			value, err := answer(ctx, question)
			if err == nil {
				err = m.say(opAnswer, "", value)
			}
			if err != nil {
				return err
			}
		case <-m.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Progress tells the driver how much is done, often or not: what comes soon after the last is not sent, unless done is
// total.
func (m *Member) Progress(done, total int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if counts := [2]int{done, total}; counts == m.counts || (done < total && now.Sub(m.shown) < progressEvery) {
		return
	}
	m.shown, m.counts = now, [2]int{done, total}
	_ = m.send(message{Op: opProgress, Count: done, Total: total}) // a driver that is gone ends this member anyway
}

// LimitProcs gives Go's scheduler n processors in this member's process; 0 leaves it as it is, and so does a member
// that shares its process with others. Where processes outnumber cores, 1 saves the waking of threads that find no
// core: a sixth of the processor time of small rounds.
func (m *Member) LimitProcs(n int) {
	if m.alone && n > 0 {
		runtime.GOMAXPROCS(n)
	}
}

// Done is closed when the driver wants a member that serves to end. Its role then returns its result.
func (m *Member) Done() <-chan struct{} { return m.done }

// order does what the driver says.
func (m *Member) order(o order) error {
	switch o.Op {
	case opGo:
		select {
		case m.released <- struct{}{}:
			return nil
		default:
			return errors.New("order go: no member waits")
		}
	case opAsk:
		select {
		case m.asks <- o.Settings:
			return nil
		default:
			return errors.New("order ask: the last one is not answered")
		}
	case opStop:
		m.stop.Do(func() { close(m.done) })
		return nil
	}
	return fmt.Errorf("order %q: no such order", o.Op)
}

// What a driver says to a member, and the other way round.
const (
	opBe   = "be"   // the first order: what to be
	opGo   = "go"   // one Wait returns
	opAsk  = "ask"  // Settings are what Serve is to answer
	opStop = "stop" // Done is closed

	opTell     = "tell"     // Key, Value
	opAnswer   = "answer"   // Value
	opWait     = "wait"     // the member has reached a Wait
	opProgress = "progress" // Count of Total
	opSay      = "say"      // Value is a line
	opEvent    = "event"    // likewise, of the time At in the stream Key; empty: the member feeds the stream
	opPart     = "part"     // Part of the value of the message after the parts
	opResult   = "result"   // Value; the last message
)

// order is one line on a member's standard input.
type order struct {
	Op       string          `json:"op"`
	Role     string          `json:"role,omitempty"`
	Name     string          `json:"name,omitempty"`
	Settings json.RawMessage `json:"settings,omitempty"`
	Profile  string          `json:"profile,omitempty"` // a file, or empty
}

// message is one line on a member's standard output.
type message struct {
	Op    string          `json:"op"`
	Key   string          `json:"key,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
	Part  []byte          `json:"part,omitempty"`
	At    int64           `json:"at,omitempty,string"` // nanoseconds since 1970
	Count int             `json:"count,omitempty"`
	Total int             `json:"total,omitempty"`
}

const (
	// partBytesMax bounds a value in one message: package spawn reads lines of up to 1 MiB, and a part grows by a third on
	// its way.
	partBytesMax = 512 << 10
	// valueBytesMax bounds what a member may say in one value, in memory of the driver.
	valueBytesMax = 256 << 20
)

// split gives the messages that say m, whose value may be longer than a line.
func split(m message) ([]message, error) {
	n := len(m.Value)
	if n <= partBytesMax {
		return []message{m}, nil
	}
	if n > valueBytesMax {
		return nil, fmt.Errorf("%s %s: %d bytes, want at most %d", m.Op, m.Key, n, valueBytesMax)
	}
	var all []message
	for rest := []byte(m.Value); len(rest) > 0; {
		part := rest[:min(partBytesMax, len(rest))]
		all, rest = append(all, message{Op: opPart, Part: part}), rest[len(part):]
	}
	m.Value = nil
	return append(all, m), nil
}

// decode is json.Unmarshal that refuses fields that into does not have, and anything after the value.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%d bytes after the value", len(data)-int(d.InputOffset()))
	}
	return nil
}

// lines are those that members say of events, which come out in the order of their times, whichever member was faster
// to say them. A line waits until no stream that is open can bring an earlier one: so nothing waits for a clock, and a
// line comes at the latest when all members with earlier lines have ended.
type lines struct {
	streams map[string]*stream
	waiting []timedLine // in the order of their times
	given   int64       // time of the last that is ready
}

// stream is a sequence of lines whose times rise. It is open while one of those that have fed it lives.
type stream struct {
	feeders map[*Handle]bool
	mark    int64 // of the latest line: what its member says from now on is later
}

type timedLine struct {
	at           int64 // nanoseconds since 1970
	stream, text string
}

// feed takes a line of a stream from a member, or, where the text is empty, the word that the member feeds it.
func (l *lines) feed(from *Handle, name string, at int64, text string) {
	if l.streams == nil {
		l.streams = map[string]*stream{}
	}
	s := l.streams[name]
	if s == nil {
		s = &stream{feeders: map[*Handle]bool{}}
		l.streams[name] = s
	}
	if !from.hasEnded() {
		s.feeders[from] = true
	}
	said := func(line timedLine) bool { return line.at == at && line.stream == name }
	if text == "" || at <= l.given || slices.ContainsFunc(l.waiting, said) { // by another member
		return
	}
	s.mark = max(s.mark, at)
	place := l.before(at)
	l.waiting = slices.Insert(l.waiting, place, timedLine{at, name, text})
}

// before returns the number of waiting lines that are not later than a time.
func (l *lines) before(at int64) int {
	n, _ := slices.BinarySearchFunc(l.waiting, at, func(line timedLine, at int64) int {
		if line.at <= at {
			return -1
		}
		return 1
	})
	return n
}

// end closes the streams that a member fed alone.
func (l *lines) end(from *Handle) {
	for _, s := range l.streams {
		delete(s.feeders, from)
	}
}

// ready gives the lines that no open stream can bring an earlier one than, and forgets them.
func (l *lines) ready() (texts []string) {
	n := len(l.waiting)
	for _, s := range l.streams {
		if len(s.feeders) > 0 {
			n = min(n, l.before(s.mark))
		}
	}
	for _, line := range l.waiting[:n] {
		texts, l.given = append(texts, line.text), line.at
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
	return texts
}

// clockOf gives the times of the lines that a member says of itself: each later than the last.
type clockOf struct{ last int64 }

func (c *clockOf) next(at time.Time) int64 {
	c.last = max(at.UnixNano(), c.last+1)
	return c.last
}

// RoleServer is the name of the role Server, which every harness knows.
const RoleServer = "server"

// keyURL is the key under which a ready server reports the address that trainers join at.
const keyURL = "url"

// serverWithin bounds the time until a server is ready.
const serverWithin = 30 * time.Second

// ServerSettings are those of one ps process. The zero value is a server of one shard on loopback, at any free port.
type ServerSettings struct {
	// where several ps share a control server; their order follows from it
	ID   string `json:"id,omitempty"`
	NATS string `json:"nats,omitempty"` // the control server, where that is not this one
	// of the control server, the same for all of one harness
	ControlToken string        `json:"control_token,omitempty"`
	Backend      string        `json:"backend,omitempty"`  // of cuda.Names; empty is the best of the CPU
	Deadline     time.Duration `json:"deadline,omitempty"` // 0 means 30 s
	Procs        int           `json:"procs,omitempty"`    // for Member.LimitProcs; 0 is what ./bin/ps takes
}

// Server is the role of a parameter server, as ./bin/ps is one.
func Server(ctx context.Context, m *Member) (any, error) {
	var s ServerSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	return nil, Serve(ctx, m, s, nil)
}

// Serve is the role of a server: it reports its address under keyURL, serves until it is stopped, and then reports what
// it has received. adjust, if it is not nil, may change the options of the server, for roles that inspect it.
func Serve(ctx context.Context, m *Member, s ServerSettings, adjust func(*ps.Options)) error {
	server, end, err := openServer(ctx, m, s, adjust)
	if err != nil {
		return err
	}
	if err = m.Tell(keyURL, server.URL()); err == nil {
		select {
		case <-m.Done():
		case <-server.Done():
			err = server.Err()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return cmp.Or(err, end())
}

// openServer starts a server. end ends it and returns when it is gone.
func openServer(ctx context.Context, m *Member, s ServerSettings, adjust func(*ps.Options)) (server *ps.Server,
	end func() error, err error) {
	backend, err := cuda.Open(cuda.Options{Name: s.Backend})
	if err != nil {
		return nil, nil, err
	}
	c := ps.Default()
	c.Port, c.Shards, c.ID, c.NATS, c.Deadline = 0, 1, s.ID, s.NATS, s.Deadline
	c.StallTimeout = cmp.Or(s.Deadline, ps.Default().Deadline) // a benchmark is never in a debugger
	c.ControlToken = s.ControlToken
	options := ps.Options{Backend: backend}
	m.LimitProcs(s.Procs)
	if m.alone { // else the limit would hold for the trainers of this process as well
		config.PaceScheduler()
		options.LimitHeap = config.HeapLimiter()
	}
	if adjust != nil {
		adjust(&options)
	}
	server, err = ps.Start(ctx, c, options)
	if err != nil {
		return nil, nil, errors.Join(err, backend.Close())
	}
	return server, func() error {
		server.Close()
		return errors.Join(server.Err(), backend.Close())
	}, nil
}

// StartServers starts n ps processes for one job and returns when all are ready: the first, "s0", is the control server
// of the others, "s1" and so on, and url is what trainers join. Each has one shard, with the number of its
// process.
func (c *Harness) StartServers(ctx context.Context, n int, s ServerSettings) (servers []*Handle, url string,
	err error) {
	return c.StartServersAs(ctx, RoleServer, n, func(_ int, its ServerSettings) any {
		s.ID, s.NATS, s.ControlToken = its.ID, its.NATS, its.ControlToken
		return s
	})
}

// StartServersAs is StartServers for a role that runs a server of its own by Serve; settings gives those of
// the i-th, with what has to be its id, its control server and the token for that.
func (c *Harness) StartServersAs(ctx context.Context, role string, n int, settings func(i int,
	its ServerSettings) any) (servers []*Handle, url string, err error) {
	within, cancel := context.WithTimeoutCause(ctx, serverWithin, fmt.Errorf("servers not ready within %v", serverWithin))
	defer cancel()
	token := rand.Text()
	spec := func(i int) Spec {
		return Spec{Role: role, Name: fmt.Sprintf("s%d", i),
			Settings: settings(i, ServerSettings{ID: fmt.Sprintf("s%02d", i), NATS: url, ControlToken: token})}
	}
	if servers, err = c.Start(ctx, spec(0)); err != nil {
		return servers, "", err
	}
	if err := servers[0].Told(within, keyURL, &url); err != nil {
		return servers, "", err
	}
	for i := 1; i < n; i++ {
		more, err := c.Start(ctx, spec(i))
		servers = append(servers, more...)
		if err != nil {
			return servers, "", err
		}
	}
	for _, h := range servers[1:] {
		var own string
		if err := h.Told(within, keyURL, &own); err != nil {
			return servers, "", err
		}
	}
	return servers, url, nil
}

// StopServers asks servers to end, and waits until they are gone.
func (c *Harness) StopServers(ctx context.Context, servers ...*Handle) error {
	return c.StopServersAs(ctx, servers, func(int) any { return nil })
}

// StopServersAs is StopServers for servers of StartServersAs; result says where the result of the i-th goes.
func (c *Harness) StopServersAs(ctx context.Context, servers []*Handle, result func(i int) any) error {
	for i := len(servers) - 1; i >= 0; i-- { // the control server last
		if err := servers[i].stop(ctx); err != nil {
			return err
		}
		if err := servers[i].Result(ctx, result(i)); err != nil {
			return err
		}
	}
	return nil
}

// System is the processes of one run: servers, unless one runs already, and the trainers of this host.
type System struct {
	Title    string
	Roles    map[string]Role
	Servers  int
	Procs    int    // of each server: see Member.LimitProcs
	Role     string // of the trainers
	Trainers int    // of the job
	Settings func(connect.Flags, schema.Member) any
	Waits    int // how often the trainers wait for each other
	// Begin is called when all of them wait for the first time, and End when all have given their results.
	Begin, End func(team *Harness)
}

// Once runs a system from start to end, and returns the results of the trainers that ran here.
func Once[R any](ctx context.Context, f *Flags, s System, out, errs io.Writer) (found []R, err error) {
	team := f.Harness(s.Title, s.Roles, out, errs)
	defer func() { err = cmp.Or(err, team.Close()) }()
	var servers []*Handle
	url, err := f.Address()
	if err == nil && url == "" {
		servers, url, err = team.StartServers(ctx, s.Servers, ServerSettings{Procs: s.Procs})
	}
	if err != nil {
		return nil, err
	}
	trainers, err := team.Start(ctx, f.TrainerSpecs(s.Role, s.Trainers, url, s.Settings)...)
	if err == nil && s.Begin != nil {
		if err = team.Gather(ctx, trainers...); err == nil {
			s.Begin(team)
		}
	}
	for i := 0; i < s.Waits && err == nil; i++ {
		err = team.Go(ctx, trainers...)
	}
	found = make([]R, len(trainers))
	for i := 0; i < len(trainers) && err == nil; i++ {
		err = trainers[i].Result(ctx, &found[i])
	}
	if err == nil && s.End != nil {
		s.End(team)
	}
	if err == nil {
		err = team.StopServers(ctx, servers...)
	}
	return found, err
}
