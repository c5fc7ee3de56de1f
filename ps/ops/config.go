package ops

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Config is what a Server is told and given. Names in parentheses are those of the flags, which errors use.
type Config struct {
	// Listen (http) is the host:port to serve at; port 0 means any free one.
	Listen string
	// AnyPort takes a free port where that of Listen is taken, and says so in the log, instead of an error: for a ps whose
	// user did not ask for that port.
	AnyPort bool
	// Hosts (http-host) are names besides the address and loopback names that requests may ask for in their Host header:
	// those under which a proxy or a name server makes the page known.
	Hosts []string
	// Machine are names of this machine, that requests may ask for as well; Server.Public gives none of them.
	Machine []string
	// Token (http-token-file) is what requests must show, but for /healthz and the short form of /readyz. Empty means
	// that none is asked for.
	Token string
	// MetricsToken (metrics-token-file) is what requests for /metrics must show where they do not show Token; it opens
	// nothing else. Empty means that there is none.
	MetricsToken string
	// CertFile and KeyFile (http-tls-cert, http-tls-key) are PEM files of a certificate and its key; with them all is TLS.
	CertFile, KeyFile string
	// Insecure (http-insecure) allows an address that other machines reach without Token and TLS.
	Insecure bool
	// Pprof (pprof) is the loopback host:port of Go's profiles. Empty means none.
	Pprof string
	// Monitor (nats-monitor) is the loopback host:port of what NATS says. Empty means none.
	Monitor string

	// Hub makes what is shown. It outlives the Server, and is its maker's to close.
	Hub *Hub
	// Page holds the files of the page, index.html at its root, each served under its path; nil serves a line of text.
	Page fs.FS
	// Runbooks is Markdown, shown at /runbooks.
	Runbooks string
	// Metrics answers /metrics; nil is none.
	Metrics http.Handler
	// NATS gives a page of NATS's monitoring, as JSON; NATSPages are all of them, with their parameters. An error says
	// what is wrong with these, or ErrStarting.
	NATS      func(page string, parameters url.Values) ([]byte, error)
	NATSPages map[string][]string
	// ResetBuckets begins anew what the shards of a job here say of each bucket, of all jobs where it is empty. It reports
	// whether the job has shards here, and must not block. nil resets nothing.
	ResetBuckets func(job string) bool
	// Alive is when the control loop of the ps last turned; zero before it does. It must not block.
	Alive func() time.Time
	// Checks is what has to hold for the ps to be ready. It must not block.
	Checks func() []Check
	// Log is told of faults; nil discards. No request is logged.
	Log *slog.Logger

	limits limits // zero fields have defaults; tests shorten them
}

// Check is one line of /readyz?verbose.
type Check struct {
	Name string
	OK   bool
	Text string // what is, or what is wrong
}

// limits bound what clients may take of the process.
type limits struct {
	headerBytesMax int           // of a request's line and headers
	headerTime     time.Duration // until a request's headers are there
	formTime       time.Duration // until the form of a request is there, after its headers
	writeTime      time.Duration // until an answer is taken
	idleTime       time.Duration // between requests of a connection
	streamTime     time.Duration // that a stream's client may take for one update
	streamsMax     int
	connectionsMax int
	aliveTime      time.Duration // that the control loop may stand still
}

func (l limits) withDefaults() limits {
	set(&l.headerBytesMax, 16<<10)
	set(&l.headerTime, 5*time.Second)
	set(&l.formTime, 2*time.Second)
	set(&l.writeTime, 20*time.Second)
	set(&l.idleTime, time.Minute)
	set(&l.streamTime, 10*time.Second)
	// A connection costs some 28 KiB, with a stream or without. Dashboards are few, and all together stay below 8 MiB.
	set(&l.streamsMax, 128)
	set(&l.connectionsMax, 256)
	set(&l.aliveTime, 10*time.Second)
	return l
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// tokenBytesMin is the shortest token that is worth asking for: 16 hexadecimal digits are 64 bits.
const tokenBytesMin = 16

// Validate says what is wrong, in one line, and what would be right.
func (c Config) Validate() error {
	var wrong []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	host, _, err := net.SplitHostPort(c.Listen)
	check(err == nil, "http %q: want host:port, for example 127.0.0.1:8080, or off", c.Listen)
	check((c.CertFile == "") == (c.KeyFile == ""), "http-tls-cert and http-tls-key: want both or neither")
	for _, each := range [][2]string{{"http-token-file", c.Token}, {"metrics-token-file", c.MetricsToken}} {
		flag, token := each[0], each[1]
		check(token == "" || len(token) >= tokenBytesMin,
			"%s: its token has %d characters, want at least %d: openssl rand -hex 16 makes one", flag, len(token),
			tokenBytesMin)
		check(!strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }),
			"%s: its token holds what is no letter, digit or sign of ASCII", flag)
	}
	check(c.MetricsToken == "" || c.MetricsToken != c.Token,
		"metrics-token-file: its token is that of http-token-file, which opens more: want another")
	if err == nil {
		check(isLoopback(host) || c.Insecure || c.Token != "" && c.CertFile != "",
			"http %s: other machines can reach it: give http-token-file, http-tls-cert and http-tls-key, serve at 127.0.0.1, "+
				"or say http-insecure", c.Listen)
	}
	for _, h := range c.Hosts {
		check(hostName(h) != "" && !strings.ContainsAny(h, "/*@ "),
			"http-host %q: want a name or an address, without scheme and port", h)
	}
	for _, side := range c.sides() {
		host, _, err := net.SplitHostPort(side.at)
		check(err == nil && isLoopback(host), "%s %q: want host:port of this machine alone, for example %s", side.flag,
			side.at, side.example)
	}
	check(c.Hub != nil, "no hub")
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// isLoopback reports whether only this machine reaches a host to listen at.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
