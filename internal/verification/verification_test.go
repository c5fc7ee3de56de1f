package verification_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/internal/gpu"
	"gradbus/internal/verification"
	"gradbus/schema"
)

// A wrong result of a processor makes the process unfit, and says nothing of a GPU that it counts as its own.
func TestWrongProcessor(t *testing.T) {
	t.Parallel()
	inject, err := gpu.ParseInjection("xid=79,after=1h")
	if err != nil {
		t.Fatal(err)
	}
	m, err := gpu.Start(t.Context(),
		gpu.Config{Driver: func() bool { return false }, Inject: []gpu.Injection{inject}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.Wait(t.Context(), time.Minute)
	if err := m.Take(t.Context(), "0"); err != nil {
		t.Fatal(err)
	}
	f := verification.Flags{}
	f.Add(pflag.NewFlagSet("test", pflag.ContinueOnError))
	if f.OneIn != cuda.VerifyAuto {
		t.Errorf("one in %d by default", f.OneIn)
	}
	f.OneIn = 1
	b, err := cuda.Open(f.Options(cuda.Options{Name: "go", Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
		[]time.Duration{0}))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	fit, gpus := verification.Fit(b, m.Fit), verification.GPUs(b, m)
	if err := fit(); err != nil {
		t.Fatalf("unfit before anything was computed: %v", err)
	}
	terms := []cuda.Term{{First: 0, Count: 1, Values: cuda.Float32s([]float32{1, 2, 3})},
		{First: 1, Count: 1, Values: cuda.Float32s([]float32{4, 5, 6})}}
	if err := b.Average(cuda.Average{Lanes: 2, Weight: 2, Terms: terms, Out: cuda.Float32s(make([]float32, 3))}); err ==
		nil {
		t.Fatal("a wrong bit was not found")
	}
	if err := fit(); err == nil || !strings.Contains(err.Error(), "1 of the 1 optimizer blocks") ||
		!strings.Contains(err.Error(), "(Injected.)") {
		t.Errorf("after a wrong result: %v", err)
	}
	if all := gpus(); len(all) != 1 || all[0].State != schema.GPUHealthy || !all[0].Used {
		t.Errorf("the GPU is %+v", all)
	}
}
