package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

const live = `document.getElementById("live").dataset.state === "live"`

var desk = view{width: 1280, height: 900}

// A page over a job that is well: everything is there, and nothing is said in the console or asked of others.
func TestHealthy(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live", live)
	p.until("the sentence",
		`document.getElementById("why").dataset.level === "ok" && document.getElementById("why-text").textContent.startsWith("packages runs")`)
	p.until("the loss is drawn",
		`document.querySelectorAll("#chart-loss canvas").length === 1 && /^0\.\d+$/.test(document.querySelector("#chart-loss .legend b").textContent)`)
	p.until("trainers", `document.querySelectorAll("#s-trainers tbody tr").length === 4`)
	hidden := func(table, column string) string {
		return `[...document.querySelectorAll("#s-` + table + ` thead th")].find((e) => e.textContent.startsWith("` + column +
			`")).hidden`
	}
	p.until("no column of what nobody does", hidden("trainers", "Verified")+" && !"+hidden("servers", "Verified")+" && "+
		hidden("trainers", "Skipped"))
	p.until("the host without scrolling",
		`(() => { const s = document.querySelector("#s-trainers .scroll"); return s.scrollWidth <= s.clientWidth })()`)
	p.until("shards", `document.querySelectorAll("#s-shards tbody tr").length === 4`)
	p.until("servers", `document.querySelectorAll("#s-servers tbody tr").length === 2`)
	p.until("no link to a loopback address of another machine",
		`document.querySelector("#s-servers tbody tr:nth-child(2) [data-column=page]").innerHTML === "127.0.0.1:8080 on box-1"`)
	p.until("no GPU", `document.getElementById("s-gpus").innerText.includes("No GPU")`)
	s.step(1)
	p.until("the next batch", `document.getElementById("facts").innerText.includes("12,008")`)
	s.with(func(c *statustest.Cluster) { c.Trainers[1].Skipped = 1234 })
	s.step(1)
	p.until("lanes that were skipped", "!"+hidden("trainers", "Skipped")+
		` && [...document.querySelectorAll("#s-trainers [data-column=skipped]")].some((e) => e.textContent === "1,234")`)
}

// A trainer that stops is named at the top, and its row comes first.
func TestWaiting(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live", live)
	s.with(func(c *statustest.Cluster) { c.Trainers[2].Stopped = true })
	s.step(10)
	p.until("the sentence", `/waits .*for trainer t2/.test(document.getElementById("why-text").textContent)`)
	p.until("the level",
		`document.getElementById("why").dataset.level === "critical" && document.getElementById("why-level").textContent === "Critical"`)
	p.until("read aloud", `document.getElementById("said").textContent.includes("t2")`)
	p.until("the tab", `document.title.startsWith("✕ ") && document.title.includes("t2")`)
	p.until("its row", `document.querySelector("#s-trainers tbody tr").innerText.startsWith("t2")`)
	p.until("its age", `/\d+ s ago/.test(document.querySelector("#s-trainers tbody tr [data-column=heard]").textContent)`)
	p.until("the event", `document.querySelector("#s-events li[data-level=critical]").innerText.includes("t2")`)
}

// What trainers call their hosts is text, whatever it looks like.
func TestHostile(t *testing.T) {
	b := start(t)
	const name = `<img src=x onerror="document.title='taken'"><script>document.title='taken'</script>` +
		"aVeryLongNameWithoutAnySpaceInIt_aVeryLongNameWithoutAnySpaceInIt_aVeryLongNameWithoutAnySpaceInIt"
	s := open(t, statustest.Options{Trainers: 2, Job: "packages"}, 30, func(c *statustest.Cluster) {
		for _, trainer := range c.Trainers {
			trainer.Host = name
		}
		c.Trainers[1].Stopped = true
	})
	p := b.tab(t, s.URL, view{width: 390, height: 844})
	p.until("the host", `document.querySelector("#s-trainers [data-column=host]").textContent.startsWith("<img src=x")`)
	if value[bool](p, `document.querySelectorAll("main img, main script").length > 0 || document.title === "taken"`) {
		t.Error("the name of a host became markup")
	}
	if wide := p.wide(); len(wide) > 0 {
		t.Errorf("the name of a host makes the page wider than its window by %q", wide)
	}
	if title := value[string](p, "document.title"); !strings.HasSuffix(title, "gradbus") {
		t.Errorf("title %q", title)
	}
}

