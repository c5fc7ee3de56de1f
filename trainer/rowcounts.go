package trainer

// rowCounts puts behind the gradient of each row how often the lane's keys name it, where a table is divided by that.
// It is added up as the gradient is, so each owner has the number over all lanes that gave one. A nil rowCounts counts
// for no table.
type rowCounts struct {
	tables *tables
	times  []float32 // by local id; scratch
}

// dim is how many values of a row's gradient the workload gives, of so many that travel.
func (c *rowCounts) dim(table, dims int) int {
	if c == nil {
		return dims
	}
	return c.tables.specs[table].Dim
}

// add widens the rows of a hosted lane.
func (c *rowCounts) add(table, at int, r *rows) {
	if c == nil || !c.tables.specs[table].PerRow {
		return
	}
	c.times = grown(c.times, len(c.tables.keys[table]))
	clear(c.times)
	for _, id := range c.tables.laneIDs(table, at) {
		c.times[id]++
	}
	dim, n := c.tables.specs[table].Dim, len(r.ids)
	r.values = append(r.values, make([]float32, n)...)
	for i := n - 1; i >= 0; i-- { // from the end: nothing is written over that is still needed
		copy(r.values[i*(dim+1):], r.values[i*dim:(i+1)*dim])
		r.values[i*(dim+1)+dim] = c.times[r.ids[i]]
	}
}
