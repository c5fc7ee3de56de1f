package faults

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gradbus/fabric"
	"gradbus/fabric/chaos"
	"gradbus/internal/regular"
)

// server is a ps process.
type server struct {
	*exec.Cmd
	number int
	at     string // host:port
	ended  chan struct{}

	fromTrainers, fromPeer *chaos.Proxy // by which these reach it; nil: there is no link to cut
}

// anyPort is where a ps listens first; it keeps the port that it gets.
const anyPort = "127.0.0.1:0"

// startServers starts the servers. Where they keep replicas of each other, the first is started again to know the second.
func (b *bench) startServers() (err error) {
	number := b.Servers
	if b.Replicas > 0 && number == 1 {
		number = 2
	}
	if b.Servers > 1 {
		if b.nats, err = fabric.StartServer(fabric.ServerConfig{JetStream: true}); err != nil {
			return err
		}
	}
	b.whole, b.hosting = make([]bool, number), make([]int, number)
	for i := range number {
		b.ps = append(b.ps, &server{number: i, at: anyPort})
		if err := b.startLinks(b.ps[i]); err != nil {
			return err
		}
		if err := b.startServer(b.ps[i]); err != nil {
			return err
		}
	}
	if b.Replicas == 0 {
		return nil
	}
	b.ps[0].stop(syscall.SIGTERM)
	return b.startServer(b.ps[0])
}

// startServer starts a ps and waits until it is there.
func (b *bench) startServer(p *server) error {
	name := strconv.Itoa(p.number)
	file := filepath.Join(b.work, "url"+name)
	_ = os.Remove(file)
	folder := filepath.Join(b.work, "checkpoints")
	if b.nats == nil {
		folder += name
	}
	p.Cmd = exec.CommandContext(b.ctx, b.Server, "--listen", p.at, "--http", "127.0.0.1:0", "--port-file", file,
		"--checkpoint-dir", folder, "--checkpoint-every", b.Every.String())
	if b.nats != nil {
		p.Args = append(p.Args, "--nats", b.nats.URL())
		if b.Replicas > 0 {
			p.Args = append(p.Args, "--replicas", "1")
		}
	} else if other := b.ps[len(b.ps)-1-p.number%len(b.ps)]; other != p && other.at != anyPort {
		p.Args = append(p.Args, "--replicas", "1", "--peer", other.urlOver(other.fromPeer))
	}
	if p.fromTrainers != nil {
		p.Args = append(p.Args, "--advertise", strings.TrimPrefix(p.fromTrainers.URL(), "nats://"))
	}
	log, err := p.StderrPipe()
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	p.ended = make(chan struct{})
	b.mu.Lock()
	b.hosting[p.number] = 0
	b.mu.Unlock()
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			b.told(p.number, lines.Text())
		}
		_ = p.Wait()
	}()
	for began := time.Now(); ; {
		if url, err := regular.Read(file, 1<<10); err == nil {
			p.at = strings.TrimPrefix(strings.TrimSpace(string(url)), "nats://")
			return p.redirectLinks()
		}
		if time.Since(began) > 30*time.Second {
			return errors.New("the server is not ready within 30 s")
		}
		if err := b.sleep(5 * time.Millisecond); err != nil {
			return err
		}
	}
}

// told notes what the log of a ps says.
func (b *bench) told(number int, line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case strings.Contains(line, "begins without it"), strings.Contains(line, "its trainers are awaited here"),
		strings.Contains(line, "the job goes on with"), strings.Contains(line, "the job goes back to"),
		strings.Contains(line, "job failed: ps "),
		strings.Contains(line, "the ps that coordinates the job has ended"):
		b.notices = append(b.notices, time.Now())
	case strings.Contains(line, "shards created"):
		b.hosting[number]++
	case strings.Contains(line, "job freed"):
		b.hosting[number]--
	case strings.Contains(line, "replicas of all shards complete"):
		b.kept = true
	case strings.Contains(line, "storing replica of job"):
		b.kept, b.whole[number] = false, false
	case strings.Contains(line, "job replicated"):
		b.whole[number] = true
	case strings.Contains(line, "job registered"):
		b.serving, b.whole[number], b.kept = number, false, false
	}
}

func (p *server) stop(s syscall.Signal) {
	if p.Cmd == nil || p.Process == nil {
		return
	}
	_ = p.Process.Signal(s)
	<-p.ended
}

// url returns the address that trainers dial: the NATS server of several ps, or the ps that has the jobs.
func (b *bench) url() string {
	if b.nats != nil {
		return b.nats.URL()
	}
	p := b.server()
	return p.urlOver(p.fromTrainers)
}

// victim is a ps that has shards of the job.
func (b *bench) victim() *server {
	if b.nats == nil {
		return b.server()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	order := b.r.Perm(len(b.ps))
	for _, i := range order {
		if b.hosting[i] > 0 {
			return b.ps[i]
		}
	}
	return b.ps[order[0]]
}

// withReplica reports whether the job would go on if its ps were lost now.
func (b *bench) withReplica() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nats != nil {
		return b.kept
	}
	return b.whole[1-b.serving]
}

func (b *bench) server() *server {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ps[b.serving]
}
