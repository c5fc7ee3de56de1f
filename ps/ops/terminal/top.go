package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"gradbus/ps/ops/status"
)

// TopConfig is where Top shows what. In and Out are a terminal.
type TopConfig struct {
	Client *Client
	In     io.Reader
	Out    io.Writer
	Job    string // shown first
	Ps     string // as Screen has it
	Colour bool
	Zone   *time.Location
	// Width and Height are told where Out is none that can be asked; 0 otherwise.
	Width, Height int
}

const (
	// againAfter is how long a stream that ended is left alone.
	againAfter = time.Second
	// eventsKept bounds the events that a screen can show.
	eventsKept = 500
)

// Top shows a ps, as it tells of itself once a second, until a key or ctx ends it. A ps that does not answer at first
// is an error; one that falls silent later is shown as what it was, with a line that says so.
func Top(ctx context.Context, c TopConfig) error {
	view, _, err := c.Client.Status(ctx)
	if err != nil {
		return err
	}
	events, _ := c.Client.Events(ctx, 0) // what happened before is worth a row, not an end
	m := &model{colour: c.Colour, screen: Screen{Width: 80, Height: 24, Zone: c.Zone, Job: c.Job, Ps: c.Ps, Keys: true},
		view: view, at: time.Now()}
	m.keep(events)
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(c.In), tea.WithOutput(c.Out),
		tea.WithoutSignalHandler()}
	if c.Width > 0 {
		options = append(options, tea.WithWindowSize(c.Width, c.Height))
	}
	program := tea.NewProgram(m, options...)
	ctx, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		(&follower{client: c.Client, send: program.Send, serial: view.Serial, event: m.newest()}).run(ctx)
	})
	_, err = program.Run()
	stop()
	following.Wait()
	if errors.Is(err, tea.ErrProgramKilled) && !errors.Is(err, tea.ErrProgramPanic) {
		return context.Canceled
	}
	return err
}

// Messages of the goroutine that follows a ps.
type (
	updated struct{ *status.Update }
	lost    struct{ err error }
	ticked  struct{}
)

// follower sends a program what a ps tells, and asks again where it falls silent.
type follower struct {
	client *Client
	send   func(tea.Msg)
	serial uint64 // of the status that was sent last
	event  uint64 // and of the event
}

func (f *follower) run(ctx context.Context) {
	every := time.NewTicker(againAfter)
	defer every.Stop()
	for ctx.Err() == nil {
		err := f.client.Stream(ctx, func(u *status.Update) { f.take(ctx, u) })
		if ctx.Err() != nil {
			return
		}
		f.send(lost{err})
		select {
		case <-every.C:
		case <-ctx.Done():
		}
	}
}

// take sends an update, with the events of those before it that did not come.
func (f *follower) take(ctx context.Context, u *status.Update) {
	if u.Status.Serial < f.serial || u.Status.Serial > f.serial+1 {
		if missed, err := f.client.Events(ctx, f.event); err == nil { // else a stream that ends says why
			u.Events = missed
		}
	}
	f.serial = u.Status.Serial
	if n := len(u.Events); n > 0 {
		f.event = u.Events[n-1].Serial
	}
	f.send(updated{u})
}

// model is what is on the screen.
type model struct {
	screen Screen
	view   *status.Status
	events []status.Event // oldest first
	colour bool
	err    error     // why the stream is lost; nil while it is not
	at     time.Time // of status
}

func (m *model) Init() tea.Cmd { return tick() }

// tick makes ages rise where nothing else does.
func tick() tea.Cmd { return tea.Tick(time.Second, func(time.Time) tea.Msg { return ticked{} }) }

func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		m.screen.Width, m.screen.Height = message.Width, message.Height
	case updated:
		m.view, m.err, m.at = &message.Status, nil, time.Now()
		m.keep(message.Events)
	case lost:
		m.err = message.err
	case ticked:
		return m, tick()
	case tea.KeyPressMsg:
		return m, m.key(message.String())
	}
	return m, nil
}

// keep takes events that are newer than those there are.
func (m *model) keep(events []status.Event) {
	for _, e := range events {
		if e.Serial > m.newest() {
			m.events = append(m.events, e)
		}
	}
	if extra := len(m.events) - eventsKept; extra > 0 {
		m.events = append(m.events[:0], m.events[extra:]...)
	}
}

// newest is the serial of the newest event; 0 where there is none.
func (m *model) newest() uint64 {
	if n := len(m.events); n > 0 {
		return m.events[n-1].Serial
	}
	return 0
}

func (m *model) key(key string) tea.Cmd {
	s := &m.screen
	switch key {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "j", "tab", "right":
		s.Job, s.Scroll = m.neighbour(1), 0
	case "J", "shift+tab", "left":
		s.Job, s.Scroll = m.neighbour(-1), 0
	case "s":
		s.Order = (s.Order + 1) % ordersEnd
	case "v":
		s.View, s.Scroll = (s.View+1)%viewsEnd, 0
	case "V":
		s.View, s.Scroll = (s.View+viewsEnd-1)%viewsEnd, 0
	case "down":
		s.Scroll++
	case "up":
		s.Scroll--
	case "pgdown", "space":
		s.Scroll += s.Height / 2
	case "pgup":
		s.Scroll -= s.Height / 2
	case "home":
		s.Scroll = 0
	}
	s.Scroll = max(0, min(s.Scroll, s.rows(m.view, m.events)-1))
	return nil
}

// neighbour is the key of the job by so many places after the one that is shown. Runs of one name have each their own.
func (m *model) neighbour(by int) string {
	n := len(m.view.Jobs)
	if n == 0 {
		return ""
	}
	shown := jobOf(m.view, m.screen.Job)
	for i := range m.view.Jobs {
		if &m.view.Jobs[i] == shown {
			return m.view.Jobs[(i+by+n)%n].Series
		}
	}
	return ""
}

func (m *model) View() tea.View {
	s := m.screen
	if m.err != nil {
		s.Lost, s.LostMS = m.err.Error(), time.Since(m.at).Milliseconds()
	} else if silent := time.Since(m.at); silent > ageShown*time.Millisecond {
		s.Lost, s.LostMS = fmt.Sprintf("nothing comes from %s", m.view.Server), silent.Milliseconds()
	}
	view := tea.NewView(Join(s.Lines(m.view, m.events), m.colour))
	view.AltScreen = true
	view.WindowTitle = "gradbus"
	return view
}
