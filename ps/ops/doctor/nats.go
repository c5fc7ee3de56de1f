package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gradbus/fabric"
	"gradbus/ps/ops/terminal"
	"gradbus/schema"
)

const (
	// natsMinor is the least version 2.x of nats-server that this was written for.
	natsMinor = 10
	// payloadMin is the size of a chunk's message at the default of 256 KiB, and some.
	payloadMin = 512 << 10
	// pendingMin is the default of nats-server, below which a reader that is slow for a moment is cut off.
	pendingMin    = 64 << 20
	monitorWithin = 5 * time.Second
	varzBytesMax  = 1 << 20
)

// nats looks at the control server, where there is one of its own.
func (c *Config) nats(ctx context.Context) []terminal.Finding {
	if c.Control == nil {
		return []terminal.Finding{
			info("NATS", "not examined: --nats names a server or cluster; a ps that embeds its own sets it up itself"),
		}
	}
	control, err := fabric.DialControl(ctx, *c.Control)
	if err != nil {
		return []terminal.Finding{fail("NATS", "start it, or correct --nats and what it needs", "%v", err)}
	}
	defer control.Close()
	survey, err := control.Survey(ctx, schema.ServersBucket, schema.JobsBucket)
	if errors.Is(err, fabric.ErrDenied) {
		return []terminal.Finding{info("NATS", "not examined: %v", err)}
	}
	if err != nil {
		return []terminal.Finding{fail("NATS", "look at its log", "%v", err)}
	}
	all := judgeNATS(&survey)
	if c.Monitor == "" {
		return append(all,
			info("NATS monitor", "max_pending, slow consumers and where JetStream stores: not asked; --nats-monitor names the "+
				"server's monitoring address"))
	}
	v, err := readMonitor(ctx, c.Monitor, c.Token)
	if errors.Is(err, errToken) {
		return append(all, fail("NATS monitor", "name a file with the token of its page: --http-token-file", "%v", err))
	} else if err != nil {
		return append(all, fail("NATS monitor", "start nats-server with -m 8222, and name http://host:8222", "%v", err))
	}
	return append(all, judgeMonitor(v)...)
}

// judgeNATS looks at what a server tells everybody who may use it.
func judgeNATS(s *fabric.Survey) []terminal.Finding {
	all := []terminal.Finding{judgeVersion(s.Address, s.Version)}
	if s.PayloadBytesMax < payloadMin {
		all = append(all, warn("NATS messages", "set max_payload to 8MB",
			"at most %d KiB: trainers with --route cluster are refused at the default chunk size", s.PayloadBytesMax>>10))
	} else {
		all = append(all, ok("NATS messages", "at most %.1f MiB", float64(s.PayloadBytesMax)/(1<<20)))
	}
	if s.JetStream != nil {
		return append(all,
			fail("JetStream", "run nats-server with -js, or set jetstream in its configuration and for the account", "%v",
				s.JetStream))
	}
	if m := s.Memory; m.Max >= 0 && m.Max-m.Used < memoryOfBuckets {
		all = append(all, fail("JetStream", "raise max_memory_store, or the account's limit",
			"%s of %s of memory are used: the buckets of ps and jobs do not fit", size(m.Used), size(m.Max)))
	} else {
		all = append(all, ok("JetStream", "%s of memory used", size(m.Used)))
	}
	for _, b := range s.Buckets {
		all = append(all, judgeBucket(s, b))
	}
	if len(s.Buckets) == 1 {
		all = append(all, fail("buckets", "see /readyz?verbose of a ps, which makes it again or says why it cannot",
			"%s is there alone: the other one is lost, and nobody can join", s.Buckets[0].Name))
	}
	if len(s.Buckets) == 0 {
		all = append(all, info("buckets", "none yet: the first ps with --nats makes them"))
	}
	return all
}

// memoryOfBuckets is what the two buckets take at most.
const memoryOfBuckets = 20 << 20

func judgeVersion(address, version string) terminal.Finding {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) == 3 {
		major, err := strconv.Atoi(parts[0])
		minor, other := strconv.Atoi(parts[1])
		if err == nil && other == nil {
			if major < 2 || major == 2 && minor < natsMinor {
				return warn("NATS", fmt.Sprintf("use nats-server 2.%d or newer", natsMinor), "nats-server %s at %s",
					version, address)
			}
			return ok("NATS", "nats-server %s at %s", version, address)
		}
	}
	return info("NATS", "a server of unknown version %q at %s", version, address)
}

