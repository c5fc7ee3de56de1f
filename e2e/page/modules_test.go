package page

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// module evaluates an expression over a module of the page, m.
func module[T any](p *tab, name, expression string) T {
	p.t.Helper()
	ctx, cancel := p.limited()
	defer cancel()
	await := func(e *runtime.EvaluateParams) { yes := true; e.AwaitPromise = &yes }
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](fmt.Sprintf("import('/assets/%s').then((m) => %s)", name, expression),
		await))
	if err != nil {
		p.t.Fatalf("%s: %s: %v", name, expression, err)
	}
	return v
}

// Numbers as the page writes them.
func TestFormat(t *testing.T) {
	b := start(t)
	p := b.tab(t, scenes["empty"](t).URL, desk)
	for _, c := range []struct{ call, want string }{
		{`count(1234567)`, "1,234,567"}, {`count(0)`, "0"}, {`count(null)`, "–"}, {`count("+Inf")`, "∞"},
		{`figure(0.41234)`, "0.4123"}, {`figure(12.3456)`, "12.35"}, {`figure(1234.56)`, "1,235"}, {`figure(0)`, "0"},
		{`figure("NaN")`, "NaN"},
		{`figure("-Inf")`, "−∞"}, {`figure(null)`, "–"}, {`figure(0.0000123)`, "1.23e-5"}, {`figure(1234567890)`, "1.23e9"},
		{`rate(137045.4)`, "137,045"}, {`rate(52.123)`, "52.1"}, {`rate(0.412)`, "0.41"}, {`rate(0)`, "0"},
		{`bytes(0)`, "0 B"}, {`bytes(1023)`, "1,023 B"}, {`bytes(1024)`, "1.00 KiB"}, {`bytes(350 * 2 ** 20)`, "350 MiB"},
		{`bytes(undefined)`, "–"},
		{`flow(1e6)`, "1.00 MB/s"}, {`flow(38200000)`, "38.2 MB/s"}, {`flow(999)`, "999 B/s"},
		{`percent(0.604)`, "60 %"}, {`percent(0.604, 1)`, "60.4 %"},
		{`span(850)`, "850 ms"}, {`span(1500)`, "1.5 s"}, {`span(18000)`, "18 s"}, {`span(59900)`, "1 min"},
		{`span(133000)`, "2 min 13 s"},
		{`span(3599700)`, "1 h 00 min"}, {`span(7500000)`, "2 h 05 min"}, {`span(183600000)`, "2 d 3 h"},
		{`span(-5)`, "0 ms"},
		{`age(3400)`, "3 s"}, {`age(75000)`, "1 min 15 s"},
		{`seconds(0.0000021)`, "2 µs"}, {`seconds(0.0021)`, "2.1 ms"}, {`seconds(0.047)`, "47 ms"}, {`seconds(2.5)`, "2.5 s"},
		{`seconds(0)`, "–"},
		{`clock(0)`, "–"}, {`clock(Date.UTC(2026, 2, 4, 2, 25, 7), Date.UTC(2026, 2, 4, 9, 0, 0))`, "02:25:07"},
		{`clock(Date.UTC(2026, 2, 4, 2, 25, 7), Date.UTC(2026, 2, 5))`, "03-04 02:25:07"},
		{`tick(Date.UTC(2026, 2, 4, 2, 25, 7), 1000)`, "02:25:07"}, {`tick(Date.UTC(2026, 2, 4, 2, 25, 0), 60000)`, "02:25"},
		{`zone()`, "UTC"},
	} {
		if got := module[string](p, "format.js", "m."+c.call); got != c.want {
			t.Errorf("%s is %q, want %q", c.call, got, c.want)
		}
	}
}

// What charts get: gaps where nothing was told, points in their order, a mean of what came before.
func TestHistory(t *testing.T) {
	b := start(t)
	p := b.tab(t, scenes["empty"](t).URL, desk)
	const series = `const h = new m.History("a"); h.take({at_ms: [1000, 2000, 3000, 9000, 10000], columns: {loss: [1, null, "NaN", 4, 5]}});`
	for _, c := range []struct{ what, body, want string }{
		{"nulls, NaN and missing points are gaps",
			`const v = h.view(0, 20000, ["loss"]); return [v.at, v.columns[0]];`,
			`[[1000,2000,3000,4000,9000,10000],[1,null,null,null,4,5]]`},
		{"a range has a point on either side", `const v = h.view(2500, 3500, ["loss"]); return v.at;`,
			`[2000,3000,4000,9000]`},
		{"minutes may be a minute apart",
			`const o = new m.History("a"); o.take({at_ms: [0, 60000, 120000], every_ms: 60000, columns: {}}); return o.view(0, 1e9, ["loss"]).at;`, `[0,60000,120000]`},
		{"the newest value that was told", `return [h.latest("loss"), h.latest("norm")];`, `[{"value":5,"at":10000},null]`},
		{"a point that is known is replaced",
			`h.add({at_ms: 10000, loss: 6}); return [h.at.length, h.columns.loss.at(-1), h.columns.norm.at(-1)];`, `[5,6,null]`},
		{"an old one is passed over", `h.add({at_ms: 9000, loss: 6}); return h.at.length;`, `5`},
		{"the next second is no gap, a later one is",
			`return [h.add({at_ms: 11000, loss: 1}), h.add({at_ms: 15000, loss: 1})];`, `[false,true]`},
		{"a constant stays itself when smoothed",
			`const o = new m.History("a"); o.take({at_ms: [0, 1000, 2000], columns: {loss: [3, 3, 3]}}); return o.smooth("loss", o.at, 5000).map((v) => v.toFixed(9));`, `["3.000000000","3.000000000","3.000000000"]`},
		{"a step is followed by exp(-age/tau)",
			`const o = new m.History("a"); o.take({at_ms: [1000, 2000], columns: {loss: [0, 1]}}); return o.smooth("loss", o.at, 1000).map((v) => v.toFixed(4));`, `["0.0000","0.7311"]`},
		{"gaps stay gaps", `return h.smooth("loss", [1000, 2000, 3000, 9000, 10000], 1).map((v) => v === null);`,
			`[false,true,true,false,false]`},
	} {
		if got := module[string](p, "history.js", "{ "+series+" return JSON.stringify((() => { "+c.body+" })()) }"); got !=
			c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// Two containers of one machine speak of one GPU under the names of their own: each has its row, as in the status.
func TestGPUsOfOneUUID(t *testing.T) {
	b := start(t)
	p := b.tab(t, scenes["empty"](t).URL, desk)
	const gpus = `["a", "b"].map((host) => ({host, uuid: "GPU-1", index: 0, level: "ok", state: host === "a" ? "unhealthy" : "healthy"}))`
	if n := module[int](p, "tables.js", `{ const t = new m.Tables(); t.gpus.update({rows: `+gpus+
		`}); return t.gpus.body.children.length; }`); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
