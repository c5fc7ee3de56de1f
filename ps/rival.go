package ps

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// rival is a ps that has written our lease record: one that lives writes it again after we did.
type rival struct {
	incarnation uint64
	seen        time.Time
}

// rivalFor is for how many renewals a rival is remembered.
const rivalFor = 4

// reacquire finds out who has written our lease record, and writes it again, unless that is a ps that does the same.
func (r *registry) reacquire(ctx context.Context) error {
	e, err := r.servers.Get(ctx, r.self.ID)
	if err != nil {
		return err
	}
	var there leaseRecord
	if err := json.Unmarshal(e.Value, &there); err != nil || there.Incarnation != r.self.Incarnation {
		now := time.Now()
		if err == nil && there.Incarnation == r.rival.incarnation && now.Sub(r.rival.seen) < rivalFor*r.renewEvery() {
			return fmt.Errorf("%w: another ps of id %s was started on %s, at %s", errTaken, r.self.ID, there.Host, there.URL)
		}
		r.rival = rival{there.Incarnation, now}
		r.log.Warn("lease record written by somebody else; it is written again", "server", r.self.ID, "host", there.Host,
			"url", there.URL)
	}
	revision, err := r.servers.Update(ctx, r.self.ID, r.encodeLease(), e.Revision)
	if err != nil {
		return err // whoever was faster is found by the next renewal
	}
	r.revision = revision
	return nil
}
