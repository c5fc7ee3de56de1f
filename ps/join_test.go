package ps

import "testing"

// Trainers are told of the control server, without its password, where that is not the ps itself.
func TestJoinURL(t *testing.T) {
	config := Config{ID: "a", Token: "secret-of-sixteen", ControlToken: "the-token-of-peers"}
	one := startServer(t, config)
	if got := one.JoinURL(); got != one.URL() {
		t.Errorf("one alone: %s, want %s", got, one.URL())
	}
	config.ID, config.NATS = "b", one.URL()
	other := startServer(t, config)
	if got := other.JoinURL(); got != one.URL() {
		t.Errorf("one of several: %s, want %s", got, one.URL())
	}
}
