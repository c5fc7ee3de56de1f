package ops

import (
	"errors"
	"net/http"
	"time"
)

// hello begins a stream: how soon a browser that lost it should ask for another, in milliseconds.
const hello = "retry: 1000\n\n"

var errNoRoom = &refusal{http.StatusServiceUnavailable,
	"too many streams are open: close a page that shows this ps, or ask /api/v1/status now and then"}

// stream sends an update once a second, and at once when what is first on the page changes. Its clients share every
// update, in one of two forms. One that is slow is sent the newest when it has taken the last, and is cut off when that
// takes longer than streamTime; it delays nobody and holds on to one update at most, that which it is being sent.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if s.streams.Add(1) > int64(s.limits.streamsMax) {
		s.streams.Add(-1)
		h.Set("Retry-After", "10")
		s.refuse(w, errNoRoom)
		return
	}
	defer s.streams.Add(-1)
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Vary", "Accept-Encoding")
	h.Set("X-Accel-Buffering", "no") // for a proxy that would wait for more
	packed := acceptsGzip(r)
	if packed {
		h.Set("Content-Encoding", "gzip")
	}
	if r.Method == http.MethodHead {
		return
	}
	if in := connectionOf(r); in != nil {
		in.enter(streaming)
		defer in.enter(answering)
		in.narrow()
	}
	out := &sender{to: w, control: http.NewResponseController(w), time: s.limits.streamTime, packed: packed}
	if out.begin(s.hub.hello()) == nil && errors.Is(s.follow(r, out), errEnding) {
		out.end()
	}
}

// follow sends updates until the client or the process ends.
func (s *Server) follow(r *http.Request, out *sender) error {
	for last := uint64(0); ; {
		v := s.hub.latest.Load()
		if v.made() {
			plain, packed, err := out.form(v)
			if err != nil {
				s.faults.Add(1)
				s.log.Error("an update cannot be sent", "err", err)
				return err
			}
			if err := out.send(plain, packed); err != nil {
				return err
			}
			if serial := v.update.Status.Serial; last > 0 && serial > last+1 {
				s.missed.Add(serial - last - 1)
			}
			last = v.update.Status.Serial
		}
		select {
		case <-v.newer:
		case <-r.Context().Done():
			return r.Context().Err()
		case <-s.stop:
			return errEnding
		case <-s.hub.stop:
			return errEnding
		}
	}
}

// sender is one client of a stream.
type sender struct {
	to      http.ResponseWriter
	control *http.ResponseController
	time    time.Duration
	packed  bool
	sum     gzipSum
}

// form is a view as the client takes it; the compressed form is made where some client does.
func (o *sender) form(v *view) (plain, packed []byte, err error) {
	if o.packed {
		return v.asPacked()
	}
	plain, err = v.asEvent()
	return plain, nil, err
}

func (o *sender) begin(plain, packed []byte) error {
	if o.packed {
		packed = append(gzipHead[:len(gzipHead):len(gzipHead)], packed...)
	}
	return o.send(plain, packed)
}

// send writes one part, in the form that the client takes.
func (o *sender) send(plain, packed []byte) error {
	body := plain
	if o.packed {
		body = packed
		o.sum.add(plain)
	}
	if err := o.control.SetWriteDeadline(time.Now().Add(o.time)); err != nil {
		return err
	}
	if _, err := o.to.Write(body); err != nil {
		return err
	}
	return o.control.Flush()
}

// end makes the stream whole, where it is compressed. The client may be slow, and is not waited for long.
func (o *sender) end() {
	if o.packed && o.control.SetWriteDeadline(time.Now().Add(shutdownTime/2)) == nil {
		_, _ = o.to.Write(o.sum.end())
	}
}

// hello is what begins a stream, in both forms.
func (h *Hub) hello() (plain, packed []byte) {
	h.helloOnce.Do(func() { h.helloPacked = h.packer.pack([]byte(hello)) })
	return []byte(hello), h.helloPacked
}
