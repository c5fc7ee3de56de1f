package fabric

import "sync"

// State is what OnState is told.
type State int

const (
	// Connected: Dial has succeeded.
	Connected State = iota + 1
	// Lost: one of the two connections at least is gone. What was published last may not have arrived.
	Lost
	// Back: both are there again, with all subscriptions. What is not acknowledged should be sent again now.
	Back
	// Closed: the end, by Close or because the server came back and refused.
	Closed
)

func (s State) String() string {
	switch s {
	case Connected:
		return "connected"
	case Lost:
		return "lost"
	case Back:
		return "back"
	case Closed:
		return "closed"
	}
	return "unknown"
}

// stateLoop turns the events of two lines into a sequence of states, and tells them on a goroutine of its own, so that
// OnState may take its time. The queue is bounded: a loss and return that were not told yet stand for all later ones.
type stateLoop struct {
	tell func(State)
	done chan struct{}

	mu    sync.Mutex
	cond  *sync.Cond
	queue []State // at most 4: Connected, Lost, Back, Closed
	down  int     // lines that are lost
	open  bool    // Dial has succeeded; before, nothing is told
	ended bool    // Closed is queued
}

func newStateLoop(tell func(State)) *stateLoop {
	l := &stateLoop{tell: tell, done: make(chan struct{})}
	l.cond = sync.NewCond(&l.mu)
	go l.run()
	return l
}

func (l *stateLoop) connected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A line may have been lost between the two dials; then Connected comes first all the same.
	l.open = true
	l.queue = append([]State{Connected}, l.queue...)
	l.cond.Signal()
}

func (l *stateLoop) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down++
	if l.down == 1 {
		l.push(Lost)
	}
}

func (l *stateLoop) back() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down--
	if l.down == 0 {
		l.push(Back)
	}
}

// push queues Lost or Back. A Lost behind an untold Back takes that one's place away: Lost, Back, Lost is Lost.
func (l *stateLoop) push(s State) {
	if l.ended {
		return
	}
	if n := len(l.queue); s == Lost && n > 0 && l.queue[n-1] == Back && n > 1 && l.queue[n-2] == Lost {
		l.queue = l.queue[:n-1]
		return
	}
	l.queue = append(l.queue, s)
	l.cond.Signal()
}

// end queues Closed, once. Nothing follows it.
func (l *stateLoop) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		l.queue = append(l.queue, Closed)
		l.cond.Signal()
	}
}

func (l *stateLoop) run() {
	defer close(l.done)
	for {
		l.mu.Lock()
		for len(l.queue) == 0 || !l.open && !l.ended {
			l.cond.Wait()
		}
		s, open := l.queue[0], l.open
		l.queue = l.queue[1:]
		l.mu.Unlock()
		if l.tell != nil && open {
			l.tell(s)
		}
		if s == Closed {
			return
		}
	}
}

func (l *stateLoop) wait() { <-l.done }
