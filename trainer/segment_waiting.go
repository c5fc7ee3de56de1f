package trainer

import (
	"gradbus/fabric"
	"gradbus/round"
	"gradbus/schema"
)

// waiting is whom the open rounds of this trainer's segment lack, as a shard's ps says of its own: empty where nobody is
// waited for, because nothing is open that somebody has contributed to.
func (g *segment) waiting() []schema.Waiting {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := round.WaitingFor(g.batch, g.hosts, g.job.Lanes, g.dense, g.sparse, g.place.SparseBucket(g.owner))
	if w.Rounds == 0 {
		return []schema.Waiting{}
	}
	return []schema.Waiting{{Batch: w.Batch, Bucket: w.Bucket, Chunk: w.Chunk, Members: w.Members, First: w.First}}
}

// sendReport tells the coordinator whom this trainer's segment waits for, as often as it gives signs of life, so that one who
// lives and sends nothing is found out where no shard would notice.
func (s *Session) sendReport() error {
	if s.segment == nil {
		return nil
	}
	frame, err := schema.EncodeControl(s.head(s.newest()), schema.Control{Report: &schema.Report{Ready: true, Waiting: s.segment.waiting()}})
	if err != nil {
		return err
	}
	return publish(s.control, s.subject(fabric.KindCtl, schema.Coordinator), frame)
}
