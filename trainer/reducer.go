package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/time/rate"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/endpoint"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

const (
	// reduceBytesMax is the budget for contributions to open rounds of a reduce range; see stagedBytes.
	reduceBytesMax = 128 << 20
	// refusalsPerSecond bounds what is said about bad frames, so that a flood of them costs its sender's line alone.
	refusalsPerSecond = 100
)

// reducer runs the shard of what this trainer adds up for all, in a job that reduces between trainers: its chunks of
// every dense bucket, and its partitions of replicated tables. To the other trainers it is what a shard of a ps is.
// This trainer's own contributions go in where they lie (contribute), and its own results come out without a message.
//
// Frames are taken on the goroutines of the data server's connection, own contributions on the one that calls Run.
// A goroutine that steps holds the step lock, and publishes the outputs without it.
type reducer struct {
	job     *schema.Job
	joined  *schema.Joined
	owner   int         // this trainer
	self    int         // the same among contributors
	peer    *peerServer // set before the first frame
	results *results
	fail    func(error)
	limit   *rate.Limiter // of refusals

	stepLock sync.Mutex // guards what follows
	end      *endpoint.Endpoint
	begun    []schema.Batch // by contributor: the latest batch that it has begun, or asked for
}

// newReducer makes the shard of this trainer.
func newReducer(c *connection, results *results) (*reducer, error) {
	r := &reducer{job: c.job, joined: &c.joined, owner: c.owners[string(c.joined.Member)], results: results,
		fail: c.fail, begun: make([]schema.Batch, c.job.Trainers), limit: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond)}
	r.self = r.owner - c.place.Shards
	config := shard.Config{Job: c.job, Placement: c.place, Index: r.owner, RunID: c.joined.RunID,
		Generation: c.joined.Generation, Backend: c.config.Backend, Contributors: round.ContributorsOf(c.job),
		StagedBytesMax: stagedBytes(c.job), Own: c.joined.Member, Lent: c.config.Bus != nil}
	if v := c.joined.Version; v > 0 { // trainers have that themselves
		config.Resumed = &shard.Resumed{Version: v, Read: func(func(state.Tensor) error, func(state.Rows) error) error {
			return nil
		}}
	}
	end, err := endpoint.New(c.ctx, endpoint.Config{Shard: config, WindowBytes: fabric.WindowBytesDefault,
		Publish: r.publish,
		Ack: func(to schema.Member, frame []byte) {
			r.peer.publish(r.subject(fabric.KindAck, to), fabric.WithoutRoom(frame))
		}})
	if err != nil {
		return nil, err
	}
	r.end = end
	return r, nil
}

// stagedBytes is the budget for open rounds on one trainer: enough for the share of every other one to hold what it may
// send before it hears of its window, and one chunk of each of its nodes, which close together.
func stagedBytes(job *schema.Job) int64 {
	share := int64(2 * fabric.WindowBytesDefault)
	for _, h := range round.ContributorsOf(job) {
		nodes := len(lane.Nodes(h.First, h.Count, job.Lanes))
		share = max(share, int64(nodes)*int64(job.ChunkBytes+shard.FrameBytesOver))
	}
	return max(reduceBytesMax, int64(job.Trainers)*share)
}

// contribute takes a frame of this trainer's own, which must not change until the batch is complete. What a shard would
// refuse is an error.
func (r *reducer) contribute(f *schema.Frame) error {
	v := f.View()
	taken, err := r.step(r.joined.Member, &v, nil)
	if err != nil || taken.Reason == schema.ReasonOK || taken.Reason == schema.ReasonDuplicate {
		return err
	}
	h := v.Head()
	frame := fmt.Sprintf("%s: batch %d bucket %d chunk %d lanes %v", r.joined.Member, h.Batch, h.Bucket, h.Chunk, h.Node)
	return refusedFrame(frame, taken.Reason.String(), taken.Outputs[0].Text)
}

// step gives the endpoint a frame, and publishes what comes of it. What another goroutine publishes just then it leaves
// to that one.
func (r *reducer) step(from schema.Member, v *schema.View, p round.Payload) (taken endpoint.Taken, err error) {
	h := v.Head()
	r.stepLock.Lock()
	defer r.end.Flush()
	defer r.stepLock.Unlock()
	if i := r.end.Contributor(from); i != r.self { // it has all results of the batches before
		r.begun[i] = max(r.begun[i], h.Batch)
	}
	r.end.Await(&r.stepLock, h.Kind, h.Batch)
	if taken, err = r.end.Step(from, v, p); err != nil {
		return taken, fmt.Errorf("reduce range of %s: %w", r.joined.Member, err)
	}
	if from == r.joined.Member && taken.Reason != schema.ReasonOK { // its refusal is an error
		taken.Outputs = slices.Clone(taken.Outputs)
		return taken, nil
	}
	r.end.Put(taken.Outputs, nil)
	return taken, nil
}

