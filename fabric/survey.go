package fabric

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Survey is what a NATS server reports to a client that may use it as control server: enough to see settings that would
// lose data.
type Survey struct {
	Address         string
	Version         string // of the server
	Cluster         string // its name; empty where it is alone
	servers         int    // of the cluster that are known
	PayloadBytesMax int
	tls             bool

	JetStream error // nil where the account has JetStream
	Memory    Share // that the account may take, and takes; of JetStream
	storage   Share
	Buckets   []BucketSurvey // of those that were asked for and are there
}

// Share is how much of something is used. Max is -1 where there is no limit.
type Share struct{ Used, Max int64 }

// BucketSurvey is how a bucket is kept.
type BucketSurvey struct {
	Name     string
	InMemory bool
	Replicas int // that it should have
	Current  int // of these that are up to date, the leader among them
	Keys     uint64
	Bytes    uint64
	BytesMax int64
}

// Survey asks the server for itself and for buckets by name. Errors: ErrLost.
func (c *Control) Survey(ctx context.Context, buckets ...string) (Survey, error) {
	if c.bus != nil {
		return Survey{Address: c.Address(), servers: 1, PayloadBytesMax: c.PayloadBytesMax()}, nil
	}
	nc := c.nats.nats
	s := Survey{Address: c.Address(), Version: nc.ConnectedServerVersion(), Cluster: nc.ConnectedClusterName(),
		servers:         max(1, len(nc.Servers())),
		PayloadBytesMax: c.PayloadBytesMax()}
	_, err := nc.TLSConnectionState()
	s.tls = err == nil
	asked, end := c.asking(ctx)
	account, err := c.js.AccountInfo(asked)
	err = end(err)
	switch {
	case errors.Is(err, ErrDenied):
		return s, fmt.Errorf("survey: %w", err)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		s.JetStream = bucketError(c.Address(), err)
		return s, nil
	case err != nil:
		return s, fmt.Errorf("survey: %w: %s: %w", ErrLost, c.Address(), err)
	}
	s.Memory = Share{int64(account.Memory), account.Limits.MaxMemory}
	s.storage = Share{int64(account.Store), account.Limits.MaxStore}
	for _, name := range buckets {
		stream, err := c.js.Stream(ctx, "KV_"+name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return s, fmt.Errorf("survey: bucket %s: %w", name, bucketError(c.Address(), err))
		}
		info := stream.CachedInfo()
		b := BucketSurvey{Name: name, InMemory: info.Config.Storage == jetstream.MemoryStorage,
			Replicas: info.Config.Replicas, Current: 1,
			Keys: info.State.Msgs, Bytes: info.State.Bytes, BytesMax: info.Config.MaxBytes}
		if info.Cluster != nil {
			for _, r := range info.Cluster.Replicas {
				if r.Current && !r.Offline {
					b.Current++
				}
			}
		}
		s.Buckets = append(s.Buckets, b)
	}
	return s, nil
}
