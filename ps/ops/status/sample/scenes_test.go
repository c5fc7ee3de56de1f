package sample

import (
	"encoding/json"
	"testing"
)

// Every scene can be played and shown.
func TestScenes(t *testing.T) {
	for _, s := range Scenes() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			u, tracker, c, err := Play(s.Name)
			if err != nil {
				t.Fatal(err)
			}
			if u.Status.Why.Text == "" {
				t.Error("no sentence")
			}
			data, err := json.Marshal(u)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s %s [%s] %s", u.Status.Why.Level, u.Status.Why.Text, u.Status.Why.Code, u.Status.Why.Action)
			for _, p := range u.Status.Problems {
				t.Logf("    %s %v: %s", p.Level, p.Symptom, p.Text)
			}
			if len(data) > 400_000 {
				t.Errorf("%d bytes of JSON", len(data))
			}
			if s := tracker.Tick(c.Now).Status; s.Serial <= u.Status.Serial {
				t.Errorf("status %d after %d", s.Serial, u.Status.Serial)
			}
		})
	}
}
