package e2e

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gradbus/internal/certificate/certtest"
)

// sniffer reads all that crosses the switch.
type sniffer struct {
	packets, plain atomic.Int64 // plain: with a subject, or a frame's magic, for everybody to read
	stop           chan struct{}
	done           chan struct{}
}

// sniff begins to read; stop ends it. A socket stays in the namespace where it was made, so one thread enters that, and
// ends.
func (l *lan) sniff() *sniffer {
	l.t.Helper()
	made, failed := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread goes with the goroutine
		namespace, err := os.Open("/run/netns/" + l.prefix + "switch")
		if err == nil {
			defer namespace.Close()
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		}
		socket := -1
		if err == nil {
			every := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
			socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(every))
		}
		if err == nil {
			err = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
		}
		if err != nil {
			failed <- err
			return
		}
		made <- socket
	}()
	s := &sniffer{stop: make(chan struct{}), done: make(chan struct{})}
	select {
	case err := <-failed:
		l.t.Fatal(err)
	case socket := <-made:
		go s.read(socket)
	}
	return s
}

func (s *sniffer) read(socket int) {
	defer close(s.done)
	defer unix.Close(socket)
	packet := make([]byte, 1<<17)
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		n, err := unix.Read(socket, packet)
		if err != nil {
			continue // nothing within its time
		}
		s.packets.Add(1)
		for _, sign := range []string{"gradbus.v1.", "GBUS", "\"auth_token\"", "sesame"} {
			if bytes.Contains(packet[:n], []byte(sign)) {
				s.plain.Add(1)
				break
			}
		}
	}
}

func (s *sniffer) end() (packets, plain int64) {
	close(s.stop)
	<-s.done
	return s.packets.Load(), s.plain.Load()
}

// Over TLS with certificates on both sides, two ps on two hosts and trainers on two more come to the weights of plain
// connections, also where the trainers reduce, and nobody on the switch reads a subject, a frame or a token. A process
// without a certificate is refused with that reason.
func TestSeveralHostsTLS(t *testing.T) {
	l := newLAN(t)
	left, right, first, second := l.host("left"), l.host("right"), l.host("first"), l.host("second")
	data, folder := index(t, 200), t.TempDir()
	token, peers := filepath.Join(folder, "token"), filepath.Join(folder, "peers")
	for path, secret := range map[string]string{token: "sesame-for-hosts", peers: "sesame-for-peers"} {
		if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority := certtest.NewAuthority(t)
	certified := func(h *host) []string {
		pair := authority.Issue(t, h.address)
		return []string{"--tls-cert", pair.CertFile, "--tls-key", pair.KeyFile, "--tls-ca", authority.File}
	}
	bare := func(*host) []string { return nil }
	var digests []string
	for _, c := range []struct {
		name, scheme, port string
		shows              func(h *host) []string
	}{{"plain", "nats://", "4222", bare}, {"TLS", "tls://", "4223", certified}} {
		seen := l.sniff()
		url := c.scheme + left.address + ":" + c.port
		var far *process
		for i, h := range []*host{left, right} {
			args := append([]string{"--listen", "0.0.0.0:" + c.port, "--http", "off", "--shards", "1",
				"--id", []string{"left", "right"}[i], "--token-file", token, "--control-token-file", peers}, c.shows(h)...)
			if h == right {
				args = append(args, "--nats", url, "--advertise", right.address+":"+c.port)
			}
			far = h.start("ps", args...)
			far.says(t, "is ready at "+c.scheme)
		}
		for name, more := range map[string][]string{"shards": nil, "trainers": {"--apply", "mean", "--reduce", "trainers",
			"--data-host", "0.0.0.0"}} {
			var trainers []*process
			for i, h := range []*host{first, second} {
				args := append([]string{"--trainers", "2", "--json", "--job", name, "--token-file", token,
					"--id", []string{"t0", "t1"}[i]}, append(c.shows(h), more...)...)
				trainers = append(trainers, h.start("trainer", short(url, data, args...)...))
			}
			for _, p := range trainers {
				p.succeeds(t)
				digests = append(digests, p.result(t).WeightsSHA256)
			}
		}
		packets, plain := seen.end()
		far.signal(t, syscall.SIGINT) // or its leases would cross the switch in the next round
		far.succeeds(t)
		if secure := c.scheme == "tls://"; packets == 0 || secure != (plain == 0) {
			t.Errorf("%s: of %d packets, %d are for everybody to read", c.name, packets, plain)
		}
	}
	if slices.ContainsFunc(digests, func(d string) bool { return d != digests[0] }) {
		t.Errorf("weights %v, want one digest", digests)
	}
	url := "tls://" + left.address + ":4223"
	join := func(more ...string) *process {
		return first.start("trainer", short(url, data, append([]string{"--token-file", token}, more...)...)...)
	}
	shown := certified(first)
	join().fails(t, left.address, "--tls-ca")
	join("--tls-ca", authority.File).fails(t, left.address, "none was given", "--tls-cert")
	join(append(certified(first)[:4], "--tls-ca", certtest.NewAuthority(t).File)...).fails(t, "signed by an unknown authority")
	old := authority.IssueUntil(t, time.Now().Add(-time.Minute), first.address)
	join("--tls-cert", old.CertFile, "--tls-key", old.KeyFile, "--tls-ca", authority.File).fails(t,
		"turns the certificate down")
	first.start("trainer", short("nats://"+left.address+":4222", data, append(shown, "--token-file", token)...)...).fails(
		t, "it speaks no TLS")
}
