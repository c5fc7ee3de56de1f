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

// Where nobody has ever stood by nothing is shown of that; then who stands by for the job, and why nobody does any
// more; and for whom a ps itself stands by.
func TestStandby(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	column := `[...document.querySelectorAll("#s-servers thead th")].find((e) => e.textContent.startsWith("Stands by for")).hidden`
	p.until("it is live", live)
	p.until("servers", `document.querySelectorAll("#s-servers tbody tr").length === 2`)
	p.until("nothing of it", "!"+fact("standby")+" && !"+fact("told the standby")+" && "+column)

	s.with(func(c *statustest.Cluster) {
		c.StoodBy.Server = "box-4223"
		c.Servers[1].StandsBy = &schema.StandsByReport{URL: "nats://10.0.0.9:4222", Reached: true, Jobs: []schema.HeldReport{
			{Job: "digits", Version: 1234}, {Job: "large", Failure: "too large"}, {Job: "quick", Version: 9}}}
	})
	s.step(2)
	p.until("who stands by", fact("standby")+`?.querySelector("dd").textContent === "box-4223, version 12,016, 0 s ago"`)
	p.until("what it was told", fact("told the standby")+`?.querySelector("dd").textContent === "6.00 MiB, the last in 18 ms"`)
	p.until("for whom a ps stands by", "!"+column+` &&
		[...document.querySelectorAll("#s-servers [data-column=standsby]")].some((e) => e.textContent ===
			"nats://10.0.0.9:4222, in reach; digits version 1,234; large nothing (too large); and 1 more")`)

	s.with(func(c *statustest.Cluster) { c.StoodBy.Server, c.StoodBy.Failure = "", "ps box-4223 on box-1 has left" })
	s.step(5)
	p.until("that nobody does", fact("standby")+`?.dataset.level === "warning" && `+fact("standby")+
		`.querySelector("dd").textContent === "not ready: ps box-4223 on box-1 has left"`)
	s.step(35)
	p.until("the problem", `document.getElementById("why-text").textContent.startsWith("no ps has stood by for packages for ")`)
}

// Of several ps that stand by for each other it is shown who keeps what, and why one does not.
func TestPeers(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live", live)
	s.with(func(c *statustest.Cluster) {
		c.StoodBy.Peers, c.StoodBy.Server = true, "box-a,box-b"
		c.Servers[0].StandsBy = &schema.StandsByReport{Peers: true, Reached: true}
		c.Servers[1].StandsBy = &schema.StandsByReport{Peers: true, Reached: true, Jobs: []schema.HeldReport{
			{Job: "packages", Of: []string{"box-a"}, Version: 1234}}}
	})
	s.step(2)
	says := func(label, text string) string {
		return fact(label) + `?.querySelector("dd").textContent === "` + text + `"`
	}
	p.until("who stands by", says("standby", "box-a, box-b, version 12,016, 0 s ago"))
	p.until("who keeps what", says("shards kept",
		"box-a: its own and those of box-b; box-b: its own and those of box-a"))
	p.until("what each keeps of others", `["the others, in reach", "the others, in reach; packages of box-a version 1,234"].
		every((text) => [...document.querySelectorAll("#s-servers [data-column=standsby]")].some((e) => e.textContent === text))`)

	s.with(func(c *statustest.Cluster) { c.StoodBy.Failure = "too large" })
	s.step(5)
	p.until("that one does not", says("standby", "not ready: too large"))
	p.until("which", says("shards kept",
		"box-a: its own and those of box-b; box-b: its own and those of box-a (not: too large)"))
	s.with(func(c *statustest.Cluster) { c.StoodBy.Server = "" })
	s.step(35)
	p.until("the problem",
		`document.getElementById("why-text").textContent.startsWith("the shards of packages have not been kept at two ps for ")`)
}
