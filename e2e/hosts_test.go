package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var needHosts = flag.Bool("need-hosts", false, "fail, rather than skip, where network namespaces cannot be made")

// lan is a network of hosts, each a network namespace, behind a switch.
type lan struct {
	t      *testing.T
	prefix string // of the namespaces' names
	hosts  int
}

// host is a namespace with one interface.
type host struct {
	lan     *lan
	name    string // of the namespace
	address string
	port    string // of the switch, at the other end of its cable
}

// newLAN makes the switch, or skips the test and says why.
func newLAN(t *testing.T) *lan {
	t.Helper()
	l := &lan{t: t, prefix: fmt.Sprintf("gradbus%d-", os.Getpid())}
	if testing.Short() {
		l.cannot("machines of their own take half a minute; without -short they are made")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		l.cannot("there is no program ip (package iproute2)")
	}
	if os.Geteuid() != 0 {
		l.cannot("only root may make network namespaces")
	}
	if out, err := exec.Command("ip", "netns", "add", l.prefix+"switch").CombinedOutput(); err != nil {
		l.cannot(fmt.Sprintf("ip netns add: %v: %s", err, out))
	}
	t.Cleanup(func() { l.ip("netns", "del", l.prefix+"switch") })
	l.onSwitch("link", "add", "br0", "type", "bridge")
	l.onSwitch("link", "set", "br0", "up")
	return l
}

func (l *lan) cannot(why string) {
	l.t.Helper()
	if *needHosts {
		l.t.Fatal(why)
	}
	l.t.Skipf("%s; with -need-hosts this is a failure", why)
}

func (l *lan) ip(args ...string) {
	l.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		l.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (l *lan) onSwitch(args ...string) {
	l.t.Helper()
	l.ip(append([]string{"-n", l.prefix + "switch"}, args...)...)
}

// host makes one, and plugs it in.
func (l *lan) host(what string) *host {
	l.t.Helper()
	l.hosts++
	h := &host{l, l.prefix + what, fmt.Sprintf("10.99.0.%d", l.hosts), fmt.Sprintf("port%d", l.hosts)}
	l.ip("netns", "add", h.name)
	l.t.Cleanup(func() { l.ip("netns", "del", h.name) })
	l.ip("-n", h.name, "link", "add", "eth0", "type", "veth", "peer", "name", h.port, "netns", l.prefix+"switch")
	l.onSwitch("link", "set", h.port, "master", "br0")
	l.onSwitch("link", "set", h.port, "up")
	l.ip("-n", h.name, "address", "add", h.address+"/24", "dev", "eth0")
	l.ip("-n", h.name, "link", "set", "lo", "up")
	l.ip("-n", h.name, "link", "set", "eth0", "up")
	return h
}

// start runs bin/NAME on the host.
func (h *host) start(name string, args ...string) *process {
	h.lan.t.Helper()
	t := h.lan.t
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return startCommand(t, name,
		exec.Command("ip", append([]string{"netns", "exec", h.name, filepath.Join(binaries, name)}, args...)...))
}

// unplug takes the cable out for a while.
func (h *host) unplug(t *testing.T, away time.Duration) {
	t.Helper()
	h.lan.onSwitch("link", "set", h.port, "down")
	time.Sleep(away)
	h.lan.onSwitch("link", "set", h.port, "up")
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// secretly is a file with what belongs on no command line: a token, or an address with a password.
func secretly(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// onOneHost is the digest of the job's weights where everything is on this machine.
func onOneHost(t *testing.T, data, epochs string) string {
	t.Helper()
	_, url := server(t, "--shards", "3")
	p := start(t, "trainer", short(url, data, "--spawn", "--trainers", "2", "--json", "--epochs", epochs)...)
	p.succeeds(t)
	return p.result(t).WeightsSHA256
}

// A NATS server, two ps and two trainers, each on a host of its own, come to the weights of one machine: with direct
// ways and by the cluster, with cables that are pulled out for three seconds in the middle of it all. A trainer that
// cannot dial the ps says what to do.
func TestSeveralHosts(t *testing.T) {
	l := newLAN(t)
	control, left, right, first, second := l.host("control"), l.host("left"), l.host("right"), l.host("first"),
		l.host("second")
	nats := control.start("natsd", "-host", control.address, "-port", "4222", "-user", "ann", "-password", "secret")
	nats.says(t, "natsd is ready")
	url := "nats://ann:secret@" + control.address + ":4222"
	token := secretly(t, "sesame-for-hosts\n")
	psFile, trainerFile := secretly(t, "nats: "+url+"\n"), secretly(t, "server: "+url+"\n")
	for i, h := range []*host{left, right} {
		h.start("ps", "--listen", "0.0.0.0:4222", "--shards", fmt.Sprint(i+1), "--id", []string{"left", "right"}[i],
			"--config", psFile, "--token-file", token).says(t, "is ready at")
	}
	data := index(t, 200)
	// As long on one machine: the job that the cables are pulled out of has to last. One that was over too soon is run
	// again.
	const epochs = "500"
	want := onOneHost(t, data, epochs)
	job := func(name string, more ...string) []string {
		args := short(url, data,
			append([]string{"--trainers", "2", "--json", "--job", name, "--token-file", token, "--epochs", epochs}, more...)...)
		at := slices.Index(args, "--server")
		args[at], args[at+1] = "--config", trainerFile
		return args
	}
	check := func(t *testing.T, trainers ...*process) {
		t.Helper()
		for _, p := range trainers {
			p.succeeds(t)
			if r := p.result(t); r.WeightsSHA256 != want || r.Shards != 3 {
				t.Errorf("weights %s of %d shards, want %s of 3", r.WeightsSHA256, r.Shards, want)
			}
		}
	}
	for _, c := range []struct {
		name string
		away *host
	}{{"ps", right}, {"trainer", second}, {"control", control}} {
		t.Run(c.name+" unplugged", func(t *testing.T) {
			for tries := 1; ; tries++ {
				trainers := []*process{first.start("trainer", job(c.name)...), second.start("trainer", job(c.name)...)}
				trainers[0].says(t, "batch 1 of")
				trainers[1].says(t, "batch 1 of")
				c.away.unplug(t, 3*time.Second)
				over := c.away != control && (trainers[0].ended() || trainers[1].ended())
				check(t, trainers...)
				if !over {
					return
				} else if tries == 5 {
					t.Fatal("the job was over before the cable was out, again and again")
				}
			}
		})
	}
	// The second host reaches the control server alone.
	for _, h := range []*host{left, right} {
		l.ip("-n", second.name, "route", "add", "unreachable", h.address+"/32")
	}
	t.Run("not to be reached", func(t *testing.T) {
		waiting := first.start("trainer", job("far", "--id", "t0")...)
		waiting.says(t, "waiting")
		second.start("trainer", job("far", "--id", "t1")...).fails(t, "ps left", left.address, "--advertise",
			"--route cluster")
		waiting.signal(t, syscall.SIGINT)
		waiting.status(t)
	})
	t.Run("by the cluster", func(t *testing.T) {
		check(t, first.start("trainer", job("mixed")...), second.start("trainer", job("mixed", "--route", "cluster")...))
	})
}
