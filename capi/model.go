//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"gradbus/trainer"
)

//export go_open
func go_open(t *C.gradbus_thread, path *C.char, out *C.gradbus_handle) C.int32_t {
	return now(t, func() error {
		if path == nil || out == nil {
			return fmt.Errorf("%w: path or model is NULL", errArgument)
		}
		m, err := trainer.OpenModel(C.GoString(path))
		if err == nil {
			*out = C.gradbus_handle(all.add(m))
		}
		return err
	})
}

//export go_model_job
func go_model_job(t *C.gradbus_thread, handle C.gradbus_handle, out **C.char) C.int32_t {
	return now(t, func() error {
		m, err := get[*trainer.Model](uint64(handle))
		if err != nil {
			return err
		}
		digest := m.Digest()
		return text(out, map[string]any{"job": m.Job(), "version": m.Version, "digest": hex.EncodeToString(digest[:]),
			"metadata": m.Metadata})
	})
}

//export go_model_lookup
func go_model_lookup(t *C.gradbus_thread, handle C.gradbus_handle, p *C.gradbus_ask, n C.int32_t) C.int32_t {
	return now(t, func() error {
		m, err := get[*trainer.Model](uint64(handle))
		if err != nil {
			return err
		}
		return eachAsk(p, n, func(a *C.gradbus_ask) error { return modelRows(m, a) })
	})
}

func modelRows(m *trainer.Model, a *C.gradbus_ask) error {
	if n := len(m.Job().Tables); a.table < 0 || int(a.table) >= n {
		return fmt.Errorf("%w: table %d: the model has %d", errArgument, a.table, n)
	}
	spec := &m.Job().Tables[a.table]
	keys, err := slice("keys", (*uint64)(unsafe.Pointer(a.keys)), int64(a.count))
	if err != nil {
		return err
	}
	rows, err := slice("rows", (*float32)(unsafe.Pointer(a.rows)), int64(a.count)*int64(spec.Dim))
	if err != nil {
		return err
	}
	values := m.Table(spec.Name)
	for i, key := range keys {
		if key >= spec.Rows {
			return outside(spec.Name, i, key, spec.Rows)
		}
		copy(rows[i*spec.Dim:(i+1)*spec.Dim], values[int(key)*spec.Dim:])
	}
	return nil
}

// outside says that a table has no such key.
func outside(table string, place int, key, rows uint64) error {
	return keyError(fmt.Sprintf("table %q: key number %d is %d: want 0 to %d", table, place, int64(key), rows-1))
}

// keyError is an errArgument whose text needs no more words.
type keyError string

func (e keyError) Error() string        { return string(e) }
func (e keyError) Is(target error) bool { return target == errArgument }

//export go_model_param
func go_model_param(t *C.gradbus_thread, handle C.gradbus_handle, name *C.char, to *C.float) C.int32_t {
	return now(t, func() error {
		m, err := get[*trainer.Model](uint64(handle))
		if err != nil {
			return err
		}
		if name == nil || to == nil {
			return fmt.Errorf("%w: name or values is NULL", errArgument)
		}
		values := m.Param(C.GoString(name))
		if values == nil {
			return fmt.Errorf("%w: the model has no parameter %q", errArgument, C.GoString(name))
		}
		copy(floats(to, len(values)), values)
		return nil
	})
}

//export go_model_close
func go_model_close(t *C.gradbus_thread, handle C.gradbus_handle) C.int32_t {
	return now(t, func() error {
		_, err := get[*trainer.Model](uint64(handle))
		if err == nil {
			all.remove(uint64(handle))
		}
		return err
	})
}
