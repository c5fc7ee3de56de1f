package page

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var needBrowser = flag.Bool("need-browser", false,
	"run the tests, rather than skip them, and fail where there is no chromium")

// patience is how long anything may take on a machine that is busy with other things.
const patience = 3 * time.Minute

// browser is one chromium for all tests of the package; tabs are windows of it, without cookies or storage in common.
type browser struct {
	ctx  context.Context
	stop context.CancelFunc
}

// shared is the browser, started by the first test that wants one; TestMain stops it.
var shared struct {
	sync.Mutex
	*browser
}

// tab is an open page, and what was said and asked in it.
type tab struct {
	context.Context
	t    testing.TB
	host string
	view

	mu       sync.Mutex
	said     []string // errors and warnings of the console, exceptions, refusals of the policy
	outside  []string // requests to elsewhere
	expected func(string) bool
}

func start(t testing.TB) *browser {
	t.Helper()
	if !*needBrowser && *write == "" {
		t.Skip("a browser is started with -need-browser only, as make test-all does")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("there is no chromium here: run scripts/deps.sh page")
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.browser != nil {
		return shared.browser
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Env("TZ=UTC"), chromedp.Flag("lang", "en-US"),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("disable-lcd-text", true),
		chromedp.Flag("hide-scrollbars", true))
	allocated, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, stop := chromedp.NewContext(allocated)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	shared.browser = &browser{ctx, func() { stop(); cancel() }}
	return shared.browser
}

// view is how a tab is looked at.
type view struct {
	width, height int
	dark, calm    bool
	scale         float64
}

// tab opens an address in a window of its own, and fails the test at its end if anything was said or asked beyond.
func (b *browser) tab(t testing.TB, address string, v view) *tab {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p := &tab{t: t, host: at.Host}
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext(), chromedp.WithListener(p.hear))
	p.Context = ctx
	t.Cleanup(func() {
		p.quiet()
		cancel()
	})
	scheme := "light"
	if v.dark {
		scheme = "dark"
	}
	motion := "no-preference"
	if v.calm {
		motion = "reduce"
	}
	if v.scale == 0 {
		v.scale = 1
	}
	p.do() // opens the tab
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme},
		{Name: "prefers-reduced-motion", Value: motion}}
	call(p, network.Enable, network.EnableParams{})
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
	p.view = v
	p.resize(v.width, v.height)
	p.do(chromedp.Navigate(address))
	return p
}

// resize gives the window another size.
func (p *tab) resize(width, height int) {
	p.t.Helper()
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: p.scale, Mobile: width < 600})
}

// hear keeps what the browser tells of the tab.
func (p *tab) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			var words []string
			for _, a := range e.Args {
				words = append(words, string(a.Value)+a.Description)
			}
			p.said = append(p.said, "console: "+strings.Join(words, " "))
		}
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.said = append(p.said, "exception: "+text)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			p.said = append(p.said, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		at, err := url.Parse(e.Request.URL)
		if err != nil || at.Scheme != "data" && at.Host != p.host {
			p.outside = append(p.outside, e.Request.URL)
		}
	}
}

// quiet fails the test if the console said anything that was not expected, or anything was asked of others.
func (p *tab) quiet() {
	p.t.Helper()
	for _, wrong := range p.heard() {
		p.t.Error(wrong)
	}
}

// heard lists what the console said that was not expected, and what was asked of others. It is told once.
func (p *tab) heard() (wrong []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, said := range p.said {
		if p.expected == nil || !p.expected(said) {
			wrong = append(wrong, "the console said: "+said)
		}
	}
	for _, url := range p.outside {
		wrong = append(wrong, "the page asked for "+url+", which is not its server")
	}
	p.said, p.outside = nil, nil
	return wrong
}

// limited is the tab's context for one action.
func (p *tab) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(p.Context, patience)
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	// The first call opens the tab, which lives as long as the context of that call.
	if len(actions) == 0 {
		if err := chromedp.Do(p.Context); err != nil {
			p.t.Fatal(err)
		}
		return
	}
	ctx, cancel := p.limited()
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// call sends a command of the browser's protocol.
func call[P, R any](p *tab, command cdp.Command[P, R], params P) R {
	p.t.Helper()
	ctx, cancel := p.limited()
	defer cancel()
	r, err := chromedp.Call(ctx, command, params)
	if err != nil {
		p.t.Fatalf("%s: %v", command.Method, err)
	}
	return r
}

// value is what an expression of JavaScript gives.
func value[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := p.limited()
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true.
func (p *tab) until(what, expression string) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if value[bool](p, "(() => { try { return Boolean("+expression+") } catch { return false } })()") {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: %s is still not so; the page says:\n%s", what, expression,
				value[string](p, "document.body.innerText.slice(0, 2000)"))
		}
	}
}

// keys presses keys, one after the other.
func (p *tab) keys(all ...string) {
	p.t.Helper()
	for _, k := range all {
		p.do(chromedp.KeyEvent(k))
	}
}

// hover moves the mouse over an element, at a share of its width.
func (p *tab) hover(element string, share float64) {
	p.t.Helper()
	at := value[[]float64](p,
		fmt.Sprintf(
			`(() => { const r = document.querySelector(%q).getBoundingClientRect(); return [r.left + r.width * %v, r.top + r.height / 2]; })()`, element, share))
	p.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at[0], at[1]))
}