// publish sends what the shard puts out, and puts results of all in place here.
func (r *reducer) publish(o *shard.Output) {
	if o.Kind == schema.KindRefusal {
		r.say(o.To, o.Frame)
		return
	}
	r.peer.publish(r.subject(fabric.KindMean, o.To).WithBucket(uint64(o.Batch), uint32(o.Bucket)),
		fabric.NewPayload(o.Built.Room()))
	if o.To != schema.All {
		return // another trainer has asked for it
	}
	result := o.Built.View()
	if _, err := r.results.take(r.owner, false, o.Batch, &result); err != nil {
		r.fail(err)
	}
}

// receive takes a message that came in at the data server. It does not wait for anything but the other goroutine that
// adds up.
func (r *reducer) receive(m fabric.Message) {
	subject, err := m.Parse()
	if err != nil {
		m.Release()
		return
	}
	v, refused := r.check(&subject, &m)
	if refused != nil {
		m.Release()
		r.refuse(&subject, v.Head(), refused)
		return
	}
	if _, err = r.step(schema.Member(subject.From), &v, m.Lease()); err != nil {
		r.fail(err)
	}
}

// check verifies a message, and that another trainer has sent it.
func (r *reducer) check(subject *fabric.Subject, m *fabric.Message) (v schema.View, refused *schema.FrameError) {
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		return v, schema.Refusing(err)
	}
	wanted, head := fabric.KindReduce, v.Head()
	switch head.Kind {
	case schema.KindDense, schema.KindSparse:
	case schema.KindPull:
		wanted = fabric.KindPull
	default:
		return v, schema.Refuse(schema.ReasonUnknownKind, "a trainer takes no frames of kind %v from another", head.Kind)
	}
	if subject.Kind != wanted {
		return v, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s", head.Kind, subject.Kind)
	}
	if i := r.end.Contributor(schema.Member(subject.From)); i < 0 || i == r.self {
		return v, schema.Refuse(schema.ReasonUnknownSender, "%s is not another trainer of job %s", subject.From, r.job.Name)
	}
	if err := v.CheckJob(r.joined.RunID, r.joined.Generation); err != nil {
		return v, schema.Refusing(err)
	}
	return v, nil
}

// tick sends the acks that have waited for long enough. It is called every tickEvery.
func (r *reducer) tick() {
	r.stepLock.Lock()
	defer r.stepLock.Unlock()
	if r.peer != nil {
		r.end.Tick()
	}
}

// refuse tells a sender why its frame went nowhere.
func (r *reducer) refuse(subject *fabric.Subject, head schema.Head, why *schema.FrameError) {
	r.say(schema.Member(subject.From), schema.EncodeRefusal(head, why.Reason, why.Detail))
}

// say sends a refusal, unless others were sent too often this second.
func (r *reducer) say(to schema.Member, refusal []byte) {
	if r.limit.Allow() {
		r.peer.publish(r.subject(fabric.KindCtl, to), fabric.WithoutRoom(refusal))
	}
}

func (r *reducer) subject(kind string, to schema.Member) fabric.Subject {
	return fabric.At(string(r.job.Name), string(r.joined.Member), kind, string(to))
}

// done reports whether every other trainer has all results of the batches before b, or is gone.
func (r *reducer) done(b schema.Batch, gone map[schema.Member]bool) bool {
	r.stepLock.Lock()
	defer r.stepLock.Unlock()
	if r.end.Idle() {
		return true
	}
	for i, begun := range r.begun {
		if i != r.self && begun < b && !gone[schema.TrainerMember(i)] {
			return false
		}
	}
	return true
}

// close gives back what open rounds hold. No message arrives any more.
func (r *reducer) close() {
	if r != nil {
		r.end.Close()
	}
}

// waiting returns the trainers that open rounds wait for, as a ps reports those of its shards: none if no open round
// has a contribution.
func (r *reducer) waiting() []schema.Waiting {
	r.stepLock.Lock()
	defer r.stepLock.Unlock()
	w := r.end.Waiting()
	if w.Rounds == 0 {
		return []schema.Waiting{}
	}
	return []schema.Waiting{w.Waiting}
}

// peerServer is the data server of a trainer in a job that reduces between trainers, and the connection by which it
// reads what arrives there.
type peerServer struct {
	server *fabric.Server
	conn   *fabric.Conn
	url    string      // as the other trainers reach it
	fail   func(error) // set before anything is published

	// take takes what others send. They may do so a moment before it is set, which ready says by its end.
	take  func(fabric.Message)
	ready chan struct{}
	once  sync.Once
}

// opens has what others have sent be taken, or dropped.
func (o *peerServer) opens(take func(fabric.Message)) {
	o.once.Do(func() {
		o.take = take
		close(o.ready)
	})
}

// receive takes a message when it is known who takes it. Those behind it wait, too.
func (o *peerServer) receive(m fabric.Message) {
	if <-o.ready; o.take == nil {
		m.Release()
		return
	}
	o.take(m)
}

// dataAddress is where a trainer's data server listens: Config.DataHost, or the address of this machine on the way to
// the server where that is elsewhere and a client has to show a token there; else loopback.
func dataAddress(c Config, local string) (host string, port int, err error) {
	if c.DataHost == "" {
		c.DataHost = local
		if checkDataHost(c) != nil {
			return "", 0, nil
		}
		return local, 0, nil
	}
	if host, port, err = parseHost("data host", c.DataHost); err != nil {
		return "", 0, err
	}
	return host, port, checkDataHost(c)
}

