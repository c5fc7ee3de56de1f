package cuda

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// threadTime is the processor time of the calling thread, which other load on the machine does not lengthen as it does
// wall time.
func threadTime(tb testing.TB) time.Duration {
	const ofThread = 3 // CLOCK_THREAD_CPUTIME_ID
	var now syscall.Timespec
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, ofThread, uintptr(unsafe.Pointer(&now)), 0); err != 0 {
		tb.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// benchVerifiedCalls are calls of the sizes that shards and trainers make.
func benchVerifiedCalls() map[string]command {
	r := rand.New(rand.NewPCG(1, 1))
	const chunk = 1 << 16 // 256 KiB
	sgd := SGD{LR: 0.1, Momentum: 0.9}
	terms := []Term{{0, 1, randomOf(r, chunk)}, {1, 1, randomOf(r, chunk)}, {2, 1, randomOf(r, chunk)},
		{3, 1, randomOf(r, chunk)}}
	param, momentum := randomOf(r, chunk), randomOf(r, chunk)
	slots := []Slot{{"momentum", momentum, zeros(chunk)}}
	const rows, dim, named = 20000, 64, 4000
	keys := keysOf(r, rows, named)
	index := make([]int64, named)
	for i, k := range keys {
		index[i] = int64(k)
	}
	table, moved := randomOf(r, rows*dim), randomOf(r, rows*dim)
	often := make([]int64, 4*named)
	for i := range often {
		often[i] = index[r.IntN(named)]
	}
	return map[string]command{
		"average apply": &AverageApply{Optimizer: sgd, Weight: 4, Lanes: 4, Terms: terms, Slots: slots, Param: param,
			Out: zeros(chunk)},
		"apply dense": &ApplyDense{Optimizer: sgd, Weight: 4, Grad: terms[0].Values, Slots: slots, Param: param,
			Out: zeros(chunk)},
		"average": &Average{Lanes: 4, Weight: 4, Terms: terms, Out: zeros(chunk)},
		"apply rows": &ApplyRows{Dim: dim, Optimizer: sgd, Weight: 2, Table: table, Index: Int64s(index),
			Grad: randomOf(r, named*dim), Out: zeros(named * dim),
			Slots: []Slot{{"momentum", moved, zeros(named * dim)}}},
		"merge": &Merge{Dim: dim, Lanes: 2, OutKeys: Uint64s(make([]uint64, 2*named)), OutRows: zeros(2 * named * dim),
			Terms: []RowsTerm{{0, 1, Uint64s(keys), randomOf(r, named*dim)},
				{1, 1, Uint64s(keysOf(r, rows, named)), randomOf(r, named*dim)}}},
		"coalesce apply": &CoalesceApply{Dim: dim, Optimizer: sgd, Weight: 2, Table: table, Keys: Int64s(often),
			Rows:    randomOf(r, len(often)*dim),
			OutKeys: Int64s(make([]int64, len(often))), Out: zeros(len(often) * dim),
			Slots: []Slot{{"momentum", moved, zeros(len(often) * dim)}}},
	}
}

// BenchmarkVerified says what it costs to have a call's blocks checked, against the same call without: pairs in turn,
// by the processor time of their thread. The fastest backend of this build is checked by the portable one, which is the
// dearest oracle.
func BenchmarkVerified(b *testing.B) {
	for name, c := range benchVerifiedCalls() {
		for _, oneIn := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/one in %d", name, oneIn), func(b *testing.B) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				plain, err := Open(Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer plain.Close()
				checked := verified(b, plain, oneIn)
				var spent [2]time.Duration
				for b.Loop() {
					for i, k := range []Backend{plain, checked} {
						began := threadTime(b)
						for range 10 {
							if _, err := c.on(k); err != nil {
								b.Fatal(err)
							}
						}
						spent[i] += threadTime(b) - began
					}
				}
				b.ReportMetric(100*(spent[1]-spent[0]).Seconds()/spent[0].Seconds(), "%cost")
			})
		}
	}
}
