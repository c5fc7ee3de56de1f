package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gradbus/internal/certificate/certtest"
)

var cutAll = flag.Bool("cut-all", false, "pull a cable out in the middle of every system on several hosts, not of some")

// small is a model of psbench average that is trained in a moment, and data for it.
const (
	smallModel = `{"Small": {"model_class": "DummyModel", "configurations": {"num_embeddings": 64, "embedding_dim": 64,
		"dense_input_size": 64, "dense_output_size": 64, "dense_layers_count": 3, "sparse": true}}}`
	smallData = `{"Small": {"data_class": "DummyData", "configurations": {"max_val": 64, "sample_count": 1024,
		"sample_length": 16, "sparsity_percentage": 20}}}`
)

// spread is a system over the hosts of a LAN, which find each other by their addresses.
type spread struct {
	hosts   []*host
	port    string // of every ps
	folder  string // that commands run in, with the secrets
	options []string
}

// commands are those that psbench prints for each host of a system: of its ps, then of its trainers.
func (s *spread) commands(t *testing.T, args ...string) (servers, trainers [][]string) {
	t.Helper()
	var names []string
	for _, h := range s.hosts {
		names = append(names, h.address+":"+s.port)
	}
	p := start(t, "psbench", append(append(args, "--hosts", strings.Join(names, ",")), s.options...)...)
	p.succeeds(t)
	host := ""
	for line := range strings.Lines(p.stdout.String()) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "# on "):
			host, _, _ = strings.Cut(strings.TrimPrefix(line, "# on "), ":")
		case host == "":
		case strings.Contains(line, "/ps --listen"):
			servers = append(servers, []string{host, line})
		default:
			trainers = append(trainers, []string{host, line})
		}
		if !strings.HasPrefix(line, "#") {
			host = ""
		}
	}
	return servers, trainers
}

// run has a host's shell run a line.
func (s *spread) run(t *testing.T, name string, of []string) *process {
	t.Helper()
	for _, h := range s.hosts {
		if h.address == of[0] {
			c := exec.Command("ip", "netns", "exec", h.name, "sh", "-c", "exec "+of[1])
			c.Dir = s.folder
			return startCommand(t, name, c)
		}
	}
	t.Fatalf("no host %s", of[0])
	return nil
}

// moved is how many bytes have crossed the host's cable.
func (h *host) moved(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("ip", "-n", h.lan.prefix+"switch", "-s", "-j", "link", "show", "dev", h.port).Output()
	var links []struct {
		Stats64 struct{ RX, TX struct{ Bytes int } }
	}
	if err == nil {
		err = json.Unmarshal(out, &links)
	}
	if err != nil || len(links) != 1 {
		t.Fatalf("statistics of %s: %v: %s", h.port, err, out)
	}
	return links[0].Stats64.RX.Bytes + links[0].Stats64.TX.Bytes
}

// weights is the digest in what a process printed.
func weights(t *testing.T, p *process) string {
	t.Helper()
	p.succeeds(t)
	var r struct {
		Weights string `json:"weights_sha256"`
	}
	if err := json.Unmarshal([]byte(p.stdout.String()), &r); err != nil || r.Weights == "" {
		t.Fatalf("printed %q: %v", p.stdout.String(), err)
	}
	return r.Weights
}

// The systems in settings that take a moment on three hosts.
func (s *spread) average(hook string, more ...string) []string {
	return append([]string{"average", "--hook", hook, "--servers", "3", "--trainers", "3", "--model",
		filepath.Join(s.folder, "model.json"), "--input", filepath.Join(s.folder, "data.json"), "--trainer-batch", "16",
		"--epochs", "8"}, more...)
}

func (s *spread) hybrid(mode, placement, trainers string) []string {
	return []string{"hybrid", "--servers", "3", "--trainers", trainers, "--dim", "8", "--epochs", "25", "--mode", mode,
		"--placement", placement}
}

func (s *spread) hosted(trainers, batches string, more ...string) []string {
	return append([]string{"hosted", "--trainers", trainers, "--input", "synthetic", "--batches", batches, "--warmup", "0",
		"--trainer-batch", "8"}, more...)
}

// begin starts the ps of a system.
func (s *spread) begin(t *testing.T, args ...string) {
	t.Helper()
	servers, _ := s.commands(t, args...)
	if len(servers) != len(s.hosts) {
		t.Fatalf("%d ps for %d hosts", len(servers), len(s.hosts))
	}
	for _, line := range servers {
		s.run(t, "ps", line).says(t, "is ready at")
	}
}

