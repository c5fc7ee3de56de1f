package fabric

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// BucketConfig configures a bucket: small values by key, in the memory of the control server.
type BucketConfig struct {
	Name     string
	BytesMax int64         // of all keys and values
	TTL      time.Duration // after which a key that was not written again expires; 0: never
}

// Bucket is a key-value bucket of JetStream. Its content is lost when the control server restarts: every method then
// returns ErrNoBucket, and the owner opens it again and rewrites its keys.
type Bucket struct {
	config  BucketConfig
	control *Control
	kv      jetstream.KeyValue
	stream  jetstream.Stream
	created time.Time // when its stream was made

	memory *busBucket // replaces the fields above for a server on a Bus
}

// Entry is a key and its value. Every write to the bucket gets a higher revision.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
}

const (
	// clusterReplicas is the number of servers of a cluster that keep a bucket, so that it outlives one of them.
	clusterReplicas = 3

	// openWithin bounds OpenBucket if ctx does not. A cluster that has just started elects two leaders, which takes
	// seconds each on busy machines.
	openWithin = 30 * time.Second
	// openAnswered is the timeout of the first attempt, and openAnsweredMax bounds those of later ones, each twice the
	// one before. openPause is the time between attempts.
	openAnswered    = 250 * time.Millisecond
	openAnsweredMax = 4 * time.Second
	openPause       = 50 * time.Millisecond

	// markerTTL is how long JetStream keeps the marker of a key that was deleted or has expired. Markers tell watches.
	markerTTL = 10 * time.Second

	// Errors of a server that cannot keep a stream on several servers, and of a cluster that is electing a leader.
	errCodeNoPeers     jetstream.ErrorCode = 10005
	errCodeNoReplicas  jetstream.ErrorCode = 10074
	errCodeUnavailable jetstream.ErrorCode = 10008
)

