package exchange

import (
	"context"
	"errors"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/ps"
)

// shard is a parameter server, as ./bin/ps is one.
type shard struct {
	backend cuda.Backend
	server  *ps.Server
}

// serverConfig is that of the server, at any free port.
func serverConfig(shards int) ps.Config {
	c := ps.Default()
	c.Port, c.Shards = 0, shards
	return c
}

func newShard(ctx context.Context, s *spec) (*shard, error) {
	config.PaceScheduler()
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		return nil, err
	}
	server, err := ps.Start(ctx, serverConfig(s.Shards), ps.Options{Backend: backend, LimitHeap: config.HeapLimiter()})
	if err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	return &shard{backend, server}, nil
}

func (s *shard) order(_ context.Context, o order) (answer, error) {
	if o.Op != opListen {
		return answer{}, errors.New("unknown order")
	}
	return answer{URL: s.server.URL()}, nil
}

func (s *shard) bytes() uint64 { return s.server.Stats().Bytes }

func (s *shard) close() {
	s.server.Close()
	_ = s.backend.Close() // nothing is left to be lost
}
