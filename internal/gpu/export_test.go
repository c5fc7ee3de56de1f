package gpu

// Use says which GPU this process computes on, by UUID.
func (m *Monitor) Use(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used = uuid
}

// May gives nil where a GPU may be used, else an error that says why not and what to do. uuid may be an index.
func (m *Monitor) May(uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.May(uuid)
}
