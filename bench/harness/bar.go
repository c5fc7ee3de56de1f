package harness

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// barEvery is how often the bar is drawn at most.
const barEvery = 100 * time.Millisecond

// bar is the progress of a harness on a terminal. A new one begins where there is more to do than before, or less was
// done: when another member begins, or another run.
type bar struct {
	bar          *progressbar.ProgressBar
	to           io.Writer
	count, total int
}

func (b *bar) show(to io.Writer, title string, count, total int) {
	if b.bar != nil && (count < b.count || b.count == b.total) && total > 0 {
		b.end()
	}
	if b.bar == nil {
		b.to = to
		b.bar = progressbar.NewOptions64(int64(total), progressbar.OptionSetWriter(to), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(barEvery), progressbar.OptionFullWidth(),
			progressbar.OptionSetDescription(title))
	}
	if total != b.total {
		b.bar.ChangeMax64(int64(total))
	}
	b.count, b.total = count, total
	_ = b.bar.Set64(int64(count)) // a terminal that cannot be written to is no reason to stop
}

// clear takes the bar off the terminal until it is shown again.
func (b *bar) clear() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}

func (b *bar) end() {
	if b.bar != nil {
		_ = b.bar.Exit()
		fmt.Fprintln(b.to)
	}
	*b = bar{}
}
