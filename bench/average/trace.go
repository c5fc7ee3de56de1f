package average

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"gradbus/internal/atomicfile"
)

// Span is a stretch of time in one member, for a timeline. Times are nanoseconds since 1970 on the host's clock, so
// that spans of the processes of one host share one axis.
type Span struct {
	Track string `json:"track"` // spans of one track follow or hold each other
	Name  string `json:"name"`
	Batch uint64 `json:"batch"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Bytes int64  `json:"bytes,omitempty"`
}

func span(track, name string, batch uint64, from, to time.Time, bytes int64) Span {
	return Span{track, name, batch, from.UnixNano(), max(from.UnixNano(), to.UnixNano()), bytes}
}

// process is one member of a timeline.
type process struct {
	name  string
	spans []Span
}

// event is one of Chrome's trace events: ph X is a complete one, with its duration, and ph M names a process or a
// track. Times are in microseconds.
//
// Source: Trace Event Format, the sections on complete events and metadata events.
type event struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	TS   float64        `json:"ts"`
	Dur  *float64       `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	Args map[string]any `json:"args,omitempty"`
}

// saveTrace writes a timeline that chrome://tracing and Perfetto open: a process for each member, a track for what each
// does, and for each of its buckets.
func saveTrace(path string, processes []process) error {
	begin := int64(0)
	for _, p := range processes {
		for _, s := range p.spans {
			if begin == 0 || s.From < begin {
				begin = s.From
			}
		}
	}
	events := []event{}
	for pid, p := range processes {
		events = append(events, event{Name: "process_name", Ph: "M", PID: pid, Args: map[string]any{"name": p.name}},
			event{Name: "process_sort_index", Ph: "M", PID: pid, Args: map[string]any{"sort_index": pid}})
		events = append(events, eventsOf(pid, p, begin)...)
	}
	err := atomicfile.Write(path, 0o666, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(struct {
			TraceEvents     []event `json:"traceEvents"`
			DisplayTimeUnit string  `json:"displayTimeUnit"`
		}{events, "ms"})
	})
	if err != nil {
		return fmt.Errorf("save trace: %w", err)
	}
	return nil
}

func eventsOf(pid int, p process, begin int64) []event {
	var tracks []string
	for _, s := range p.spans {
		if !slices.Contains(tracks, s.Track) {
			tracks = append(tracks, s.Track)
		}
	}
	var events []event
	for tid, name := range tracks {
		events = append(events, event{Name: "thread_name", Ph: "M", PID: pid, TID: tid, Args: map[string]any{"name": name}},
			event{Name: "thread_sort_index", Ph: "M", PID: pid, TID: tid, Args: map[string]any{"sort_index": tid}})
	}
	spans := slices.Clone(p.spans)
	slices.SortStableFunc(spans,
		func(a, b Span) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(b.To, a.To)) })
	for _, s := range spans {
		dur := float64(s.To-s.From) / 1e3
		args := map[string]any{"batch": s.Batch}
		if s.Bytes > 0 {
			args["bytes"] = s.Bytes
		}
		events = append(events, event{Name: s.Name, Cat: "gradbus", Ph: "X", TS: float64(s.From-begin) / 1e3,
			Dur: &dur, PID: pid,
			TID: slices.Index(tracks, s.Track), Args: args})
	}
	return events
}
