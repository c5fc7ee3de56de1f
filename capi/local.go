//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"gradbus/cuda"
	"gradbus/local"
	"gradbus/trainer"
)

// shards are those of gradbus_local.
type shards struct {
	*local.Shards
	sessions atomic.Int32 // below 0 once they are closing
	backend  cuda.Backend
	log      *os.File // or nil
}

const closing = -1 << 30

// checkpointsIn sets the folder of checkpoints; an empty one changes nothing. A session at a ps has no shards.
func (s *shards) checkpointsIn(folder string) error {
	if folder == "" {
		return nil
	}
	if s == nil {
		return fmt.Errorf("%w: checkpoint_dir %s: want it of a session of gradbus_local alone", errConfig, folder)
	}
	if err := s.SetFolder(folder); err != nil {
		return fmt.Errorf("%w: %w", errFile, err)
	}
	return nil
}

// memoryMiBMax keeps memory_mib within what a number of bytes can say.
const memoryMiBMax = 1 << 30

// arithmetic are the options that say what computes.
type arithmetic struct {
	Backend string `json:"backend"`
	Library string `json:"library"`
	Threads int    `json:"threads"`
}

func (a *arithmetic) open(log *slog.Logger) (cuda.Backend, error) {
	b, err := cuda.Open(cuda.Options{Name: a.Backend, Library: a.Library, Threads: a.Threads, Log: log})
	if err != nil {
		return nil, fmt.Errorf("%w: backend: %w", errConfig, err)
	}
	return b, nil
}

// options reads JSON of a caller's. Nothing is {}.
func options(text *C.char, to any) error {
	if text == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(C.GoString(text))))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil && !errors.Is(err, io.EOF) {
		field, _ := strings.CutPrefix(err.Error(), "json: unknown field ")
		if field, _ = strconv.Unquote(field); renamed[field] != "" {
			return fmt.Errorf("%w: %q is called %q now", errConfig, field, renamed[field])
		}
		return fmt.Errorf("%w: %w", errConfig, err)
	}
	if d.More() {
		return fmt.Errorf("%w: text behind the options", errConfig)
	}
	return nil
}

// logTo appends warnings to a file; without a path it discards them.
func logTo(path string) (*slog.Logger, *os.File, error) {
	if path == "" {
		return slog.New(slog.DiscardHandler), nil, nil
	}
	// a pipe that no program reads is an error, and not waited for
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o666)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: log: %w", errFile, err)
	}
	return slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelWarn})), f, nil
}

//export go_local
func go_local(t *C.gradbus_thread, text *C.char, out *C.gradbus_handle) C.int32_t {
	return now(t, func() error {
		var o struct {
			arithmetic
			Shards    int    `json:"shards"`
			MemoryMiB int64  `json:"memory_mib"` // that jobs may hold; 0: three quarters of the machine's
			Log       string `json:"log"`
			// As the flags of ps of these names.
			CheckpointDir  string `json:"checkpoint_dir"`
			CheckpointKeep int    `json:"checkpoint_keep"`
		}
		if out == nil {
			return fmt.Errorf("%w: shards is NULL", errArgument)
		}
		if err := options(text, &o); err != nil {
			return err
		}
		if o.MemoryMiB < 0 || o.MemoryMiB > memoryMiBMax {
			return fmt.Errorf("%w: memory_mib %d: want at most %d, or 0 for three quarters of the machine's memory", errConfig,
				o.MemoryMiB, memoryMiBMax)
		}
		log, file, err := logTo(o.Log)
		if err != nil {
			return err
		}
		backend, err := o.open(log)
		if err != nil {
			file.Close()
			return err
		}
		s, err := local.Start(context.Background(), local.Options{Shards: o.Shards, Backend: backend, Log: log,
			MemoryBytesMax: o.MemoryMiB << 20, MemorySetting: "memory_mib",
			CheckpointDir: o.CheckpointDir, CheckpointKeep: o.CheckpointKeep})
		if err != nil {
			backend.Close()
			file.Close()
			return fmt.Errorf("%w: %w", errConfig, err)
		}
		*out = C.gradbus_handle(all.add(&shards{Shards: s, backend: backend, log: file}))
		return nil
	})
}

//export go_local_close
func go_local_close(t *C.gradbus_thread, handle C.gradbus_handle) C.int32_t {
	return now(t, func() error {
		s, err := get[*shards](uint64(handle))
		if err != nil {
			return err
		}
		if !s.sessions.CompareAndSwap(0, closing) {
			return fmt.Errorf("%w: sessions of these shards that have not left: %d", trainer.ErrOrder, s.sessions.Load())
		}
		all.remove(uint64(handle))
		s.Close()
		s.log.Close()
		return s.backend.Close()
	})
}

// addresses bounds the memory of a process in bytes; a product of one slice's length and a table's dim is below 2^63.
const addresses = 1 << 47

// slice is n elements at a caller's pointer.
func slice[T any](what string, p *T, n int64) ([]T, error) {
	if n < 0 || n > 0 && p == nil || n > addresses/int64(unsafe.Sizeof(*p)) {
		return nil, fmt.Errorf("%w: %s: %d elements at %p", errArgument, what, n, unsafe.Pointer(p))
	}
	if n == 0 {
		return nil, nil
	}
	return unsafe.Slice(p, n), nil
}
