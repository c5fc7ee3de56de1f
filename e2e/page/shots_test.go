package page

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var (
	write = flag.String("write", "", "with -run Screenshots: folder to write the pictures to, from the top of the repository")
	every = flag.Bool("every", false, "with -write: every scene in every view, not only the pictures of the documentation")
)

func (p *tab) picture(file string, full bool) {
	p.t.Helper()
	if full { // as high as the page: what is out of sight is not drawn
		p.resize(value[int](p, "document.documentElement.scrollHeight"))
	}
	shot := chromedp.CaptureScreenshot()
	p.do(chromedp.Sleep(500 * time.Millisecond)) // pictures only: nothing depends on it
	ctx, cancel := p.limited()
	defer cancel()
	data, err := chromedp.Run(ctx, shot)
	if err != nil {
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
	for name, scene := range scenes {
		if !*every {
			break
		}
		s := scene(t)
		for _, v := range []struct {
			name string
			view
		}{{"dark", view{width: 1280, height: 900, dark: true}}, {"light", view{width: 1280, height: 900}}, {"phone", view{width: 390, height: 844, dark: true, scale: 2}}} {
			p := b.tab(t, s.URL, v.view)
			p.until("the page", `document.getElementById("live").dataset.state === "live"`)
			p.picture(filepath.Join(*write, name+"-"+v.name+".png"), true)
		}
	}
}
