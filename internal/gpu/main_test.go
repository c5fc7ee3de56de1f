package gpu_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"gradbus/internal/gpu"
	"gradbus/internal/testkit"
)

// The test binary is the probe, too: the real one, in a process of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "gpu-probe" {
		var o gpu.ProbeOptions
		set := flag.NewFlagSet("gpu-probe", flag.ExitOnError)
		set.StringVar(&o.Library, "library", "", "")
		set.DurationVar(&o.Every, "every", 20*time.Millisecond, "")
		_ = set.Parse(os.Args[2:])
		o.In, o.Out = os.Stdin, os.Stdout
		if err := gpu.Serve(context.Background(), o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.Main(m)
}
