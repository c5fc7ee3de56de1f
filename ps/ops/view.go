package ops

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	"gradbus/ps/ops/status"
)

// view is one update of the status, and what becomes of it for those who look: each form is made when the first asks
// for it, and shared by all. It is immutable but for that.
type view struct {
	hub    *Hub
	at     time.Time
	update status.Update
	newer  chan struct{} // closed when there is a newer one

	eventOnce, packedOnce, statusOnce sync.Once

	event, packed, status []byte
	eventErr, statusErr   error
}

// made is false of the view that stands for none, before the first.
func (v *view) made() bool { return !v.at.IsZero() }

// asEvent is the update as an event of the stream: one line of JSON, between its name and an empty line.
func (v *view) asEvent() ([]byte, error) {
	v.eventOnce.Do(func() {
		var b bytes.Buffer
		fmt.Fprintf(&b, "id: %d\nevent: update\ndata: ", v.update.Status.Serial)
		// An encoder ends its text, which has no line break within, with one; one more ends the event.
		if err := json.NewEncoder(&b).Encode(&v.update); err != nil {
			v.eventErr = fmt.Errorf("write update %d: %w", v.update.Status.Serial, err)
			return
		}
		b.WriteByte('\n')
		v.event = b.Bytes()
	})
	return v.event, v.eventErr
}

// asPacked is asEvent as a part of a gzip stream: see packer.
func (v *view) asPacked() (plain, packed []byte, err error) {
	if plain, err = v.asEvent(); err != nil {
		return nil, nil, err
	}
	v.packedOnce.Do(func() { v.packed = v.hub.packer.pack(plain) })
	return plain, v.packed, nil
}

// asStatus is the status alone, as JSON.
func (v *view) asStatus() ([]byte, error) {
	v.statusOnce.Do(func() {
		if v.status, v.statusErr = json.Marshal(&v.update.Status); v.statusErr != nil {
			v.statusErr = fmt.Errorf("write status %d: %w", v.update.Status.Serial, v.statusErr)
		}
	})
	return v.status, v.statusErr
}

// packer compresses parts of gzip streams, each once for all streams it becomes part of.
//
// What makes that possible: compressed data may be cut into blocks, a flush ends one at a byte, and a block that was
// begun with an empty window refers to nothing before it (RFC 1951). So a stream may leave parts out, and begin with
// any. (Members of a gzip file would do the same, but browsers read the first only.) The zero packer is ready.
type packer struct {
	mu     sync.Mutex
	writer *flate.Writer // reused: its tables are a mebibyte
}

// What begins and ends a gzip stream around its parts. The header names no time and no system.
var (
	gzipHead = [10]byte{0x1f, 0x8b, 8, 9: 0xff}
	gzipLast = [5]byte{1, 0, 0, 0xff, 0xff} // an empty block that is the last
)

func (p *packer) pack(plain []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b bytes.Buffer
	if p.writer == nil {
		// The fastest level: a second one would take half as much again in time for a tenth less in bytes.
		w, err := flate.NewWriter(&b, flate.BestSpeed)
		if err != nil {
			panic(err) // no such level, which is a constant
		}
		p.writer = w
	} else {
		p.writer.Reset(&b)
	}
	// A bytes.Buffer takes everything.
	_, _ = p.writer.Write(plain)
	_ = p.writer.Flush()
	return b.Bytes()
}

// gzipSum counts what a gzip stream must say of its plain bytes at its end.
type gzipSum struct{ crc, size uint32 }

func (s *gzipSum) add(plain []byte) {
	s.crc, s.size = crc32.Update(s.crc, crc32.IEEETable, plain), s.size+uint32(len(plain))
}

// end is what ends the stream.
func (s *gzipSum) end() []byte {
	b := append([]byte(nil), gzipLast[:]...)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, s.crc), s.size)
}
