package corpus

import (
	"context"
	"os"
	"time"
)

// open opens a file for reading. Where that waits for a writer, as a named pipe does, it waits no longer than ctx; and
// once ctx has ended, no read from a pipe waits for one either. The caller closes the file.
func open(ctx context.Context, path string) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.Open(path)
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			// A regular file knows no deadline, and needs none.
			context.AfterFunc(ctx, func() { _ = o.file.SetReadDeadline(time.Now()) })
		}
		return o.file, o.err
	case <-ctx.Done():
		go func() { // until a writer comes, or the process ends
			if o := <-done; o.err == nil {
				o.file.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}
