package round

import (
	"gradbus/lane"
	"gradbus/schema"
)

// Waiting is what an open batch lacks. It lists members only while somebody else has contributed to a round that they
// have not, so an idle job waits for nobody.
type Waiting struct {
	Batch   schema.Batch
	Members []schema.Member // in the order of their lanes
	Rounds  int             // open rounds that have a contribution and lack one

	// First are those of Members who lack the earliest of these rounds. Rounds are sent in one order, so a trainer that
	// lacks a later one may itself have no room to send it before the earliest has closed.
	First  []schema.Member
	Bucket schema.Bucket // of the earliest round
	Chunk  schema.Chunk
}

// WaitingFor is what an owner's rounds of a batch lack of the lanes that hosts have. sparse, whose rounds are of bucket rows,
// is nil where the owner has none.
func WaitingFor(b schema.Batch, hosts []Host, lanes int, dense *Dense, sparse *Sparse, rows schema.Bucket) Waiting {
	w := Waiting{Batch: b}
	late := make([]bool, len(hosts))
	look := func(nodes []lane.Node, bucket schema.Bucket, chunk schema.Chunk) {
		if len(nodes) == 0 || Covered(nodes, 0, lanes) == lanes {
			return // complete: it waits for a batch before it
		}
		w.Rounds++
		for i, h := range hosts {
			lacks := Covered(nodes, int(h.First), h.Count) < h.Count
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
	for i, h := range hosts {
		if late[i] {
			w.Members = append(w.Members, h.Member)
		}
	}
	return w
}