// OpenBucket finds a bucket, or makes it: on a cluster of three servers or more on three of them, else on one. Errors:
// ErrNoJetStream; ErrLost if the server does not answer, wrapping the cause of ctx.
//
// The absence of an answer proves nothing. Several ps that start together send equal requests to make a stream, and a
// cluster may answer none of them: the assignment of a later request replaces that of an earlier one, including the
// reply subject, before the stream has elected the leader that answers. The stream is made anyway. So OpenBucket
// repeats the request, which first looks for the bucket.
func (c *Control) OpenBucket(ctx context.Context, config BucketConfig) (b *Bucket, err error) {
	if c.bus != nil {
		memory, err := c.bus.openBucket(config)
		if err != nil {
			return nil, fmt.Errorf("open bucket %s: %w", config.Name, err)
		}
		return &Bucket{config: config, control: c, memory: memory}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openWithin, fmt.Errorf("no answer within %s", openWithin))
	defer cancel()
	for within := openAnswered; ; within = min(2*within, openAnsweredMax) {
		attempt, cancel := context.WithTimeout(ctx, within)
		b, err = c.makeBucket(attempt, config)
		// The server that is asked may not know yet what was just made.
		unanswered := attempt.Err() != nil || isUnavailable(err) || errors.Is(err, ErrNoBucket)
		cancel()
		if err == nil || !unanswered || c.nats.isLost() {
			return b, err
		}
		select {
		case <-time.After(openPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
}

// errLeaderless reports that the servers that keep a stream have not elected a leader to answer for it.
var errLeaderless = errors.New("its stream has no leader yet")

// isUnavailable reports whether an error says that JetStream, or a stream, does not answer at present.
func isUnavailable(err error) bool {
	var refused *jetstream.APIError
	return isUnanswered(err) || errors.Is(err, errLeaderless) ||
		errors.As(err, &refused) && refused.ErrorCode == errCodeUnavailable
}

// isUnanswered reports whether the subject of a request has no subscriber: the stream is gone, or has no leader.
func isUnanswered(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
}

// makeBucket makes one attempt of OpenBucket.
func (c *Control) makeBucket(ctx context.Context, config BucketConfig) (*Bucket, error) {
	wanted := jetstream.KeyValueConfig{
		Bucket: config.Name, MaxBytes: config.BytesMax, TTL: config.TTL, History: 1, Storage: jetstream.MemoryStorage,
		Replicas: 1, LimitMarkerTTL: markerTTL,
	}
	if c.nats.nats.ConnectedClusterName() != "" {
		wanted.Replicas = clusterReplicas
	}
	asked, end := c.asking(ctx)
	kv, err := c.js.CreateOrUpdateKeyValue(asked, wanted)
	var refused *jetstream.APIError
	if wanted.Replicas > 1 && errors.As(err, &refused) && // fewer servers, or not all of them running
		(refused.ErrorCode == errCodeNoPeers || refused.ErrorCode == errCodeNoReplicas) {
		wanted.Replicas = 1
		kv, err = c.js.CreateOrUpdateKeyValue(asked, wanted)
	}
	if err = end(err); errors.Is(err, jetstream.ErrLimitMarkerTTLNotSupported) {
		return nil, fmt.Errorf("open bucket %s: nats-server %s at %s is too old, want 2.11 or newer", config.Name,
			c.nats.nats.ConnectedServerVersion(), c.Address())
	} else if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", config.Name, bucketError(c.Address(), err))
	}
	b, err := c.bucket(ctx, config, kv)
	if err == nil && b.stream.CachedInfo().Cluster != nil && b.stream.CachedInfo().Cluster.Leader == "" {
		return nil, fmt.Errorf("open bucket %s: %w: %s: %w", config.Name, ErrLost, c.Address(), errLeaderless)
	}
	return b, err
}

// bucket finds the stream that stores a bucket.
func (c *Control) bucket(ctx context.Context, config BucketConfig, kv jetstream.KeyValue) (*Bucket, error) {
	asked, end := c.nats.whileConnected(ctx)
	stream, err := c.js.Stream(asked, "KV_"+config.Name)
	if err = end(err); err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", config.Name, bucketError(c.Address(), err))
	}
	return &Bucket{config: config, control: c, kv: kv, stream: stream,
		created: stream.CachedInfo().Created}, nil
}

// LookBucket finds a bucket without making one. It fails with ErrNoBucket if there is none.
func (c *Control) LookBucket(ctx context.Context, name string) (*Bucket, error) {
	if c.bus != nil {
		memory, err := c.bus.lookBucket(name)
		if err != nil {
			return nil, fmt.Errorf("look for bucket %s: %w", name, err)
		}
		return &Bucket{config: BucketConfig{Name: name}, control: c, memory: memory}, nil
	}
	asked, end := c.asking(ctx)
	kv, err := c.js.KeyValue(asked, name)
	if err = end(err); err != nil {
		if errors.Is(err, ErrDenied) {
			return nil, fmt.Errorf("look for bucket %s: %w", name, err)
		}
		if _, account := c.js.AccountInfo(ctx); errors.Is(account, jetstream.ErrJetStreamNotEnabled) ||
			errors.Is(account, jetstream.ErrJetStreamNotEnabledForAccount) {
			err = account // JetStream is off, so there is no bucket in any case
		}
		return nil, fmt.Errorf("look for bucket %s: %w", name, bucketError(c.Address(), err))
	}
	return c.bucket(ctx, BucketConfig{Name: name}, kv)
}

// bucketError converts an error of the library to one of this package.
func bucketError(at string, err error) error {
	var refused *jetstream.APIError
	switch {
	case errors.Is(err, ErrDenied):
		return err
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w at %s: run nats-server with -js, or set jetstream in its configuration and for the "+
			"account in use", ErrNoJetStream, at)
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound),
		errors.Is(err, nats.ErrStreamNotFound):
		return fmt.Errorf("%w at %s: %w", ErrNoBucket, at, err)
	case errors.Is(err, jetstream.ErrKeyExists), errors.As(err, &refused) &&
		refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return ErrKeyExists
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return ErrNoKey
	}
	return fmt.Errorf("%w: %s: %w", ErrLost, at, err)
}

// ask performs an operation at the server, or in memory on a Bus. The error names the operation.
func (b *Bucket) ask(ctx context.Context, operation, key string, ofMemory func(m *busBucket) error,
	ofServer func(ctx context.Context) error) (err error) {
	if b.memory != nil { // its errors are of this package
		if err = b.control.Err(); err == nil {
			err = ofMemory(b.memory)
		}
	} else {
		asked, end := b.control.nats.whileConnected(ctx)
		if err = ofServer(asked); isUnanswered(err) {
			// The bucket is gone only if JetStream says so. A cluster that elects a leader answers otherwise, or not at
			// all.
			if _, said := b.stream.Info(asked); said != nil {
				err = said
			}
		}
		if err = end(err); err != nil {
			err = bucketError(b.control.Address(), err)
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s of bucket %s: %w", operation, key, b.config.Name, err)
	}
	return nil
}

// Create writes a key that does not exist. If several clients try, one succeeds and the others get ErrKeyExists.
func (b *Bucket) Create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	return b.write(ctx, "create", key, value, 0, func(ctx context.Context) (uint64, error) {
		return b.kv.Create(ctx, key, value)
	})
}

// Put writes a key.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	return b.write(ctx, "put", key, value, anyRevision, func(ctx context.Context) (uint64, error) {
		return b.kv.Put(ctx, key, value)
	})
}

// Update writes a key whose last write had a revision. It returns ErrKeyExists if another client has written it since.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, last uint64) (revision uint64, err error) {
	return b.write(ctx, "update", key, value, last, func(ctx context.Context) (uint64, error) {
		return b.kv.Update(ctx, key, value, last)
	})
}