// The four reference systems, in all their routes, come to the weights of one machine on three hosts, each with a ps
// and some of the trainers, by the commands that psbench prints for them, whose ps ask for a token, some for
// certificates as well; and with a cable that is pulled out for a second in the middle.
//
// Where gradients are applied in the order in which they arrive, weights are those of one machine with one trainer
// alone; three on three hosts read the same in the end.
func TestSeveralHostsSystems(t *testing.T) {
	l := newLAN(t)
	hosts, folder := []*host{l.host("a"), l.host("b"), l.host("c")}, t.TempDir()
	for name, text := range map[string]string{"token": "sesame-for-hosts\n", "control-token": "sesame-for-peers\n",
		"model.json": smallModel, "data.json": smallData} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority := certtest.NewAuthority(t)
	pair := authority.Issue(t, hosts[0].address, hosts[1].address, hosts[2].address)
	plain := &spread{hosts, "4222", folder, []string{"--token-file", "token"}}
	secure := &spread{hosts, "4223", folder, []string{"--token-file", "token", "--tls-cert", pair.CertFile, "--tls-key",
		pair.KeyFile, "--tls-ca", authority.File}}
	plain.begin(t, plain.average("rpc")...)
	secure.begin(t, plain.average("rpc")...)
	reduce := plain.hosted("3", "8", "--mode", "pull", "--sync", "reduce")
	for i, c := range []struct {
		name string
		over *spread
		args []string
		cut  bool // also without -cut-all
	}{
		{"A", plain, []string{"update", "--trainers", "3", "--batches", "600", "--warmup", "0"}, true},
		{"B rpc", plain, plain.average("rpc", "--server-kind", "average-batch"), true},
		{"B allreduce", plain, plain.average("allreduce"), true},
		{"B hybrid", plain, plain.average("hybrid"), false},
		{"B sparse-rpc", plain, plain.average("sparse-rpc"), false},
		{"B sparse-rpc over TLS", secure, plain.average("sparse-rpc"), false},
		{"C sync columns", plain, plain.hybrid("sync", "columns", "3"), true},
		{"C sync rows", plain, plain.hybrid("sync", "rows", "3"), false},
		{"C sync whole", plain, plain.hybrid("sync", "tables", "3"), false},
		{"C async columns", plain, plain.hybrid("async", "columns", "1"), false},
		{"C async rows", plain, plain.hybrid("async", "rows", "1"), false},
		{"C async whole", plain, plain.hybrid("async", "tables", "1"), false},
		{"D remote", plain, plain.hosted("1", "20"), true},
		{"C async of three", plain, plain.hybrid("async", "columns", "3"), false},
		{"D remote of three", plain, plain.hosted("3", "4"), false},
		{"D pull", plain, plain.hosted("3", "4", "--mode", "pull", "--sync", "sync"), false},
		{"D reduce", plain, reduce, true},
		{"D reduce over TLS", secure, reduce, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := ""
			if !strings.HasSuffix(c.name, "of three") {
				want = weights(t, start(t, "psbench", append(c.args, "--json")...))
			}
			for try := range 5 {
				if c.over.gives(t, want, c.cut || *cutAll, append(c.args, "--job", fmt.Sprintf("j%d-%d", i, try))) {
					return
				}
			}
			t.Error("the job was over before the cable was out, again and again")
		})
	}
}

// gives runs a system on all hosts and wants these weights of each, or one where none are given. A cable is pulled out
// where that is asked for; it tells whether there was a job left for that.
func (s *spread) gives(t *testing.T, want string, pull bool, args []string) (was bool) {
	t.Helper()
	_, lines := s.commands(t, append(args, "--json")...)
	away := s.hosts[2]
	before := away.moved(t)
	var all []*process
	for _, line := range lines {
		all = append(all, s.run(t, "psbench", line))
	}
	over := pull && cut(t, away, before, all)
	for _, p := range all {
		got := weights(t, p)
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%v: weights %s, want %s", args, got, want)
		}
	}
	return !over
}

// cut takes a host's cable out for a second when the job is well under way, and tells whether it was over by then.
func cut(t *testing.T, away *host, before int, all []*process) (over bool) {
	t.Helper()
	const underWay = 200 << 10 // bytes: joins and manifests have less
	poll(t, "a job that is under way", func() bool {
		over = all[len(all)-1].ended()
		return over || away.moved(t)-before > underWay
	})
	if over {
		return true
	}
	l := away.lan
	l.onSwitch("link", "set", away.port, "down")
	for _, p := range all { // whoever sends or waits there stays until the cable is back
		over = over || p.ended()
	}
	time.Sleep(time.Second)
	l.onSwitch("link", "set", away.port, "up")
	return over
}
