package ps

import (
	"fmt"
	"strings"
	"time"

	"gradbus/schema"
)

// beats has the trainers beat, and the coordinator tick, each second until a time. It says when something was told.
func (s *membership) beats() string {
	var b strings.Builder
	epoch := time.Unix(1000, 0)
	for until := epoch.Add(s.duration("until", "0s")); !s.now.After(until); s.now = s.now.Add(time.Second) {
		for i := range s.c.members {
			s.heartbeat(schema.TrainerMember(i))
		}
		if told := s.tick(); told != "" {
			fmt.Fprintf(&b, "at %v: %s", s.now.Sub(epoch), told)
		}
	}
	return b.String()
}
