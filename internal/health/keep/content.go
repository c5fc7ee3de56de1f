package keep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"gradbus/internal/health"
)

// Bounds of the file.
const (
	Version     = 1
	GPUsMax     = 256 // those of a machine, and of others that share the home folder
	findingsMax = 64
	textMax     = 1000 // bytes of a text
	bytesMax    = 4 << 20
	idleTime    = 30 * 24 * time.Hour // after which a GPU of which nothing holds is dropped
)

// ErrDamaged is the error of a file that is not one of ours, or is cut. It is left as it is until something is to be
// written.
var ErrDamaged = errors.New("the file is damaged")

// ErrNewer is the error of a file that a newer gradbus has written. It is never written to.
var ErrNewer = errors.New("the file is of a newer gradbus")

type content struct {
	Version int           `json:"version"`
	GPUs    []health.Kept `json:"gpus"`
}

// encode gives the file's text, within its bounds.
func encode(all []health.Kept, now time.Time) []byte {
	all = slices.Clone(all)
	all = slices.DeleteFunc(all, func(k health.Kept) bool {
		return !k.Holds() && max(k.AcknowledgedMS, k.ResetMS) < now.Add(-idleTime).UnixMilli()
	})
	slices.SortStableFunc(all, func(a, b health.Kept) int { // those with findings first, then the newest
		if len(a.Findings) > 0 != (len(b.Findings) > 0) {
			return len(b.Findings) - len(a.Findings)
		}
		return int(b.Counters.AtMS - a.Counters.AtMS)
	})
	all = all[:min(len(all), GPUsMax)]
	for i := range all {
		k := &all[i]
		k.Findings = slices.Clone(k.Findings[:min(len(k.Findings), findingsMax)])
		k.Incidents = k.Incidents[:min(len(k.Incidents), findingsMax)]
		k.Name, k.PCI = cut(k.Name), cut(k.PCI)
		for j := range k.Findings {
			f := &k.Findings[j]
			f.Reason, f.Action = cut(f.Reason), cut(f.Action)
		}
	}
	slices.SortStableFunc(all, func(a, b health.Kept) int { return a.Index - b.Index })
	text, err := json.Marshal(content{Version, append([]health.Kept{}, all...)})
	if err != nil {
		panic(fmt.Sprintf("numbers and texts do not become JSON: %v", err))
	}
	return append(text, '\n')
}

func cut(text string) string { return text[:min(len(text), textMax)] }

// decode reads the file's text.
func decode(text []byte) ([]health.Kept, error) {
	damaged := func(format string, args ...any) ([]health.Kept, error) {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
	}
	if len(text) > bytesMax {
		return damaged("it has more than %d bytes", bytesMax)
	}
	var head struct{ Version *int }
	if err := json.Unmarshal(text, &head); err != nil {
		return damaged("%v", err)
	}
	switch {
	case head.Version == nil || *head.Version < 1:
		return damaged("it has no version")
	case *head.Version > Version:
		return nil, fmt.Errorf("%w: version %d, and this one knows %d", ErrNewer, *head.Version, Version)
	}
	var c content
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return damaged("%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return damaged("something follows what it holds")
	}
	if len(c.GPUs) > GPUsMax {
		return damaged("%d GPUs are too many", len(c.GPUs))
	}
	known := map[string]bool{}
	for _, k := range c.GPUs {
		if err := valid(&k); err != nil {
			return damaged("GPU %.60q: %v", k.UUID, err)
		}
		if known[k.UUID] {
			return damaged("GPU %.60q is there twice", k.UUID)
		}
		known[k.UUID] = true
	}
	return c.GPUs, nil
}

// valid finds what cannot have been written.
func valid(k *health.Kept) error {
	switch {
	case !k.Keepable() || len(k.UUID) > textMax:
		return errors.New("no UUID of a GPU")
	case k.Index < 0 || k.Index >= health.GPUsMax:
		return fmt.Errorf("index %d", k.Index)
	case len(k.Findings) > findingsMax || len(k.Incidents) > findingsMax:
		return errors.New("too many findings")
	case k.AcknowledgedMS < 0 || k.ResetMS < 0:
		return errors.New("a time before 1970")
	}
	for _, f := range k.Findings {
		if f.Code == "" || f.Reason == "" || f.SinceMS <= 0 || f.SeenMS < f.SinceMS {
			return fmt.Errorf("finding %.60q is not whole", f.Code)
		}
	}
	for _, i := range k.Incidents {
		if i.AtMS <= 0 {
			return fmt.Errorf("XID %d has no time", i.XID)
		}
	}
	return nil
}