// parseHost reads an address whose port may be left out; 0 is none.
func parseHost(what, address string) (host string, port int, err error) {
	host, text := splitPort(address)
	if text != "" {
		port, err = strconv.Atoi(text)
	}
	if host == "" || strings.ContainsAny(host, "/@ ") || err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%s %q: want a name or an IP, and maybe a port, as in 10.0.0.2:4300", what, address)
	}
	return host, port, nil
}

// splitPort is the host and the port, or none, of an address whose port may be left out.
func splitPort(address string) (host, port string) {
	if host, port, err := net.SplitHostPort(address); err == nil {
		return host, port
	}
	return strings.Trim(address, "[]"), ""
}

// checkDataHost refuses a data server that other machines reach without a token.
func checkDataHost(c Config) error {
	host, _ := splitPort(c.DataHost)
	ip := net.ParseIP(host)
	if host == "" || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	if c.Token == "" {
		return fmt.Errorf("data host %s: other machines can reach it, and there is no token: give one, or listen "+
			"at 127.0.0.1", c.DataHost)
	}
	if err := fabric.CheckToken(c.Token); err != nil {
		return fmt.Errorf("data host %s: other machines can reach it: %w", c.DataHost, err)
	}
	if c.DataTLS == nil && (c.TLS != nil || strings.HasPrefix(c.Server, "tls:")) {
		return fmt.Errorf("data host %s: the way to the ps is encrypted, and the one between trainers is not: give this "+
			"trainer a certificate (--tls-cert and --tls-key)", c.DataHost)
	}
	return nil
}

// startPeerServer starts this trainer's data server. It gives nil where shards add up everything. local is this
// machine's address on the way to the server; "" within one process.
func startPeerServer(ctx context.Context, c Config, job *schema.Job, local string) (*peerServer, error) {
	if !job.Plan().Reduces(schema.ByTrainers) {
		return nil, nil
	}
	host, port, err := dataAddress(c, local)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	guard := &fabric.Guard{Publish: []string{fabric.All}, Member: func(name string) int {
		if of, member, _ := strings.Cut(name, "/"); of == string(job.Name) && job.HasTrainer(schema.Member(member)) {
			return job.MessageBytesMax()
		}
		return 0
	}}
	server, err := fabric.StartServer(fabric.ServerConfig{Bus: c.Bus, Host: host, Port: port, Name: string(job.Name),
		Token: c.Token, TLS: c.DataTLS, Guard: guard, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("start this trainer's data server: %w", err)
	}
	o := &peerServer{server: server, url: server.URL(), ready: make(chan struct{})}
	if o.conn, err = fabric.Dial(ctx, fabric.Config{Server: server, Name: "own", Token: c.Token, Log: c.Log}); err != nil {
		o.close()
		return nil, fmt.Errorf("connect to this trainer's data server: %w", err)
	}
	if c.Bus == nil { // there no sender may be kept waiting
		err = o.listen(string(job.Name), fabric.Any)
	}
	if err != nil {
		o.close()
		return nil, err
	}
	if o.url, err = c.advertised(o.url, host, local); err != nil {
		o.close()
		return nil, fmt.Errorf("address of this trainer's data server: %w", err)
	}
	return o, nil
}

// advertised is the address by which other trainers reach the data server that listens at host, with the URL own.
func (c *Config) advertised(own, host, local string) (string, error) {
	u, err := url.Parse(own)
	if err != nil {
		return "", err
	}
	switch ip := net.ParseIP(host); {
	case c.Advertise != "":
		host, port := splitPort(c.Advertise)
		u.Host = net.JoinHostPort(host, cmp.Or(port, u.Port()))
	case ip != nil && ip.IsUnspecified() && local != "":
		// Of all addresses, the one by which this machine reaches the server is as good a guess as any.
		u.Host = net.JoinHostPort(local, u.Port())
	}
	return u.String(), nil
}

// publish sends a frame to other trainers. It cannot fail on a connection within this process unless that is closing;
// who misses what was sent asks for it again.
func (o *peerServer) publish(to fabric.Subject, frame fabric.Payload) {
	if err := o.conn.SendInPlace(to, frame); err != nil && !errors.Is(err, fabric.ErrClosed) &&
		!errors.Is(err, fabric.ErrLost) {
		o.fail(fmt.Errorf("publish at this trainer's data server: %w", err))
	}
}

func (o *peerServer) close() {
	if o == nil {
		return
	}
	o.opens(nil)
	if o.conn != nil {
		o.conn.Close()
	}
	o.server.Close()
}

// listen takes what other trainers send to a member of a job.
func (o *peerServer) listen(job, member string) error {
	for _, pattern := range []string{
		fabric.Pattern(job, fabric.Any, fabric.KindReduce, member, true),
		fabric.Pattern(job, fabric.Any, fabric.KindPull, member, false),
	} {
		if err := o.conn.Subscribe(pattern, o.receive); err != nil {
			return fmt.Errorf("listen at this trainer's data server: %w", err)
		}
	}
	return nil
}
