package ops

import (
	"net/http"
	"net/http/pprof"
)

// profileConnectionsMax bounds those who profile at once.
const profileConnectionsMax = 16

// profiles are Go's own, on a listener of their own that only this machine reaches, and under names of this machine
// only. The command line, which pprof would show too, may hold what is nobody's business.
func (s *Server) profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return s.guarded(newGuard(Config{Listen: s.config.Pprof}, nil), mux)
}
