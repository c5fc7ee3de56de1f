package metrics

import (
	"testing"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Who would go on with a job, and what this ps would go on with.
func TestReplicaMetrics(t *testing.T) {
	c, e := full(1, 1)
	wantSamples(t, samples(t, e), map[string]float64{
		`gradbus_job_standby_ready{job_name="words"}`:           1,
		`gradbus_job_standby_version{job_name="words"}`:         18,
		`gradbus_job_standby_age_seconds{job_name="words"}`:     0.25,
		`gradbus_job_standby_seconds{job_name="words"}`:         0.018,
		`gradbus_job_standby_bytes_total{job_name="words"}`:     8192,
		`gradbus_job_standby_unready_seconds{job_name="words"}`: 0,
		`gradbus_job_standby_late_seconds{job_name="words"}`:    0.5,
		`gradbus_ps_standby_reached`:                            1,
		`gradbus_ps_standby_job_ready{job_name="digits"}`:       1,
		`gradbus_ps_standby_job_version{job_name="digits"}`:     7,
		`gradbus_ps_standby_job_ready{job_name="large"}`:        0,
		`gradbus_ps_standby_job_version{job_name="large"}`:      0,
	})
	b := c.status.Jobs[0].Replica
	*b = status.Replica{ReplicaReport: schema.ReplicaReport{Failure: "ps b-4222 on b has left", UnreadyMS: 61_000,
		Bytes: 8192}}
	got := samples(t, c.exporter())
	wantSamples(t, got, map[string]float64{`gradbus_job_standby_ready{job_name="words"}`: 0,
		`gradbus_job_standby_unready_seconds{job_name="words"}`: 61})
	absent(t, got, "gradbus_job_standby_version", "gradbus_job_standby_age", "gradbus_job_standby_seconds")

	b.Off = "its policy is fail"
	absent(t, samples(t, c.exporter()), "gradbus_job_standby")
	c.own.Server.Primary = &schema.PrimaryReport{Peers: true, Reached: true, Jobs: []schema.HeldReport{
		{Job: "digits", RunID: 78, Of: []string{"b"}, Version: 7}}}
	got = samples(t, c.exporter()) // several that hold replicas for each other
	wantSamples(t, got, map[string]float64{`gradbus_ps_standby_job_ready{job_name="digits"}`: 1,
		`gradbus_ps_standby_job_version{job_name="digits"}`: 7})
	absent(t, got, "gradbus_ps_standby_reached")
	c.status.Jobs[0].Replica, c.own.Server.Primary = nil, nil
	absent(t, samples(t, c.exporter()), "gradbus_job_standby", "gradbus_ps_standby")
}
