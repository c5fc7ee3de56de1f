package trainer

import (
	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
)

// waiting is whom the open rounds of this trainer's segment lack, as a shard's ps says of its own: empty where nobody is
// waited for, because nothing is open that somebody has contributed to.
func (g *segment) waiting() []schema.Waiting {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := schema.Waiting{Batch: g.batch, Members: []schema.Member{}, First: []schema.Member{}}
	rounds, late := 0, make([]bool, len(g.hosts))
	look := func(nodes []lane.Node, bucket schema.Bucket, chunk schema.Chunk) {
		if len(nodes) == 0 {
			return
		}
		rounds++
		for i, h := range g.hosts {
			lacks := round.Covered(nodes, int(h.First), h.Count) < h.Count
			late[i] = late[i] || lacks
			if lacks && rounds == 1 {
				w.First, w.Bucket, w.Chunk = append(w.First, h.Member), bucket, chunk
			}
		}
	}
	for i := range g.dense.Chunks() {
		if g.dense.Closed(i) <= g.batch {
			c := g.dense.Chunk(i)
			look(g.dense.Nodes(i, g.batch), c.Bucket, c.Chunk)
		}
	}
	if g.sparse != nil && g.sparse.Closed() <= g.batch {
		look(g.sparse.Nodes(g.batch), g.place.SparseBucket(g.owner), 0)
	}
	for i, h := range g.hosts {
		if late[i] {
			w.Members = append(w.Members, h.Member)
		}
	}
	if rounds == 0 {
		return []schema.Waiting{}
	}
	return []schema.Waiting{w}
}

// sendReport tells the coordinator whom this trainer's segment waits for, as often as it gives signs of life, so that one who
// lives and sends nothing is found out where no shard would notice.
func (s *Session) sendReport() error {
	if s.segment == nil {
		return nil
	}
	frame, err := schema.EncodeControl(s.head(s.Version()), schema.Control{Report: &schema.Report{Ready: true, Waiting: s.segment.waiting()}})
	if err != nil {
		return err
	}
	return publish(s.control, s.subject(fabric.KindCtl, schema.Coordinator), frame)
}
