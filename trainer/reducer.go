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
	// reduceBytesMax is the default budget for contributions to open rounds of a reduce range; see stagedBytes.
	reduceBytesMax = 128 << 20
	// refusalsPerSecond bounds the refusals of invalid frames, so a flood of them loads only its sender's connection.
	refusalsPerSecond = 100
)

// reducer runs the shard of this trainer's reduce range, in a job that reduces between trainers: its chunks of every
// dense bucket, and its partitions of replicated tables. To other trainers it behaves as a shard of a ps. This
// trainer's own contributions are not copied (contribute), and its own results need no message.
//
// Goroutines of the data server's connection take frames, and the goroutine that calls Run takes own contributions. A
// goroutine that steps holds the step lock, and publishes the outputs without it.
type reducer struct {
	job     *schema.Job
	joined  *schema.Joined
	owner   int         // owner index of this trainer
	self    int         // contributor index of this trainer
	peer    *peerServer // set before the first frame
	results *results
	fail    func(error)
	limit   *rate.Limiter // of refusals

	stepLock sync.Mutex // guards the fields below
	end      *endpoint.Endpoint
	begun    []schema.Batch // [contributor] latest batch that it has begun, or requested
}

// newReducer makes this trainer's shard.
func newReducer(c *connection, results *results) (*reducer, error) {
	r := &reducer{job: c.job, joined: &c.joined, owner: c.owners[string(c.joined.Member)], results: results,
		fail: c.fail, begun: make([]schema.Batch, c.job.Trainers), limit: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond)}
	r.self = r.owner - c.place.Shards
	config := shard.Config{Job: c.job, Placement: c.place, Index: r.owner, RunID: c.joined.RunID,
		Generation: c.joined.Generation, Backend: c.config.Backend, Contributors: round.ContributorsOf(c.job),
		StagedBytesMax: stagedBytes(c.job), Own: c.joined.Member, Lent: c.config.Bus != nil}
	if v := c.joined.Version; v > 0 { // trainers have the version's content themselves
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

// stagedBytes returns the budget for open rounds on one trainer. For every other trainer it has room for what that may
// send before it knows its window, and for one chunk of each of its nodes, which close together.
func stagedBytes(job *schema.Job) int64 {
	share := int64(2 * fabric.WindowBytesDefault)
	for _, h := range round.ContributorsOf(job) {
		nodes := len(lane.Nodes(h.First, h.Count, job.Lanes))
		share = max(share, int64(nodes)*int64(job.ChunkBytes+shard.FrameBytesOver))
	}
	return max(reduceBytesMax, int64(job.Trainers)*share)
}

// contribute takes a frame of this trainer's own. The caller must not change it until the batch is complete. What a
// shard would refuse is an error.
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

// step passes a frame to the endpoint, and publishes the outputs, unless another goroutine is publishing and takes them
// over.
func (r *reducer) step(from schema.Member, v *schema.View, p round.Payload) (taken endpoint.Taken, err error) {
	h := v.Head()
	r.stepLock.Lock()
	defer r.end.Flush()
	defer r.stepLock.Unlock()
	if i := r.end.Contributor(from); i != r.self { // the sender has all results of earlier batches
		r.begun[i] = max(r.begun[i], h.Batch)
	}
	r.end.Await(&r.stepLock, h.Kind, h.Batch)
	if taken, err = r.end.Step(from, v, p); err != nil {
		return taken, fmt.Errorf("reduce range of %s: %w", r.joined.Member, err)
	}
	if from == r.joined.Member && taken.Reason != schema.ReasonOK { // contribute returns its refusal as an error
		taken.Outputs = slices.Clone(taken.Outputs)
		return taken, nil
	}
	r.end.Put(taken.Outputs, nil)
	return taken, nil
}

// publish sends the shard's output, and stores results for all trainers here.
func (r *reducer) publish(o *shard.Output) {
	if o.Kind == schema.KindRefusal {
		r.say(o.To, o.Frame)
		return
	}
	r.peer.publish(r.subject(fabric.KindMean, o.To).WithBucket(uint64(o.Batch), uint32(o.Bucket)),
		fabric.NewPayload(o.Built.Room()))
	if o.To != schema.All {
		return // it is another trainer's pull
	}
	result := o.Built.View()
	if _, err := r.results.take(r.owner, false, o.Batch, &result); err != nil {
		r.fail(err)
	}
}

// receive takes a message that arrived at the data server. It waits only for another goroutine that steps.
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

// tick sends the delayed acks that are due. It is called every tickEvery.
func (r *reducer) tick() {
	r.stepLock.Lock()
	defer r.stepLock.Unlock()
	if r.peer != nil {
		r.end.Tick()
	}
}

// refuse sends the refusal of a frame to its sender.
func (r *reducer) refuse(subject *fabric.Subject, head schema.Head, why *schema.FrameError) {
	r.say(schema.Member(subject.From), schema.EncodeRefusal(head, why.Reason, why.Detail))
}

// say sends a refusal, unless too many were sent in this second.
func (r *reducer) say(to schema.Member, refusal []byte) {
	if r.limit.Allow() {
		r.peer.publish(r.subject(fabric.KindCtl, to), fabric.WithoutRoom(refusal))
	}
}

func (r *reducer) subject(kind string, to schema.Member) fabric.Subject {
	return fabric.At(string(r.job.Name), string(r.joined.Member), kind, string(to))
}

// done reports whether every other trainer has all results of the batches before b, or is unreachable.
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

// close releases the memory of open rounds. No message arrives any more.
func (r *reducer) close() {
	if r != nil {
		r.end.Close()
	}
}

// waiting returns the trainers for which open rounds wait, as a ps reports those of its shards: none if no open round
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

// peerServer is a trainer's data server in a job that reduces between trainers, and the connection that reads what
// arrives there.
type peerServer struct {
	server *fabric.Server
	conn   *fabric.Conn
	url    string      // address for the other trainers
	fail   func(error) // set before anything is published

	// take handles messages of other trainers. They may arrive before it is set; ready is closed then.
	take  func(fabric.Message)
	ready chan struct{}
	once  sync.Once
}

// opens sets take; nil drops all messages.
func (o *peerServer) opens(take func(fabric.Message)) {
	o.once.Do(func() {
		o.take = take
		close(o.ready)
	})
}

// receive takes a message once take is set. Messages after it wait, too.
func (o *peerServer) receive(m fabric.Message) {
	if <-o.ready; o.take == nil {
		m.Release()
		return
	}
	o.take(m)
}

// dataAddress returns the address at which a trainer's data server listens: Config.DataHost; else local, if
// checkDataHost allows it; else loopback, as "".
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

// parseHost parses an address with an optional port; 0: none.
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

// splitPort returns the host and the port, or "", of an address with an optional port.
func splitPort(address string) (host, port string) {
	if host, port, err := net.SplitHostPort(address); err == nil {
		return host, port
	}
	return strings.Trim(address, "[]"), ""
}

// checkDataHost returns an error if other machines could reach the data server without a token, or without TLS where
// the connection to the ps has it.
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

// startPeerServer starts this trainer's data server. It returns nil if shards do all sums. local is this machine's
// address on the connection to the server; "" within one process.
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
	if c.Bus == nil { // within a process no sender may be blocked
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

// advertised returns the address by which other trainers reach the data server, which listens at host with the
// URL listening.
func (c *Config) advertised(listening, host, local string) (string, error) {
	u, err := url.Parse(listening)
	if err != nil {
		return "", err
	}
	switch ip := net.ParseIP(host); {
	case c.Advertise != "":
		host, port := splitPort(c.Advertise)
		u.Host = net.JoinHostPort(host, cmp.Or(port, u.Port()))
	case ip != nil && ip.IsUnspecified() && local != "":
		// Of all addresses, the one on the connection to the server is the best guess.
		u.Host = net.JoinHostPort(local, u.Port())
	}
	return u.String(), nil
}

// publish sends a frame to other trainers. It cannot fail on a connection within this process unless that is closing. A
// trainer that misses the frame requests it again.
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

// listen subscribes to what other trainers send to a member of a job.
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
