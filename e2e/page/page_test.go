package page

import (
	"strings"
	"testing"

	"gradbus/ps/ops/overview/sample"
)

const live = `document.getElementById("live").dataset.state === "live"`

var desk = view{width: 1280, height: 900}

// A page over a job that is well: everything is there, and nothing is said in the console or asked of others.
func TestHealthy(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live", live)
	p.until("the sentence", `document.getElementById("why").dataset.level === "ok" && document.getElementById("why-text").textContent.startsWith("packages runs")`)
	p.until("the loss is drawn", `document.querySelectorAll("#chart-loss canvas").length === 1 && /^0\.\d+$/.test(document.querySelector("#chart-loss .legend b").textContent)`)
	p.until("trainers", `document.querySelectorAll("#s-trainers tbody tr").length === 4`)
	p.until("shards", `document.querySelectorAll("#s-shards tbody tr").length === 4`)
	p.until("servers", `document.querySelectorAll("#s-servers tbody tr").length === 2`)
	p.until("no GPU", `document.getElementById("s-gpus").innerText.includes("No GPU")`)
	s.step(1)
	p.until("the next batch", `document.getElementById("facts").innerText.includes("12,008")`)
}

// A trainer that stops is named at the top, and its row comes first.
func TestWaiting(t *testing.T) {
	b := start(t)
	s := scenes["healthy"](t)
	p := b.tab(t, s.URL, desk)
	p.until("it is live", live)
	s.with(func(c *sample.Cluster) { c.Trainers[2].Stopped = true })
	s.step(10)
	p.until("the sentence", `/waits .*for trainer t2/.test(document.getElementById("why-text").textContent)`)
	p.until("the level", `document.getElementById("why").dataset.level === "critical" && document.getElementById("why-level").textContent === "Critical"`)
	p.until("read aloud", `document.getElementById("said").textContent.includes("t2")`)
	p.until("the tab", `document.title.startsWith("✕ ") && document.title.includes("t2")`)
	p.until("its row", `document.querySelector("#s-trainers tbody tr").innerText.startsWith("t2")`)
	p.until("its age", `/\d+ s ago/.test(document.querySelector("#s-trainers tbody tr [data-column=heard]").textContent)`)
	p.until("the event", `document.querySelector("#s-events li[data-level=critical]").innerText.includes("t2")`)
}

// What trainers call their hosts is text, whatever it looks like.
func TestHostile(t *testing.T) {
	b := start(t)
	const name = `<img src=x onerror="document.title='taken'"><script>document.title='taken'</script>`
	s := open(t, sample.Options{Trainers: 2, Job: "packages"}, 30, func(c *sample.Cluster) {
		for _, trainer := range c.Trainers {
			trainer.Host = name
		}
		c.Trainers[1].Stopped = true
	})
	p := b.tab(t, s.URL, desk)
	p.until("the host", `document.querySelector("#s-trainers [data-column=host]").textContent.startsWith("<img src=x")`)
	if value[bool](p, `document.querySelectorAll("main img, main script").length > 0 || document.title === "taken"`) {
		t.Error("the name of a host became markup")
	}
	if title := value[string](p, "document.title"); !strings.HasSuffix(title, "gradbus") {
		t.Errorf("title %q", title)
	}
}
