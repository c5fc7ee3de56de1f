package ops

import "gradbus/ps/ops/status"

// recordsMax bounds what is logged of one view. More begins at once only where a whole cluster changes; the events have
// all of it.
const recordsMax = 20

// record writes what has gone wrong, and what is over, into the log: events are kept in memory, and the log is what is
// left of a ps that has ended. Several ps see the same; the one that it concerns writes it.
func (h *Hub) record(u *status.Update) {
	written := 0
	for i := range u.Events {
		e := &u.Events[i]
		if e.Level == status.Info || !h.concerns(&u.Status, e) { // joins, ends and the like: who decides on them logs them
			continue
		}
		if written++; written > recordsMax {
			h.log.Warn("more problems than are logged: the page has them", "events", len(u.Events))
			return
		}
		log := h.log.With("code", e.Code)
		if e.Job != "" {
			log = log.With("job", e.Job)
		}
		if e.Member != "" {
			log = log.With("member", e.Member)
		}
		switch e.Level {
		case status.Critical:
			log.Error("problem", "text", e.Text)
		case status.Warning:
			log.Warn("problem", "text", e.Text)
		case status.OK:
			log.Info("problem over", "text", e.Text)
		}
	}
}

// concerns reports whether an event is this ps's to log: of a job that it coordinates, or of itself. What no other ps
// can log concerns all: one that is silent, and a job whose coordinator is. What becomes of a GPU is logged by whoever
// asks it.
func (h *Hub) concerns(s *status.Status, e *status.Event) bool {
	switch {
	case e.Code == status.CodeCoordinator || e.Code == status.CodeServerSilent:
		return true
	case e.Job == "":
		return e.GPU == "" && (e.Member == "" || e.Member == string(h.self))
	}
	for i := range s.Jobs {
		if s.Jobs[i].Name == e.Job {
			return s.Jobs[i].Coordinator == s.Server
		}
	}
	return true
}
