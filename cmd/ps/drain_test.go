package main

import (
	"testing"

	"gradbus/schema"
)

// What has become of a job is said by what is newest: that it runs elsewhere, is kept there, or is durable.
func TestDrained(t *testing.T) {
	t.Parallel()
	for want, j := range map[string]schema.JobProgress{
		"handed over to the ps at nats://b:4222":                                 {Durable: 7, To: "nats://u:secret@b:4222"},
		"version 8 is kept by other ps, with which it goes on":                   {Durable: 7, Kept: 8},
		"version 9 is durable, with which it goes on":                            {Durable: 9, Kept: 8},
		"version 7 is durable, with which it goes on when the ps is there again": {Durable: 7},
		"nothing of it is durable, and no ps has a replica: it is lost":          {},
	} {
		j.Job, j.Version = "demo", 9
		if got := drained(&j); got != "job demo, at batch 9: "+want {
			t.Errorf("%+v: %q, want %q", j, got, want)
		}
	}
}
