package ps

import (
	"fmt"

	"gradbus/fabric"
	"gradbus/schema"
)

// intake takes the frames of a series by which a ps tells what its shards have, each once, and acknowledges them.
type intake struct {
	receipt *fabric.Receipt
	ack     *schema.Frame
}

func newIntake() intake {
	ack, _ := schema.NewFrame(schema.Layout{Kind: schema.KindAck}) // never fails
	return intake{fabric.NewReceipt(0, fabric.WindowBytesDefault, pieceFrameBytes), ack}
}

// pieceFrameBytes bounds the frames of a series, but for those of very wide rows.
const pieceFrameBytes = 1<<20 + 64<<10

// readState reads a message as a frame of a series; ok is false of any other.
func (s *Server) readState(m *fabric.Message) (subject fabric.Subject, view schema.View, ok bool) {
	subject, err := m.Parse()
	if err != nil {
		return subject, view, false
	}
	view, err = schema.Verify(m.Data, s.limits)
	if err != nil || view.Head().Kind != schema.KindState {
		s.log.Warn("state of a job not understood", "job", subject.Job, "err", err)
		return subject, view, false
	}
	return subject, view, true
}

// accept reports whether the frame has come for the first time.
func (in *intake) accept(h *schema.Head, bytes int) bool {
	fresh, _ := in.receipt.Accept(uint64(h.Sequence), bytes, false)
	in.receipt.Holds(0)
	return fresh
}

// acknowledge tells whose shards they are what has come, where that is due.
func (in *intake) acknowledge(s *Server, conn *fabric.Conn, name schema.JobName, of schema.Head, to schema.Member,
	due func(*fabric.Receipt) bool) {
	if !due(in.receipt) {
		return
	}
	in.ack.SetHead(of)
	in.ack.SetAck(schema.Ack(in.receipt.Ack()))
	s.publish(conn, fabric.At(string(name), string(s.member), fabric.KindAck, string(to)), in.ack.Seal())
}

// fits says why there is no room for what a job needs that is kept for another ps, beside what is promised to others.
func (s *Server) fits(name schema.JobName, need Memory, promised int64) error {
	free := s.config.MemoryBytesMax - promised
	for _, a := range *s.jobs.Load() {
		free -= a.memory.Bytes()
	}
	if need.Bytes() > free {
		return fmt.Errorf("job %s needs %d bytes, and %d of this server's %d are free", name, need.Bytes(), free,
			s.config.MemoryBytesMax)
	}
	return nil
}