// A stream that ends, or of which nothing is heard, greys the page, which says since when and comes back by itself.
func TestLost(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	p.expected = func(said string) bool { return strings.HasPrefix(said, "network:") }
	p.until("it is live", live)
	s.with(func(*statustest.Cluster) { s.refuse = 503 })
	s.CloseClientConnections()
	p.until("it is lost", `document.body.classList.contains("lost")`)
	p.until("it says so",
		`/Stream lost: what is shown is of 02:25:00.* 503: as the test wants it/.test(document.getElementById("lost").textContent)`)
	p.until("it is grey", `getComputedStyle(document.getElementById("main")).filter.includes("grayscale(1)")`)
	p.until("what it says of jobs, too",
		`getComputedStyle(document.getElementById("jobs")).filter.includes("grayscale(1)")`)
	p.until("the tab", `document.title.startsWith("? stream lost")`)
	p.until("read aloud", `document.getElementById("alarm").textContent.includes("lost")`)
	s.with(func(*statustest.Cluster) { s.refuse = 0 })
	s.step(20)
	p.until("it is back", live+` && !document.body.classList.contains("lost") && document.getElementById("lost").hidden`)
	p.until("with what was missed", `document.getElementById("facts").innerText.includes("12,160")`)
}

// A server that refuses from the beginning has answered: the page says what.
func TestRefused(t *testing.T) {
	s := open(t, statustest.Options{}, 5, nil)
	s.with(func(*statustest.Cluster) { s.refuse = 503 })
	p := start(t).tab(t, s.URL, desk)
	p.expected = func(said string) bool { return strings.HasPrefix(said, "network:") }
	p.until("what it answered",
		`/^It answered 503: as the test wants it\./.test(document.getElementById("lost").textContent) && document.getElementById("why-level").textContent === "Refused"`)
	s.with(func(*statustest.Cluster) { s.refuse = 0 })
	p.until("it is live", live+` && document.getElementById("why-level").textContent !== "Refused"`)
}

// Events of before the page was opened are there, and those of while it was away, though the first update that comes
// has newer ones.
func TestEventsAreWhole(t *testing.T) {
	b := start(t)
	s := scenes["waiting"](t) // its latest update has the last event alone
	p := b.tab(t, s.URL, desk)
	p.expected = func(said string) bool { return strings.HasPrefix(said, "network:") }
	listed := `document.getElementById("s-events").innerText`
	p.until("the latest", live+` && `+listed+`.includes("waits 2 s for trainer t3")`)
	p.until("the first", listed+`.includes("packages has started")`)
	s.with(func(*statustest.Cluster) { s.refuse = 503 })
	s.CloseClientConnections()
	p.until("it is lost", `document.body.classList.contains("lost")`)
	s.with(func(c *statustest.Cluster) { c.Trainers[3].Stopped = false })
	s.step(10)
	s.with(func(c *statustest.Cluster) { c.Trainers[1].Stopped = true })
	s.step(10)
	s.with(func(*statustest.Cluster) { s.refuse = 0 })
	p.until("the latest again", listed+`.includes("for trainer t1")`)
	p.until("what was missed", listed+`.includes("over after")`)
}

// A server that wants a token is shown it once, and a wrong one is said to be wrong.
func TestToken(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	s.with(func(*statustest.Cluster) { s.token = "right" })
	p := b.tab(t, s.URL, desk)
	p.expected = func(said string) bool { return strings.Contains(said, "401") || strings.Contains(said, "403") }
	p.until("it asks",
		`!document.getElementById("token-form").hidden && document.getElementById("main").hidden && document.activeElement.id === "token"`)
	p.do(chromedp.SendKeys("#token", "wrong\r"))
	p.until("it is refused", `document.getElementById("token-text").textContent.includes("not the token")`)
	p.do(chromedp.SendKeys("#token", "right\r"))
	p.until("it is live", live+` && !document.getElementById("main").hidden`)
	p.until("the series came, too", `document.querySelectorAll("#chart-loss canvas").length === 1`)
	p.do(chromedp.Reload())
	p.until("it is kept", live)
}

// No page is wider than its window, whatever it shows; tables scroll for themselves.
func TestNarrow(t *testing.T) {
	b := start(t)
	for _, name := range []string{"empty", "gpu", "many", "mean", "jobs"} {
		p := b.tab(t, scenes[name](t).URL, view{width: 390, height: 844})
		p.until("it is live", live+` && document.getElementById("why").dataset.level !== "none"`)
		for _, width := range []int{390, 1280} {
			p.resize(width, 844)
			if wide := p.wide(); len(wide) > 0 {
				t.Errorf("%s at %d: the page is wider than its window by %q", name, width, wide)
			}
		}
	}
}

// wide lists what makes the page wider than its window.
func (p *tab) wide() []string {
	return value[[]string](p, `(() => {
		const width = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= width) return [];
		return [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > width + 1 && !e.closest(".scroll, #jobs")).map((e) => e.tagName + "#" + e.id + "." + e.className);
	})()`)
}

