package fabric

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// BucketConfig describes a bucket: small values by key, kept in the memory of the control server.
type BucketConfig struct {
	Name     string
	BytesMax int64         // of all keys and values
	TTL      time.Duration // after which a key that nobody wrote is gone; 0 is never
}

// Bucket is a key-value bucket of JetStream. Its content is gone when the control server was started anew: every
// method then gives ErrNoBucket, and its owner opens it again and writes what it knows.
type Bucket struct {
	config BucketConfig
	at     string
	js     jetstream.JetStream
	kv     jetstream.KeyValue
}

// Entry is a key and its value. Revisions rise with every write to the bucket.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
}

// clusterReplicas is how many servers of a cluster keep a bucket, so that it outlives one of them.
const clusterReplicas = 3

// OpenBucket finds a bucket, or makes it: on a cluster of three servers or more on three of them, else on one. Errors:
// ErrNoJetStream; ErrLost where the server does not answer, wrapped with the cause of ctx.
func (c *Control) OpenBucket(ctx context.Context, config BucketConfig) (*Bucket, error) {
	wanted := jetstream.KeyValueConfig{
		Bucket: config.Name, MaxBytes: config.BytesMax, TTL: config.TTL, History: 1, Storage: jetstream.MemoryStorage, Replicas: 1,
	}
	if c.line.nats.ConnectedClusterName() != "" {
		wanted.Replicas = clusterReplicas
	}
	kv, err := c.js.CreateOrUpdateKeyValue(ctx, wanted)
	var refused *jetstream.APIError
	if wanted.Replicas > 1 && errors.As(err, &refused) { // fewer servers, or not all of them there
		wanted.Replicas = 1
		kv, err = c.js.CreateOrUpdateKeyValue(ctx, wanted)
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", config.Name, bucketError(c.Address(), err))
	}
	return &Bucket{config, c.Address(), c.js, kv}, nil
}

// LookBucket finds a bucket without making one: ErrNoBucket where there is none.
func (c *Control) LookBucket(ctx context.Context, name string) (*Bucket, error) {
	kv, err := c.js.KeyValue(ctx, name)
	if err != nil {
		if _, account := c.js.AccountInfo(ctx); errors.Is(account, jetstream.ErrJetStreamNotEnabled) || errors.Is(account, jetstream.ErrJetStreamNotEnabledForAccount) {
			err = account // nobody answers for a bucket either way
		}
		return nil, fmt.Errorf("look for bucket %s: %w", name, bucketError(c.Address(), err))
	}
	return &Bucket{BucketConfig{Name: name}, c.Address(), c.js, kv}, nil
}

// bucketError turns what the library says into the errors of this package.
func bucketError(at string, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w at %s: run nats-server with -js, or set jetstream in its configuration and for the account in use", ErrNoJetStream, at)
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, nats.ErrStreamNotFound),
		errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w at %s: %w", ErrNoBucket, at, err)
	case errors.Is(err, jetstream.ErrKeyExists):
		return ErrKeyExists
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return ErrNoKey
	}
	return fmt.Errorf("%w: %s: %w", ErrLost, at, err)
}

func (b *Bucket) failed(operation, key string, err error) error {
	return fmt.Errorf("%s %s of bucket %s: %w", operation, key, b.config.Name, bucketError(b.at, err))
}

// Create writes a key that does not exist: of several who try, one succeeds and the others get ErrKeyExists.
func (b *Bucket) Create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	if revision, err = b.kv.Create(ctx, key, value); err != nil {
		return 0, b.failed("create", key, err)
	}
	return revision, nil
}

// Put writes a key.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	if revision, err = b.kv.Put(ctx, key, value); err != nil {
		return 0, b.failed("put", key, err)
	}
	return revision, nil
}

// Update writes a key whose last write had a revision; ErrKeyExists says that somebody else has written since.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, last uint64) (revision uint64, err error) {
	if revision, err = b.kv.Update(ctx, key, value, last); err != nil {
		return 0, b.failed("update", key, err)
	}
	return revision, nil
}

// Get reads a key: ErrNoKey where there is none.
func (b *Bucket) Get(ctx context.Context, key string) (Entry, error) {
	e, err := b.kv.Get(ctx, key)
	if err != nil {
		return Entry{}, b.failed("get", key, err)
	}
	return Entry{e.Key(), e.Value(), e.Revision()}, nil
}

// Delete takes a key away if its last write had the revision; ErrKeyExists says that somebody has written since.
func (b *Bucket) Delete(ctx context.Context, key string, last uint64) error {
	if err := b.kv.Purge(ctx, key, jetstream.LastRevision(last)); err != nil {
		return b.failed("delete", key, err)
	}
	return nil
}

// All reads every key, in no particular order. It takes a round trip for each. (Watching the bucket would take one for all,
// but waits for ever for a key that runs out meanwhile.)
func (b *Bucket) All(ctx context.Context) (entries []Entry, err error) {
	stream, err := b.js.Stream(ctx, "KV_"+b.config.Name)
	if err != nil {
		return nil, b.failed("list", "*", err)
	}
	prefix := "$KV." + b.config.Name + "."
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return nil, b.failed("list", "*", err)
	}
	for subject := range info.State.Subjects {
		e, err := b.Get(ctx, strings.TrimPrefix(subject, prefix))
		switch {
		case err == nil:
			entries = append(entries, e)
		case !errors.Is(err, ErrNoKey): // deleted, or run out
			return nil, err
		}
	}
	return entries, nil
}
