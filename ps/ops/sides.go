package ops

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
)

// sideConnectionsMax bounds the connections of a side listener.
const sideConnectionsMax = 16

// side is a listener beside that of the page, which this machine alone reaches. It has the page's rules and token.
type side struct {
	flag, at, example string
	what, path        string // as the log says it
	handler           func(*Server) http.Handler
	endless           bool // an answer takes as long as its asker says

	listener net.Listener
}

// sides are those that are asked for.
func (c *Config) sides() []*side {
	return slices.DeleteFunc([]*side{
		{flag: "pprof", at: c.Pprof, example: "127.0.0.1:6060", what: "profiles", path: "/debug/pprof/",
			handler: (*Server).profiles, endless: true},
		{flag: "nats-monitor", at: c.Monitor, example: "127.0.0.1:8222", what: "NATS monitoring", path: "/varz",
			handler: (*Server).monitoring},
	}, func(s *side) bool { return s.at == "" })
}

// listenSides opens all, or none.
func (s *Server) listenSides() (sides []*side, err error) {
	sides = s.config.sides()
	for i, one := range sides {
		if one.listener, err = net.Listen("tcp", one.at); err != nil {
			for _, opened := range sides[:i] {
				opened.listener.Close()
			}
			return nil, taken(one.flag, one.at, "choose another with --"+one.flag, err)
		}
	}
	return sides, nil
}

// profiles are Go's own, under names of this machine only. The command line, which pprof would show too, may hold
// secrets.
func (s *Server) profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return s.guarded(newGuard(Config{Listen: s.config.Pprof}, nil), mux)
}

// monitoring is what NATS says of its server. NATS serves the same itself, to pages of all sites, with the stacks and
// the command line of the process.
func (s *Server) monitoring() http.Handler {
	mux := http.NewServeMux()
	for page, known := range s.config.NATSPages {
		mux.HandleFunc("/"+page, func(w http.ResponseWriter, r *http.Request) {
			if values, ok := s.parameters(w, r, known...); ok {
				s.answer(w, r, func() ([]byte, error) {
					text, err := s.config.NATS(page, values)
					switch {
					case errors.Is(err, ErrStarting):
						err = &refusal{http.StatusServiceUnavailable, err.Error()}
					case err != nil:
						err = &refusal{http.StatusBadRequest, err.Error()}
					}
					return text, err
				})
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Sprintf("no %q here: there are /%s", clip(r.URL.Path),
			strings.Join(slices.Sorted(maps.Keys(s.config.NATSPages)), ", /")))
	})
	return s.guarded(s.guard, mux)
}
