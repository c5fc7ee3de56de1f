package faults

import (
	"testing"

	"gradbus/bench/harness"
)

// A kind of fault is refused where there is nothing that it could cut.
func TestCheckCuts(t *testing.T) {
	for _, c := range []struct {
		cut               bool
		servers, replicas int
		only              string
		ok                bool
	}{
		{true, 1, 0, trainersCut, true}, {false, 1, 0, trainersCut, false},
		{true, 1, 1, pairCut, true}, {true, 1, 0, pairCut, false}, {false, 1, 1, pairCut, false},
		{true, 3, 0, "", false}, {false, 3, 0, natsRestarted, true}, {false, 1, 0, natsRestarted, false},
	} {
		var config Config
		harness.SetDefaults(&config)
		config.Servers, config.Replicas, config.Cut = c.servers, c.replicas, c.cut
		if c.only != "" {
			config.Only = []string{c.only}
		}
		if err := config.Check(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
