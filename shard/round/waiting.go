package round

import (
	"gradbus/lane"
	"gradbus/schema"
)

// Waiting is what an open batch lacks.
type Waiting struct {
	schema.Waiting
	Rounds int // open rounds that have a contribution and lack one
}

// waitingFor is a batch that lacks nothing so far.
func waitingFor(b schema.Batch) Waiting { return Waiting{Waiting: schema.Waiting{Batch: b}} }

// WaitingFor is what an owner's rounds of a batch lack of the lanes that contributors have. sparse, whose rounds are of
// bucket rows, is nil where the owner has none.
func WaitingFor(b schema.Batch, contributors []Contributor, lanes int, dense *Dense, sparse *Sparse,
	rows schema.Bucket) Waiting {
	w := waitingFor(b)
	late := make([]bool, len(contributors))
	look := func(nodes []lane.Node, bucket schema.Bucket, chunk schema.Chunk) {
		if len(nodes) == 0 || covered(nodes, 0, lanes) == lanes {
			return // complete: it waits for a batch before it
		}
		w.Rounds++
		for i, h := range contributors {
			lacks := covered(nodes, int(h.First), h.Count) < h.Count
			late[i] = late[i] || lacks
			if lacks && w.Rounds == 1 {
				w.First, w.Bucket, w.Chunk = append(w.First, h.Member), bucket, chunk
			}
		}
	}
	for i := range dense.Chunks() {
		if dense.Closed(i) <= b {
			c := dense.Chunk(i)
			look(dense.Nodes(i, b), c.Bucket, c.Chunk)
		}
	}
	if sparse != nil && sparse.Closed() <= b {
		look(sparse.Nodes(b), rows, 0)
	}
	for i, h := range contributors {
		if late[i] {
			w.Members = append(w.Members, h.Member)
		}
	}
	return w
}