// judgeBucket: memory is where these buckets belong, since what they hold is written again by those who are there.
func judgeBucket(s *fabric.Survey, b fabric.BucketSurvey) terminal.Finding {
	name := "bucket " + strings.TrimPrefix(b.Name, "gradbus-")
	kept := "on disk"
	if b.InMemory {
		kept = "in memory"
	}
	text := fmt.Sprintf("%d keys, %s, %d of %d replicas up to date", b.Keys, kept, b.Current, b.Replicas)
	switch {
	case b.Current < b.Replicas && b.Current*2 <= b.Replicas:
		return fail(name, "bring the servers of the cluster back", "%s: no quorum, nobody can join", text)
	case b.Current < b.Replicas:
		return warn(name, "bring the servers of the cluster back: one more lost, and nobody can join", "%s", text)
	case s.Cluster != "" && b.Replicas < 3:
		return warn(name, "have three servers in the cluster when the first ps starts: then the bucket is on three, and "+
			"outlives one", "%s: cluster %s loses it with one server, and jobs cannot be joined until it is back",
			text, s.Cluster)
	case b.BytesMax > 0 && int64(b.Bytes) > b.BytesMax/10*9:
		return warn(name, "end jobs, or take old ones away", "%s; it is full to more than 90 %%", text)
	case b.Replicas == 1:
		return ok(name, "%s; a restart of the server empties it, and those who are there write it again", text)
	}
	return ok(name, "%s", text)
}

// varz is what of a NATS server's monitoring says whether something would be lost.
type varz struct {
	Version       string `json:"version"`
	MaxPending    int64  `json:"max_pending"`
	SlowConsumers int64  `json:"slow_consumers"`
	Connections   int    `json:"connections"`
	MaxConn       int    `json:"max_connections"`
	JetStream     struct {
		Config *struct {
			StoreDir string `json:"store_dir"`
		} `json:"config"`
	} `json:"jetstream"`
}

// errToken says that monitoring wants another token.
var errToken = errors.New("it wants a token, or another one")

// monitorRequest asks for a NATS server's monitoring. The token goes to this machine alone: that of a ps is nowhere
// else, and a NATS server's own asks for none.
func monitorRequest(ctx context.Context, url, token string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/varz", nil)
	if err != nil {
		return nil, fmt.Errorf("monitoring at %s: %w", schema.Clip(url), err)
	}
	if host := request.URL.Hostname(); token != "" && (host == "localhost" || net.ParseIP(host).IsLoopback()) {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return request, nil
}

// readMonitor asks a NATS server's monitoring.
func readMonitor(ctx context.Context, url, token string) (v varz, err error) {
	ctx, cancel := context.WithTimeout(ctx, monitorWithin)
	defer cancel()
	request, err := monitorRequest(ctx, url, token)
	if err != nil {
		return v, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return v, fmt.Errorf("monitoring at %s: %w", url, errors.Unwrap(err))
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return v, fmt.Errorf("monitoring at %s: %w", url, errToken)
	default:
		return v, fmt.Errorf("monitoring at %s: /varz answers %s", url, answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, varzBytesMax)).Decode(&v); err != nil || v.Version == "" {
		return v, fmt.Errorf("monitoring at %s: /varz is not that of a NATS server", url)
	}
	return v, nil
}

// judgeMonitor looks at what only the monitoring tells.
func judgeMonitor(v varz) []terminal.Finding {
	var all []terminal.Finding
	if v.MaxPending < pendingMin {
		all = append(all, warn("NATS pending", "set max_pending to 256MB",
			"max_pending is %s: a reader that stands still for a moment is cut off", size(v.MaxPending)))
	} else {
		all = append(all, ok("NATS pending", "max_pending is %s", size(v.MaxPending)))
	}
	if v.SlowConsumers > 0 {
		all = append(all, warn("NATS readers", "look for busy machines and thin networks, or raise max_pending",
			"%d were cut off because they did not read in time, since it started", v.SlowConsumers))
	} else {
		all = append(all, ok("NATS readers", "%d connections, none was cut off for being slow", v.Connections))
	}
	if v.MaxConn > 0 && v.Connections > v.MaxConn/10*9 {
		all = append(all, warn("NATS connections", "raise max_connections", "%d of at most %d", v.Connections, v.MaxConn))
	}
	if c := v.JetStream.Config; c != nil && temporary(c.StoreDir) {
		all = append(all, warn("JetStream store", "set store_dir to a folder that is kept",
			"%s: what others keep in streams on disk is gone after a restart", schema.Clip(c.StoreDir)))
	}
	return all
}

// temporary tells whether a folder is emptied by restarts.
func temporary(dir string) bool {
	for _, of := range []string{"/tmp", "/var/tmp", "/dev/shm", "/run"} {
		if dir == of || strings.HasPrefix(dir, of+"/") {
			return true
		}
	}
	return false
}
