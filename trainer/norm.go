package trainer

import (
	"math"
	"slices"
	"time"

	"gradbus/cuda"
	"gradbus/schema"
)

const (
	// normEvery is the interval between two measured batches. normShare bounds the fraction of time that measurements
	// take.
	normEvery = time.Second
	normShare = 0.002
	// normValuesMax bounds the memory of a sum over several nodes or over bags: 64 MiB. A larger batch has no norm.
	normValuesMax = 16 << 20
)

// gradientNorm measures the gradient of a batch from time to time, from what its sender is about to send: dense sums
// chunk by chunk while they are in the cache, rows before they are cut. It belongs to the goroutine that calls Run,
// changes no value, and keeps its own cost below normShare.
type gradientNorm struct {
	on      bool      // the batch under way is measured
	next    time.Time // earliest time of the next measurement
	cost    time.Duration
	squares float64
	unknown bool // there was no room for all of it

	values []float32      // sum over nodes or bags: rows of one table by index, or one chunk
	index  map[uint64]int // of a table's rows in values, by key
}

// begin decides whether a batch is measured.
func (n *gradientNorm) begin(now time.Time) {
	n.on = !now.Before(n.next)
	n.cost, n.squares, n.unknown = 0, 0, false
}

// dense adds the sums of all nodes over one chunk. Nodes without samples do not count.
func (n *gradientNorm) dense(frames [][]*schema.Frame, chunk int, weights []int) {
	if !n.on {
		return
	}
	began, nodes := time.Now(), 0
	for i := range frames {
		if weights[i] > 0 {
			nodes++
		}
	}
	for i := range frames {
		f := frames[i][chunk]
		switch values := f.Float32s(); {
		case weights[i] == 0:
		case nodes == 1 && values != nil:
			n.squares += sumOfSquares(values)
		case nodes == 1:
			n.values = widened(n.values[:0], f)
			n.squares += sumOfSquares(n.values)
		default:
			n.addChunk(frames, chunk, weights)
			nodes = 0
		}
		if nodes == 0 {
			break
		}
	}
	n.cost += time.Since(began)
}

// addChunk adds a chunk, summed over several nodes.
func (n *gradientNorm) addChunk(frames [][]*schema.Frame, chunk int, weights []int) {
	n.values = n.values[:0]
	var one []float32
	for i := range frames {
		if weights[i] == 0 {
			continue
		}
		values := frames[i][chunk].Float32s()
		if values == nil {
			one = widened(one[:0], frames[i][chunk])
			values = one
		}
		if len(n.values) == 0 {
			n.values = append(n.values, values...)
			continue
		}
		for j, v := range values {
			n.values[j] += v
		}
	}
	n.squares += sumOfSquares(n.values)
}

// rows adds the row gradients of all nodes.
func (n *gradientNorm) rows(r *rowSums) {
	if !n.on {
		return
	}
	began := time.Now()
	for table, dim := range r.dims {
		valueDim := r.perRow.dim(table, dim)
		if len(r.node) == 1 && valueDim == dim && !r.bags.form[0][table] {
			n.squares += sumOfSquares(r.node[0][table].values)
			continue
		}
		n.addTable(r, table, valueDim)
	}
	n.cost += time.Since(began)
}

// addTable adds the rows of a table, summed over several nodes or over bags.
func (n *gradientNorm) addTable(r *rowSums, table, dim int) {
	if n.index == nil {
		n.index = map[uint64]int{}
	}
	clear(n.index)
	n.values = n.values[:0]
	wide := r.dims[table] // with the count behind a row
	for node := range r.node {
		if !r.bags.form[node][table] {
			sums := &r.node[node][table]
			for i, id := range sums.ids {
				n.addRow(id, sums.values[i*wide:i*wide+dim])
			}
			continue
		}
		lo, hi := r.bags.lanesOf(node)
		for at := lo; at < hi; at++ {
			if b := &r.bags.lanes[at][table]; r.bags.there[at] && b.given == givenBags {
				n.addBags(b, dim)
			}
		}
	}
	n.squares += sumOfSquares(n.values)
}

