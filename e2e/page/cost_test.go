package page

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
)

// What the page takes of the browser, for whoever asks: `go test ./e2e/page -need-browser -run Cost -v`. Nothing
// depends on it.
func TestCost(t *testing.T) {
	if !testing.Verbose() {
		t.Skip("it tells what it measures with -v only")
	}
	b := start(t)
	s := scenes["many"](t)
	p := b.tab(t, s.URL, desk)
	call(p, performance.Enable, performance.EnableParams{})
	p.until("it is live", live+` && [...document.querySelectorAll(".nothing")].every((e) => e.hidden)`)
	value[any](p, `document.querySelector("#s-trainers .more").click()`)
	seen := value[float64](p,
		`performance.getEntriesByType("paint").find((e) => e.name === "first-contentful-paint")?.startTime ?? -1`)
	modules := value[float64](p,
		`performance.getEntriesByType("resource").reduce((last, e) => Math.max(last, e.name.includes("/assets/") ? e.responseEnd : 0), 0)`)
	before, from := p.spent(), time.Now()
	const updates = 20
	for range updates {
		s.step(1)
		time.Sleep(200 * time.Millisecond) // as far apart as the browser needs; it has a second in earnest
	}
	after := p.spent()
	t.Logf("first paint after %.0f ms, all files after %.0f ms; an update of 64 trainers takes %.1f ms of scripts, %.1f "+
		"ms of layout and styles, %.1f ms in all (%v)",
		seen, modules, 1000*(after["ScriptDuration"]-before["ScriptDuration"])/updates,
		1000*(after["LayoutDuration"]+after["RecalcStyleDuration"]-before["LayoutDuration"]-
			before["RecalcStyleDuration"])/updates,
		1000*(after["TaskDuration"]-before["TaskDuration"])/updates, time.Since(from).Round(time.Second))
}

// spent are the browser's own counters of the tab, in seconds.
func (p *tab) spent() map[string]float64 {
	p.t.Helper()
	all := map[string]float64{}
	for _, m := range call(p, performance.GetMetrics, cdp.Empty{}).Metrics {
		all[m.Name] = m.Value
	}
	return all
}