// Dark and light follow the system, and the switch, which is kept.
func TestThemes(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	const dark = `getComputedStyle(document.body).color === "rgb(228, 232, 235)"`
	for _, system := range []bool{true, false} {
		p := b.tab(t, s.URL, view{width: 1280, height: 900, dark: system})
		p.until("it is live", live)
		p.until("as the system", fmt.Sprintf("(%s) === %v", dark, system))
		p.keys("d")
		p.until("the other", fmt.Sprintf("(%s) === %v", dark, !system))
		p.do(chromedp.Reload())
		p.until("kept", fmt.Sprintf("%s && (%s) === %v", live, dark, !system))
		p.keys("d", "d")
		p.until("as the system again", fmt.Sprintf("(%s) === %v && !document.documentElement.dataset.theme", dark, system))
	}
}

// All of it can be had without a mouse.
func TestKeyboard(t *testing.T) {
	b := start(t)
	s := scenes["jobs"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live", live+` && document.querySelectorAll("#s-trainers tbody tr").length > 0`)
	p.keys("\t")
	p.until("the skip link",
		`document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0`)
	p.until("its focus is seen", `getComputedStyle(document.activeElement).outlineStyle === "solid"`)
	p.keys("\r")
	p.until("it leads to the sentence", `document.activeElement.id === "why"`)
	p.keys("?")
	p.until("help", `document.getElementById("help").open`)
	p.keys("2") // not while the help is open
	p.keys("\u001b")
	p.until("help is closed", `!document.getElementById("help").open`)
	pressed := `document.querySelector("#ranges [aria-pressed=true]").textContent`
	p.until("ten minutes", pressed+` === "10 min"`)
	p.keys("2")
	p.until("an hour", pressed+` === "1 h"`)
	p.until("charts have it", `document.querySelectorAll("#chart-loss canvas").length === 1`)
	p.keys("l")
	p.until("log", `document.querySelector("#chart-loss button").getAttribute("aria-pressed") === "true"`)
	p.until("one job", `document.querySelector("#jobs [aria-pressed=true]").textContent === "digits"`)
	p.keys("]")
	p.until("the other job",
		`document.querySelector("#jobs [aria-pressed=true]").textContent === "packages" && location.hash === "#job=packages" && document.querySelectorAll("#s-trainers tbody tr").length === 4`)
	p.keys("t")
	p.until("trainers", `document.activeElement.id === "h-trainers"`)
	p.keys("\t", "\t") // the region that scrolls, then the first head
	first := `document.querySelector("#s-trainers tbody tr th").textContent`
	p.keys("\r")
	p.until("sorted", `document.querySelector("#s-trainers th[aria-sort]").getAttribute("aria-sort") === "ascending" && `+
		first+` === "t0"`)
	p.keys("\r")
	p.until("the other way",
		`document.querySelector("#s-trainers th[aria-sort]").getAttribute("aria-sort") === "descending" && `+first+
			` === "t3"`)
	p.keys("\r")
	p.until("back to trouble", `document.querySelectorAll("#s-trainers th[aria-sort]").length === 0`)
	value[any](p, `document.querySelector("#chart-loss .plot").focus()`)
	crosshair := `/^\d\d:\d\d:\d\d  batch [\d,]+/.test(document.getElementById("readout").textContent)`
	for range 100 { // while the curves of the job are on their way there is nothing that it could show
		if p.keys(kbLeft); value[bool](p, crosshair) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	p.until("the crosshair", crosshair)
	p.keys("\u001b")
}

// A job that ends while it is looked at: its facts say so, and that its trainers do nothing.
func TestEnds(t *testing.T) {
	s := healthy(t)
	p := start(t).tab(t, s.URL, desk)
	fact := func(term string) string {
		return fmt.Sprintf(
			`[...document.querySelectorAll("#facts .fact")].some((f) => !f.hidden && f.querySelector("dt").textContent === %q)`,
			term)
	}
	p.until("it runs", live+" && "+fact("runs for"))
	s.with(func(c *statustest.Cluster) { c.End(nil) })
	s.step(3)
	p.until("it has ended", fact("ran for")+" && "+fact("ended")+" && !"+fact("runs for"))
	p.until("its trainers do nothing",
		`[...document.querySelectorAll("#s-trainers tbody tr")].every((r) => r.innerText.includes("left") && !/compute|lookup|result/.test(r.innerText))`)

	s = open(t, statustest.Options{}, 3, func(c *statustest.Cluster) { c.Phase = "gathering" })
	p = start(t).tab(t, s.URL, desk)
	s.with(func(c *statustest.Cluster) {
		c.End(&schema.Ended{Member: "p-box-4222", Text: "this machine computes wrongly"})
	})
	s.step(3)
	p.until("one that never began has no curves",
		fact("ended")+
			` && document.getElementById("charts").hidden && document.getElementById("facts").innerText.includes("failed")`)
}

// Of more jobs than there is room for, the one that is shown is in sight, whatever it is called; and the page is no
// wider for them.
func TestManyJobs(t *testing.T) {
	b := start(t)
	s := scenes["jobs-many"](t)
	for _, v := range []view{desk, {width: 390, height: 844}} {
		p := b.tab(t, s.URL, v)
		p.until("it is live", live+` && document.querySelectorAll("#jobs button").length === 20`)
		for _, key := range []string{"[", "[", "]", "]", "]"} {
			p.keys(key)
			p.until("the job is in sight", `(() => {
				const all = document.querySelectorAll('#jobs button[aria-pressed="true"]');
				if (all.length !== 1) return false;
				const at = all[0].getBoundingClientRect(), place = document.getElementById("jobs").getBoundingClientRect();
				return at.width > 0 && at.left >= place.left - 1 && at.right <= Math.min(place.right, innerWidth) + 1;
			})()`)
		}
		p.until("its end tells it from the others",
			`/^recommender-of-t….*nightly-0\d$/.test(document.querySelector('#jobs button[aria-pressed="true"]').textContent)`)
		if wide := p.wide(); len(wide) > 0 {
			t.Errorf("at %d pixels: %q", v.width, wide)
		}
	}
}

// kbLeft is the left arrow, as kb has it.
const kbLeft = "\u0302"

// An update that says nothing new changes nothing in the document, with 64 trainers on it.
func TestIdle(t *testing.T) {
	b := start(t)
	s := scenes["many"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live",
		live+
			` && document.querySelectorAll("#s-trainers tbody tr").length === 12 && document.querySelectorAll("#chart-refused canvas").length === 1 && [...document.querySelectorAll(".nothing")].every((e) => e.hidden)`)
	value[any](p, `document.querySelector("#s-trainers .more").click()`)
	p.until("all trainers", `document.querySelectorAll("#s-trainers tbody tr").length === 64`)
	// The newest point comes by the series, which rounds it, and by the stream, which does not; and whatever is still on
	// its way to the document of a busy machine is no fault. So it has to be quiet once, in the end.
	value[any](p,
		`window.changes = []; window.updates = 0; new MutationObserver((all) => { for (const m of all) window.changes.push([m.type, m.target.id || m.target.className || m.target.nodeName, m.target.parentNode?.id || m.target.parentNode?.className, m.target.textContent.slice(0, 80)].join(" ")) }).observe(document.body, {childList: true, subtree: true, characterData: true, attributes: true}), 0`)
	var changes []string
	for range 10 {
		value[any](p, "window.changes = [], 0")
		for range 3 {
			s.again()
			time.Sleep(100 * time.Millisecond) // nothing is to come of it, so nothing can be waited for
		}
		if changes = value[[]string](p, "window.changes"); len(changes) == 0 {
			break
		}
	}
	if len(changes) > 0 {
		t.Errorf("%d changes of the document for nothing: %q", len(changes), changes[:min(len(changes), 20)])
	}
	s.step(1)
	p.until("the next batch changes something", "window.changes.length > 0")
}

// The tests find what they are for: a page with a fault does not pass.
func TestFinds(t *testing.T) {
	b := start(t)
	after := func(what string) func(string) string { return func(file string) string { return file + "\n" + what } }
	for _, c := range []struct{ name, file, fault, want string }{
		{"an error in the console", "assets/app.js", `console.error("planted");`, "planted"},
		{"an exception", "assets/app.js", `setTimeout(() => { throw new Error("planted") });`, "planted"},
		{"a request outside", "assets/app.js", `fetch("http://192.0.2.1/planted").catch(() => {});`, "192.0.2.1"},
		{"a style in HTML", "index.html", `<p style="color: red">planted</p>`, "style"},
		{"a script in HTML", "index.html", `<script>document.title = "planted"</script>`, "script"},
	} {
		s := open(t, statustest.Options{}, 5, nil)
		s.edits = map[string]func(string) string{c.file: after(c.fault)}
		p := b.tab(t, s.URL, desk)
		p.until("it is live", live)
		var found []string
		for end := time.Now().Add(patience); len(found) == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			found = p.heard()
		}
		if !slices.ContainsFunc(found, func(said string) bool { return strings.Contains(said, c.want) }) {
			t.Errorf("%s: found %q", c.name, found)
		}
		p.expected = func(string) bool { return true }
	}
	s := open(t, statustest.Options{}, 5, nil)
	s.edits = map[string]func(string) string{"assets/page.css": after("#facts { width: 500px }")}
	p := b.tab(t, s.URL, view{width: 390, height: 844})
	p.until("it is live", live+` && !document.getElementById("facts").hidden`)
	if len(p.wide()) == 0 {
		t.Error("a page that is too wide is not found")
	}
}
