package simulate

import (
	"time"

	"gradbus/fabric"
)

// split is a network of a pair of servers in two halves, which do not reach each other.
type split struct {
	halves [2][]*fabric.Bus // of the first the server that has the job, if any has
	link   fabric.Link      // from either half to the other
	oneWay bool             // what the first half sends arrives
}

// put puts a host into a half.
func (p *split) put(host *fabric.Bus, half int) {
	p.halves[half] = append(p.halves[half], host)
	for _, other := range p.halves[1-half] {
		p.between(host, other, half)
	}
}

// between cuts a host of a half from one of the other half.
func (p *split) between(host, other *fabric.Bus, half int) {
	if !p.oneWay || half == 1 {
		host.Link(other, p.link)
	}
	if !p.oneWay || half == 0 {
		other.Link(host, p.link)
	}
}

// heal lets the halves reach each other.
func (p *split) heal() {
	for _, a := range p.halves[0] {
		for _, b := range p.halves[1] {
			a.Link(b, fabric.LinkUp)
			b.Link(a, fabric.LinkUp)
		}
	}
}

// splitNetwork puts the servers of a pair, and each trainer, into one of two halves for a while, in which trainers start
// and end, as servers do. At most one half may continue the job.
func (s *system) splitNetwork() {
	first := s.r.IntN(2)
	p := &split{link: fabric.LinkCut, oneWay: s.r.IntN(4) == 0}
	if s.r.IntN(3) == 0 {
		p.link = fabric.LinkRefused
	}
	p.put(s.servers[first].host, 0)
	p.put(s.servers[1-first].host, 1)
	chance, alone := s.r.IntN(4), 0 // of each trainer to be in the second half; 0: none is
	for _, m := range s.alive() {
		half := 0
		if s.r.IntN(3) < chance {
			half = 1
			alone++
		}
		p.put(m.host, half)
	}
	while := time.Duration(5+s.r.IntN(25)) * time.Second
	s.note("the network is split for %v: ps %s from ps %s and %d trainers, link %d, one way: %v", while,
		s.servers[first].id, s.servers[1-first].id, alone, p.link, p.oneWay)
	s.mu.Lock()
	s.split = p
	s.mu.Unlock()
	for range s.r.IntN(4) {
		if s.finished(while / 4) {
			break
		}
		switch alive, what := s.alive(), s.r.IntN(4); {
		case what == 0 && len(alive) > 0:
			s.kill(alive[s.r.IntN(len(alive))])
		case what == 1:
			s.killServer(time.Duration(s.r.IntN(3000)) * time.Millisecond)
		default:
			s.startTrainer()
		}
	}
	s.finished(while / 4)
	s.mu.Lock()
	s.split = nil
	s.mu.Unlock()
	p.heal()
	s.note("the network is whole")
}
