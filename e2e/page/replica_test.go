package page

import (
	"testing"

	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

// fact is one of a job's figures, where it is shown.
func fact(label string) string {
	return `[...document.querySelectorAll("#facts .fact")].find((e) => !e.hidden &&
		e.querySelector("dt").textContent === "` + label + `")`
}

// Where no ps has ever held a replica nothing is shown of that; then which ps has the replica of the job, and why none
// has any more; and for whom a ps itself holds replicas.
func TestReplica(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	column := `[...document.querySelectorAll("#s-servers thead th")].find((e) => e.textContent.startsWith("Replicas for")).hidden`
	p.until("it is live", live)
	p.until("servers", `document.querySelectorAll("#s-servers tbody tr").length === 2`)
	p.until("nothing of it", "!"+fact("replica")+" && !"+fact("told the replica")+" && "+column)

	s.with(func(c *statustest.Cluster) {
		c.Replica.Server = "box-4223"
		c.Servers[1].Primary = &schema.PrimaryReport{URL: "nats://10.0.0.9:4222", Reached: true, Jobs: []schema.HeldReport{
			{Job: "digits", Version: 1234}, {Job: "large", Failure: "too large"}, {Job: "quick", Version: 9}}}
	})
	s.step(2)
	p.until("which ps has the replica", fact("replica")+`?.querySelector("dd").textContent === "box-4223, version 12,016, 0 s ago"`)
	p.until("what it was told", fact("told the replica")+`?.querySelector("dd").textContent === "6.00 MiB, the last in 18 ms"`)
	p.until("for whom a ps has a replica", "!"+column+` &&
		[...document.querySelectorAll("#s-servers [data-column=standsby]")].some((e) => e.textContent ===
			"nats://10.0.0.9:4222, in reach; digits version 1,234; large nothing (too large); and 1 more")`)

	s.with(func(c *statustest.Cluster) { c.Replica.Server, c.Replica.Failure = "", "ps box-4223 on box-1 has left" })
	s.step(5)
	p.until("that nobody does", fact("replica")+`?.dataset.level === "warning" && `+fact("replica")+
		`.querySelector("dd").textContent === "not ready: ps box-4223 on box-1 has left"`)
	s.step(35)
	p.until("the problem", `document.getElementById("why-text").textContent.startsWith("no other ps has held a whole replica of packages for ")`)
}

// Of several ps that hold replicas for each other it is shown who keeps what, and why one does not.
func TestPeers(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live", live)
	s.with(func(c *statustest.Cluster) {
		c.Replica.Peers, c.Replica.Server = true, "box-a,box-b"
		c.Servers[0].Primary = &schema.PrimaryReport{Peers: true, Reached: true}
		c.Servers[1].Primary = &schema.PrimaryReport{Peers: true, Reached: true, Jobs: []schema.HeldReport{
			{Job: "packages", Of: []string{"box-a"}, Version: 1234}}}
	})
	s.step(2)
	says := func(label, text string) string {
		return fact(label) + `?.querySelector("dd").textContent === "` + text + `"`
	}
	p.until("which ps has the replica", says("replica", "box-a, box-b, version 12,016, 0 s ago"))
	p.until("who keeps what", says("shards kept",
		"box-a: its own and those of box-b; box-b: its own and those of box-a"))
	p.until("what each keeps of others", `["the others, in reach", "the others, in reach; packages of box-a version 1,234"].
		every((text) => [...document.querySelectorAll("#s-servers [data-column=standsby]")].some((e) => e.textContent === text))`)

	s.with(func(c *statustest.Cluster) { c.Replica.Failure = "too large" })
	s.step(5)
	p.until("that one does not", says("replica", "not ready: too large"))
	p.until("which", says("shards kept",
		"box-a: its own and those of box-b; box-b: its own and those of box-a (not: too large)"))
	s.with(func(c *statustest.Cluster) { c.Replica.Server = "" })
	s.step(35)
	p.until("the problem",
		`document.getElementById("why-text").textContent.startsWith("no other ps has held a whole replica of packages for ")`)
}
