//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gradbus/internal/gpu"
)

// listen asks the driver for events of every GPU. It gives nil where it sends none, and the indices of the GPUs for
// which it does not.
func (p *probe) listen() (events nvml.EventSet, without []int) {
	works := p.has("nvmlEventSetCreate") && p.has("nvmlDeviceRegisterEvents") &&
		p.has("nvmlDeviceGetSupportedEventTypes") && p.has(fnEventWait()...)
	if works {
		set, ret := p.api.EventSetCreate()
		works, events = ret == nvml.SUCCESS, set
	}
	any := false
	for _, d := range p.devices {
		if !works || d.handle == nil || !register(d.handle, events) {
			without = append(without, d.id.Index)
			continue
		}
		any = true
	}
	if !any {
		return nil, without
	}
	return events, without
}

func register(h nvml.Device, events nvml.EventSet) bool {
	supported, ret := h.GetSupportedEventTypes()
	if ret != nvml.SUCCESS || supported&nvml.EventTypeXidCriticalError == 0 {
		return false
	}
	return h.RegisterEvents(nvml.EventTypeXidCriticalError, events) == nvml.SUCCESS
}

// eventWait is how long one call waits for an event; the call may also hang for ever.
const eventWait = time.Second

// waitEvents passes events on until ctx ends.
func (p *probe) waitEvents(ctx context.Context, events nvml.EventSet) error {
	for ctx.Err() == nil {
		e, ret := events.Wait(uint32(eventWait.Milliseconds()))
		switch ret {
		case nvml.SUCCESS:
			if e.EventType != nvml.EventTypeXidCriticalError {
				continue
			}
			x := &gpu.XID{Number: e.EventData, Source: gpu.SourceEvent}
			if d := p.of(e.Device); d != nil {
				x.UUID, x.PCI = d.id.UUID, d.id.PCI
				if err := p.out.write(gpu.Line{XID: x}); err != nil {
					return err
				}
			}
		case nvml.ERROR_TIMEOUT:
		default: // such as a lost GPU, which samples tell of too: it may answer so at once, again and again
			select {
			case <-ctx.Done():
			case <-time.After(eventWait):
			}
		}
	}
	return nil
}

// of finds the GPU of an event.
func (p *probe) of(h nvml.Device) *device {
	for _, d := range p.devices {
		if d.handle == h {
			return d
		}
	}
	if h == nil {
		return nil
	}
	if uuid, ret := h.GetUUID(); ret == nvml.SUCCESS {
		for _, d := range p.devices {
			if d.id.UUID == uuid {
				return d
			}
		}
	}
	return nil
}

// openKernelLog opens the kernel's log at its end.
func openKernelLog(path string) (*os.File, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	_, _ = syscall.Seek(fd, 0, io.SeekEnd) // what was before is of before
	return os.NewFile(uintptr(fd), path), nil
}

// xidLine is a line of the kernel's log about a XID: "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the
// bus."
var xidLine = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+),?\s*(.*)`)

// parseXID finds an XID in a line of the kernel's log; nil where there is none.
func parseXID(line string) *gpu.XID {
	const textMax = 200
	match := xidLine.FindStringSubmatch(line)
	if match == nil {
		return nil
	}
	number, err := strconv.ParseUint(match[2], 10, 32)
	if err != nil {
		return nil
	}
	text := match[3]
	if len(text) > textMax {
		text = text[:textMax]
	}
	return &gpu.XID{PCI: match[1], Number: number, Source: gpu.SourceKernel, Text: text}
}

// readKernelLog passes XIDs on until ctx ends or the log cannot be read any more.
func (p *probe) readKernelLog(ctx context.Context, log *os.File) error {
	go func() {
		<-ctx.Done()
		_ = log.SetReadDeadline(time.Now())
	}()
	record := make([]byte, 8<<10) // one read gives one record, and a record is not longer
	for ctx.Err() == nil {
		n, err := log.Read(record)
		switch {
		case errors.Is(err, syscall.EPIPE):
			// records were overwritten before they were read; the next read goes on after them
			continue
		case err != nil:
			return nil //nolint:nilerr // events remain
		}
		if x := parseXID(string(record[:n])); x != nil {
			if err := p.out.write(gpu.Line{XID: x}); err != nil {
				return err
			}
		}
	}
	return nil
}
