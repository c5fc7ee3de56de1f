package faults

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"gradbus/fabric/chaos"
)

// cutSignal has a trainer lose its connections.
const cutSignal = syscall.SIGUSR1

// connectionsMax is the number of the highest file that may be a connection of a trainer, which opens few.
const connectionsMax = 1024

// cutWhenTold cuts the connections of this process at each cutSignal, until stop is called.
func cutWhenTold() (stop func()) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, cutSignal)
	go func() {
		for range told {
			cutConnections()
		}
	}()
	return func() {
		signal.Stop(told)
		close(told)
	}
}

// cutConnections ends all connections of this process, as both of their ends see it, regardless of their owner.
func cutConnections() {
	for file := 3; file < connectionsMax; file++ {
		if _, err := syscall.Getpeername(file); err == nil { // else it is none
			_ = syscall.Shutdown(file, syscall.SHUT_RDWR)
		}
	}
}

// startLinks starts what trainers and the other of a pair reach a ps by, which is not there yet.
func (b *bench) startLinks(p *server) (err error) {
	if !b.Cut {
		return nil
	}
	if p.fromTrainers, err = chaos.Start(chaos.Config{Server: "nats://" + p.at}); err != nil {
		return err
	}
	p.fromPeer, err = chaos.Start(chaos.Config{Server: "nats://" + p.at})
	return err
}

// redirectLinks leads links to where a ps is.
func (p *server) redirectLinks() error {
	if p.fromTrainers == nil {
		return nil
	}
	return errors.Join(p.fromTrainers.Redirect("nats://"+p.at), p.fromPeer.Redirect("nats://"+p.at))
}

func (p *server) closeLinks() {
	for _, link := range []*chaos.Proxy{p.fromTrainers, p.fromPeer} {
		if link != nil {
			link.Close()
		}
	}
}

// urlOver returns the address at which a ps is reached over a link; nil: there is no link.
func (p *server) urlOver(link *chaos.Proxy) string {
	if link == nil {
		return "nats://" + p.at
	}
	return link.URL()
}

// cut ends all connections over some links, and has new ones refused for a time.
func (b *bench) cut(links ...*chaos.Proxy) error {
	for _, link := range links {
		link.Refuse(true)
		link.Cut()
	}
	err := b.sleep(b.upTo(cutMax))
	for _, link := range links {
		link.Refuse(false)
	}
	return err
}
