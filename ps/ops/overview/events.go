package overview

// eventLog keeps the latest EventsMax events.
type eventLog struct {
	serial uint64
	kept   []Event // in the order of serials; twice EventsMax at most
}

func (l *eventLog) add(now int64, e Event) {
	if l.serial == 0 { // above those of the process before: who asks for what came after a serial misses nothing when a ps is started again
		l.serial = uint64(max(now, 0))
	}
	l.serial++
	e.Serial, e.AtMS = l.serial, now
	if len(l.kept) >= 2*EventsMax {
		l.kept = append(make([]Event, 0, 2*EventsMax), l.kept[len(l.kept)-EventsMax+1:]...)
	}
	l.kept = append(l.kept, e)
}

// since are the events with greater serials, newest last, at most EventsMax. Nobody writes to them.
func (l *eventLog) since(serial uint64) []Event {
	if serial >= l.serial {
		return []Event{}
	}
	n := int(min(l.serial-serial, uint64(len(l.kept)), EventsMax))
	return l.kept[len(l.kept)-n : len(l.kept) : len(l.kept)]
}

// Events are what has happened since the event of that serial, newest last: at most EventsMax.
func (t *Tracker) Events(since uint64) []Event { return t.log.since(since) }