func (b *Bucket) write(ctx context.Context, operation, key string, value []byte, last uint64,
	toServer func(ctx context.Context) (uint64, error)) (revision uint64, err error) {
	err = b.ask(ctx, operation, key, func(m *busBucket) (err error) {
		revision, err = m.write(key, value, last)
		return err
	}, func(ctx context.Context) (err error) {
		revision, err = toServer(ctx)
		return err
	})
	return revision, err
}

// Get reads a key. It fails with ErrNoKey if there is none.
func (b *Bucket) Get(ctx context.Context, key string) (e Entry, err error) {
	err = b.ask(ctx, "get", key, func(m *busBucket) (err error) {
		e, err = m.get(key)
		return err
	}, func(ctx context.Context) error {
		got, err := b.kv.Get(ctx, key)
		if err == nil {
			e = Entry{got.Key(), got.Value(), got.Revision()}
		}
		return err
	})
	return e, err
}

// Delete removes a key if its last write had the revision, else it returns ErrKeyExists. JetStream keeps a marker of
// the deletion for markerTTL.
func (b *Bucket) Delete(ctx context.Context, key string, last uint64) error {
	return b.ask(ctx, "delete", key, func(m *busBucket) error { return m.delete(key, last) },
		func(ctx context.Context) error {
			return b.kv.Purge(ctx, key, jetstream.LastRevision(last), jetstream.PurgeTTL(markerTTL))
		})
}

// Look returns nil if the bucket exists, and ErrNoBucket if it does not, or is another one of the same name.
func (b *Bucket) Look(ctx context.Context) error {
	return b.ask(ctx, "look for", "any key", (*busBucket).look, func(ctx context.Context) error {
		info, err := b.stream.Info(ctx)
		if err == nil && !info.Created.Equal(b.created) {
			return jetstream.ErrBucketNotFound
		}
		return err
	})
}

// All reads every key, sorted. The caller must not change the values.
func (b *Bucket) All(ctx context.Context) ([]Entry, error) {
	w, err := b.Watch(ctx, func() {})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.All(), nil
}

// Watch is a copy of a bucket that the server keeps up to date. It misses changes while the connection is lost, and all
// that follow the loss of the bucket: its owner then starts a new one. It is safe for concurrent use.
type Watch struct {
	changed func()
	stop    func()

	mu       sync.Mutex
	entries  map[string]Entry
	revision uint64        // of the latest change that was applied
	next     chan struct{} // closed by the next change
}

// Watch reads every key, then applies each change until Close. ctx bounds the first reading. changed is called after a
// key was added or removed or got another value, and must not block.
func (b *Bucket) Watch(ctx context.Context, changed func()) (*Watch, error) {
	w := &Watch{changed: changed, entries: map[string]Entry{}, next: make(chan struct{})}
	return w, b.ask(ctx, "watch", "all keys", func(m *busBucket) error { return m.watch(w) },
		func(ctx context.Context) error { return b.watch(ctx, w) })
}

func (b *Bucket) watch(ctx context.Context, w *Watch) error {
	running, stop := context.WithCancel(b.control.nats.ctx)
	w.stop = stop
	begun := context.AfterFunc(ctx, stop)
	from, err := b.kv.WatchAll(running)
	if err = cmp.Or(err, running.Err()); err != nil { // the library may never report the end of this watch
		stop()
		return err
	}
	read := make(chan struct{})
	b.control.handlers.Go(func() {
		for e := range from.Updates() {
			if e == nil {
				close(read)
				continue
			}
			w.apply(Entry{e.Key(), e.Value(), e.Revision()}, e.Operation() == jetstream.KeyValuePut)
		}
	})
	select {
	case <-read:
		begun()
		return nil
	case <-ctx.Done():
		stop()
		return context.Cause(ctx)
	}
}

// apply applies a change: a key has a value, or does not exist.
func (w *Watch) apply(e Entry, there bool) {
	w.mu.Lock()
	was, had := w.entries[e.Key]
	if there {
		w.entries[e.Key] = e
	} else {
		delete(w.entries, e.Key)
	}
	w.revision = max(w.revision, e.Revision)
	close(w.next)
	w.next = make(chan struct{})
	w.mu.Unlock()
	if had != there || !bytes.Equal(was.Value, e.Value) && there {
		w.changed()
	}
}

// All returns every key, sorted. The caller must not change the values.
func (w *Watch) All() []Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Values(w.entries), func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
}

// Reach waits until the copy has every write up to a revision. It fails with ErrLost when ctx ends first.
func (w *Watch) Reach(ctx context.Context, revision uint64) error {
	for {
		w.mu.Lock()
		reached, next := w.revision >= revision, w.next
		w.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("%w: watch: revision %d not reached: %w", ErrLost, revision, context.Cause(ctx))
		}
	}
}

// Close ends the watch and keeps the copy. It may be called on nil.
func (w *Watch) Close() {
	if w != nil {
		w.stop()
	}
}
