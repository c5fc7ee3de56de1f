package metrics

// ops is what observing costs.
type ops struct {
	Ops
	known   bool // whether the HTTP side tells
	scrapes uint64
	seconds float64
}

// cost is what observing has cost so far; the scrape under way is not in it.
func (e *Exporter) cost() ops {
	o := ops{}
	if e.config.Ops != nil {
		o.Ops, o.known = e.config.Ops(), true
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	o.scrapes, o.seconds = e.scrapes, e.seconds
	return o
}

// ifServed is a value that the HTTP side tells; nothing where it does not.
func ifServed(read func(Ops) float64) func(ops, *row) {
	return func(o ops, r *row) {
		if o.known {
			r.value(read(o.Ops))
		}
	}
}

// opsTable tells what observing costs.
func opsTable() table[ops] {
	return table[ops]{nil, []figure[ops]{
		summary("gradbus_ops_scrape_seconds", "Scrapes answered before this one, and the time spent on gathering them.",
			func(o ops) (uint64, float64) { return o.scrapes, o.seconds }),
		gauges("gradbus_ops_stream_clients", "Clients that follow the stream of updates.", nil,
			ifServed(func(o Ops) float64 { return float64(o.StreamClients) })),
		counters("gradbus_ops_updates_dropped_total", "Updates of the stream that a client was too slow for.", nil,
			ifServed(func(o Ops) float64 { return float64(o.UpdatesDropped) })),
		counters("gradbus_ops_reports_dropped_total", "Reports that came faster than they could be shown.", nil,
			ifServed(func(o Ops) float64 { return float64(o.ReportsDropped) })),
		counters("gradbus_ops_requests_total", "HTTP requests that were answered.", nil,
			ifServed(func(o Ops) float64 { return float64(o.Requests) })),
	}}
}
