package page

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"gradbus/ps/ops/status/statustest"
)

var (
	write = flag.String("write", "",
		"with -run Screenshots: folder to write the pictures to, from the top of the repository")
	only  = flag.String("only", "", "with -write: only pictures whose names hold this")
	of    = flag.String("of", "", "with -write: address of a page to take a picture of, instead of scenes")
	every = flag.Bool("every", false, "with -write: every scene in every view, not only the pictures of the documentation")
)

func (p *tab) picture(file string, full bool) {
	p.t.Helper()
	if full { // as high as the page: what is out of sight is not drawn
		p.resize(p.width, value[int](p, "document.documentElement.scrollHeight"))
	}
	shot := chromedp.CaptureScreenshot()
	p.do(chromedp.Sleep(500 * time.Millisecond)) // pictures only: nothing depends on it
	ctx, cancel := p.limited()
	defer cancel()
	data, err := chromedp.Run(ctx, shot)
	if err != nil {
		p.t.Fatal(err)
	}
	if data, err = small(data); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func TestScreenshots(t *testing.T) {
	if *write == "" {
		t.Skip("for pictures: -write docs/images")
	}
	if !filepath.IsAbs(*write) {
		*write = filepath.Join("..", "..", *write)
	}
	b := start(t)
	if err := os.MkdirAll(*write, 0o755); err != nil {
		t.Fatal(err)
	}
	if *of != "" {
		p := b.tab(t, *of, view{width: 1280, height: 900, dark: true})
		p.until("the page", `[...document.querySelectorAll(".nothing")].some((e) => e.hidden)`)
		p.picture(filepath.Join(*write, "page.png"), true)
		return
	}
	for _, shot := range shots() {
		if *only != "" && !strings.Contains(shot.name, *only) || shot.name[0] == '+' && !*every && *only == "" {
			continue
		}
		s := scenes[shot.scene](t)
		if strings.Contains(shot.name, "refused") {
			s.with(func(*statustest.Cluster) { s.refuse = 503 })
		}
		p := b.tab(t, s.URL, shot.view)
		p.expected = func(said string) bool { return shot.act != nil && strings.Contains(said, "network:") }
		p.until("the page",
			`document.getElementById("live").dataset.state !== "connecting" && document.getElementById("why").dataset.level !== "none"`)
		p.until("what is drawn",
			`document.getElementById("charts").hidden || document.querySelector("#chart-loss .nothing").hidden`)
		if shot.act != nil {
			shot.act(p, s)
		}
		p.picture(filepath.Join(*write, strings.TrimPrefix(shot.name, "+")+".png"), shot.full)
	}
}

// shot is a picture of a scene. Those whose names begin with + are for -every.
type shot struct {
	name, scene string
	view        view
	full        bool
	act         func(*tab, *stage)
}

func shots() (all []shot) {
	dark, light := view{width: 1280, height: 900, dark: true}, view{width: 1280, height: 900}
	phone := view{width: 390, height: 844, dark: true, scale: 2}
	lose := func(p *tab, s *stage) {
		s.CloseClientConnections()
		s.with(func(*statustest.Cluster) { s.refuse = 503 })
		p.until("it is lost", `document.body.classList.contains("lost")`)
	}
	for _, name := range slices.Sorted(maps.Keys(scenes)) {
		all = append(all, shot{name: "+" + name + "-dark", scene: name, view: dark, full: true},
			shot{name: "+" + name + "-light", scene: name, view: light, full: true},
			shot{name: "+" + name + "-phone", scene: name, view: phone, full: true})
	}
	return append(all,
		shot{name: "operations-well", scene: "healthy", view: dark},
		shot{name: "operations-waiting", scene: "waiting", view: view{width: 1280, height: 830, dark: true}},
		shot{name: "operations-telephone", scene: "waiting", view: view{width: 390, height: 720, dark: true, scale: 1.5}},
		shot{name: "operations-gpu", scene: "gpu", view: light, act: func(p *tab, _ *stage) { p.keys("g") }},
		shot{name: "operations-crosshair", scene: "waiting", view: view{width: 1280, height: 640},
			act: func(p *tab, _ *stage) { p.hover("#chart-loss .u-over", 0.972) }},
		shot{name: "operations-replicas", scene: "mean", view: light, act: func(p *tab, _ *stage) { p.keys("s") }},
		shot{name: "operations-lost", scene: "healthy", view: view{width: 1280, height: 420, dark: true}, act: lose},
		shot{name: "+lost-dark", scene: "healthy", view: dark, act: lose},
		shot{name: "+refused-dark", scene: "healthy", view: dark, act: func(*tab, *stage) {}},
		shot{name: "+wide-dark", scene: "gpu", view: view{width: 1920, height: 1080, dark: true}, full: true},
		shot{name: "+tablet-light", scene: "gpu", view: view{width: 768, height: 1024}, full: true},
		shot{name: "+lost-light", scene: "healthy", view: light, act: lose},
		shot{name: "+lost-phone", scene: "healthy", view: phone, act: lose},
		shot{name: "+help-dark", scene: "healthy", view: dark, act: func(p *tab, _ *stage) { p.keys("?") }},
		shot{name: "+help-phone", scene: "healthy", view: phone, act: func(p *tab, _ *stage) { p.keys("?") }},
		shot{name: "+hover-light", scene: "waiting", view: light,
			act: func(p *tab, _ *stage) { p.hover("#chart-loss .u-over", 0.93) }},
		shot{name: "+log-hour-dark", scene: "healthy", view: dark, act: func(p *tab, _ *stage) { p.keys("2", "l") }},
		shot{name: "+token-dark", scene: "healthy", view: dark, act: func(p *tab, s *stage) {
			s.with(func(*statustest.Cluster) { s.token = "secret" })
			s.CloseClientConnections()
			p.until("the form", `!document.getElementById("token-form").hidden`)
		}},
	)
}
