package schema

import (
	"strings"
	"testing"
)

// Only a job of groups can be told of them.
func TestGroupEventsAreOfGroups(t *testing.T) {
	job := testJob()
	job.GroupEvents = true
	const want = "group_events: true: want consistency grouped"
	if err := job.Validate(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	job.Consistency, job.Group, job.Tables = ConsistencyGrouped, 2, nil
	if err := job.Validate(); err != nil {
		t.Error(err)
	}
}
