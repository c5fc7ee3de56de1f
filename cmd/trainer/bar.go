package main

import (
	"fmt"
	"io"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"gradbus/internal/report"
)

// shower shows progress.
type shower interface {
	Show(report.Progress)
	Note(text string) // a line between
	End()
}

// newShower is a bar on a terminal and lines elsewhere, or events for a parent, or nothing.
func newShower(o *common) shower {
	switch {
	case o.events == eventsAll:
		return events{to: o.out}
	case o.events != "" || o.quiet:
		return &report.Plain{To: io.Discard}
	case term.IsTerminal(int(o.errOut.Fd())):
		return &bar{to: o.errOut}
	}
	return &report.Plain{To: o.errOut}
}

// events hand progress to the process that started this one.
type events struct{ to io.Writer }

func (e events) Show(p report.Progress) { _ = report.Event{Progress: &p}.Write(e.to) }

func (e events) Note(text string) { _ = report.Event{Note: text}.Write(e.to) }

func (e events) End() {}

// bar is made at the first batch, when the number of batches is known.
type bar struct {
	to  io.Writer
	bar *progressbar.ProgressBar
}

func (b *bar) Show(p report.Progress) {
	if b.bar == nil {
		b.bar = progressbar.NewOptions64(int64(p.Batches), progressbar.OptionSetWriter(b.to), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(barEvery), progressbar.OptionFullWidth())
	}
	b.bar.Describe(fmt.Sprintf("loss %.4f  %s samples/s", p.Loss, report.Thousands(p.SamplesPerSecond)))
	_ = b.bar.Set64(int64(p.Batch) + 1) // a terminal that cannot be written to is no reason to stop
}

func (b *bar) Note(text string) {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
	fmt.Fprintln(b.to, text)
}

func (b *bar) End() {
	if b.bar != nil {
		_ = b.bar.Exit()
		fmt.Fprintln(b.to)
	}
}