// addBags adds the gradient of each bag to the rows that it pools.
func (n *gradientNorm) addBags(b *bagGrad, dim int) {
	for bag := range len(b.offsets) - 1 {
		gradient := b.values[bag*dim : (bag+1)*dim]
		for at := b.offsets[bag]; at < b.offsets[bag+1]; at++ {
			if b.keys != nil {
				n.addRow(b.keys[at], gradient)
			} else {
				n.addRow(uint64(b.ids[at]), gradient)
			}
		}
	}
}

func (n *gradientNorm) addRow(key uint64, row []float32) {
	at, known := n.index[key]
	switch {
	case known:
		for i, v := range row {
			n.values[at+i] += v
		}
	case len(n.values)+len(row) > normValuesMax:
		n.unknown = true
	default:
		n.index[key] = len(n.values)
		n.values = append(n.values, row...)
	}
}

// end returns the norm of the mean gradient of a measured batch with a number of samples; nil if there was no room for
// all of it. It delays the next measurement in proportion to its cost.
func (n *gradientNorm) end(now time.Time, samples int) *schema.Real {
	n.on = false
	n.next = now.Add(max(normEvery, time.Duration(float64(n.cost)/normShare)))
	if len(n.index) > 1<<20 {
		n.index = nil
	}
	if n.unknown || samples == 0 {
		return nil
	}
	norm := schema.Real(math.Sqrt(n.squares) / float64(samples))
	return &norm
}

// sumOfSquares adds in float64, in four independent sums so that additions overlap.
func sumOfSquares(values []float32) float64 {
	var a, b, c, d float64
	for len(values) >= 4 {
		v := values[:4:4]
		a += float64(v[0]) * float64(v[0])
		b += float64(v[1]) * float64(v[1])
		c += float64(v[2]) * float64(v[2])
		d += float64(v[3]) * float64(v[3])
		values = values[4:]
	}
	for _, v := range values {
		a += float64(v) * float64(v)
	}
	return a + b + c + d
}

// widened appends the 16-bit values of a frame as float32.
func widened(to []float32, f *schema.Frame) []float32 {
	bits, n := f.Halves(), len(to)
	to = slices.Grow(to, len(bits))[:n+len(bits)]
	values := cuda.Float16s(bits)
	if f.DType() == schema.DTypeBFloat16 {
		values = cuda.BFloat16s(bits)
	}
	cuda.Widen(to[n:], values)
	return to
}

const (
	// digestEvery is the minimum interval between two digests of the replica. digestShare bounds the fraction of time
	// that digests take.
	digestEvery = time.Second
	digestShare = 0.001
	digestStep  = 1 << 40 // maximum number of batches between two
)

// fingerprints are digests of a trainer's dense parameters in a job with apply mean. At one version they must be equal
// for all trainers. A trainer computes them at versions that are multiples of a power of two, which follows from the
// cost of a digest and the time of a batch. So any two trainers have some versions in common. They belong to the
// goroutine that calls Run, except digests, which mu of statistics guards.
type fingerprints struct {
	step schema.Version // a power of two
	last time.Time

	digests []schema.ReplicaDigest // the latest, ascending
}

// due reports whether a digest of version v is due.
func (f *fingerprints) due(v schema.Version) bool {
	if f.step == 0 {
		f.step = 1
	}
	return v%f.step == 0
}

// took adapts the step to a digest that began at began and took cost.
func (f *fingerprints) took(began time.Time, cost time.Duration) {
	want := max(digestEvery, time.Duration(float64(cost)/digestShare))
	since := began.Sub(f.last)
	switch {
	case f.last.IsZero():
	case since < want && f.step < digestStep:
		f.step *= 2
	case since > 4*want && f.step > 1:
		f.step /= 2
	}
	f.last = began
}

// keep appends a digest, and drops the oldest if there are too many.
func (f *fingerprints) keep(d schema.ReplicaDigest) {
	if len(f.digests) == schema.ReplicasMax {
		copy(f.digests, f.digests[1:])
		f.digests = f.digests[:schema.ReplicasMax-1]
	}
	f.digests = append(f.digests, d)
}
