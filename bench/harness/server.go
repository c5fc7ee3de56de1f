package harness

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/ps"
)

// RoleServer is the name of the role Server, which every harness knows.
const RoleServer = "server"

// keyURL is what a server tells when it is ready: the address that trainers join at.
const keyURL = "url"

// serverWithin is how long a server may take until it is ready.
const serverWithin = 30 * time.Second

// ServerSettings are those of one ps process. The zero value is a server of one shard on loopback, at any free port.
type ServerSettings struct {
	Shards int `json:"shards,omitempty"` // 0 means 1
	// where several ps share a control server; their order follows from it
	ID   string `json:"id,omitempty"`
	NATS string `json:"nats,omitempty"` // the control server, where that is not this one
	// of the control server, the same for all of one harness
	ControlToken   string        `json:"control_token,omitempty"`
	Backend        string        `json:"backend,omitempty"`          // of cuda.Names; empty is the best of the CPU
	Threads        int           `json:"threads,omitempty"`          // of one call of the backend; 0 means 1
	Deadline       time.Duration `json:"deadline,omitempty"`         // 0 means 30 s
	StagedBytesMax int64         `json:"staged_bytes_max,omitempty"` // 0 means 128 MiB
	Procs          int           `json:"procs,omitempty"`            // for Member.LimitProcs; 0 is what ./bin/ps takes
}

// ServerResult is what a server has received in all.
type ServerResult struct {
	Frames uint64 `json:"frames"`
	Bytes  uint64 `json:"bytes"`
}

// Server is the role of a parameter server, as ./bin/ps is one.
func Server(ctx context.Context, m *Member) (any, error) {
	var s ServerSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	return Serve(ctx, m, s, nil)
}

// Serve is what the role of a server does: it tells its address by keyURL, serves until it is stopped, and says what it
// has received when it is gone. adjust, where it is not nil, may change what the server is given, for roles that look
// into it.
func Serve(ctx context.Context, m *Member, s ServerSettings, adjust func(*ps.Options)) (found ServerResult, err error) {
	server, end, err := openServer(ctx, m, s, adjust)
	if err != nil {
		return found, err
	}
	defer func() {
		if e := end(); err == nil {
			err = e
		}
	}()
	if err := m.Tell(keyURL, server.URL()); err != nil {
		return found, err
	}
	select {
	case <-m.Done():
	case <-server.Done():
		return found, server.Err()
	case <-ctx.Done():
		return found, context.Cause(ctx)
	}
	stats := server.Stats()
	return ServerResult{Frames: stats.Frames, Bytes: stats.Bytes}, nil
}

// openServer starts a server. end ends it and returns when it is gone.
func openServer(ctx context.Context, m *Member, s ServerSettings, adjust func(*ps.Options)) (server *ps.Server,
	end func() error, err error) {
	backend, err := cuda.Open(cuda.Options{Name: s.Backend, Threads: s.Threads})
	if err != nil {
		return nil, nil, err
	}
	c := ps.Default()
	c.Port, c.Shards, c.ID, c.NATS, c.Deadline, c.StagedBytesMax = 0, max(1, s.Shards), s.ID, s.NATS, s.Deadline,
		s.StagedBytesMax
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
// of the others, "s1" and so on, and url is what trainers join. Each has s.Shards shards, which are numbered in the
// order of the processes.
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

// StopServers asks servers to end and waits for their results, which it adds up.
func (c *Harness) StopServers(ctx context.Context, servers ...*Handle) (sum ServerResult, err error) {
	all := make([]ServerResult, len(servers))
	err = c.StopServersAs(ctx, servers, func(i int) any { return &all[i] })
	for _, r := range all {
		sum.Frames, sum.Bytes = sum.Frames+r.Frames, sum.Bytes+r.Bytes
	}
	return sum, err
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
