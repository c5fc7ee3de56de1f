package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// VerifyAuto is one block in verifyDefault where the backend is a GPU's, and none elsewhere; see Options.Verify.
const VerifyAuto = -1

// verifyDefault is one block in how many VerifyAuto takes on a GPU: some 0.1 % of the arithmetic.
const verifyDefault = 1000

// Verified is a backend whose results are computed again, one block in so many, by another backend, and compared bit by
// bit: whatever writes parameters, the state of an optimizer, or the sums of contributions that both follow from. These
// are ApplyDense, AverageApply, ApplyRows, CoalesceApply, Average, Merge and Copy, alone or in a Batch. What a trainer
// computes of its own samples goes through: passes, losses, and the gradients of a lane (BagBackward, Coalesce,
// MatMul). Streams, whose results stay where the host cannot read them, are refused. TestVerifiedKnowsEveryMethod holds
// this list to the interface.
//
// Blocks are whole rows of some 4096 values (verifyValues), at most 64 rows. Each has a number, in the order in which
// calls come, and of each oneIn in turn one is checked, which one being a fixed function of a seed: so every block has
// the same chance, of whatever call and wherever it lies in it, and with oneIn 1 all are checked. A call that does not
// replace what it reads is checked after it, block by block, in the memory of one block; a call in place keeps what the
// oracle made of its blocks until it is done, one oneIn-th of its results. CoalesceApply goes over its keys once more
// for its blocks.
type Verified struct {
	Backend
	oracle   Backend
	oneIn    uint64
	seed     uint64
	ownsBoth bool // Close closes the oracle, too

	blocks     atomic.Uint64 // that went through
	checked    atomic.Uint64
	mismatches atomic.Uint64
	pool       sync.Pool // of *trial
}

// Verify checks one block in oneIn of what a backend writes with an oracle, which must live as long. A result that
// differs gives a *MismatchError, which wraps ErrVerify.
//
//	gpu, _ := Open(Options{Name: "cuda"})
//	cpu, _ := Open(Options{Name: "cpu"})
//	b, err := Verify(gpu, cpu, 1000)
func Verify(b, oracle Backend, oneIn int) (*Verified, error) {
	if oneIn < 1 {
		return nil, fmt.Errorf("verify one block in %d: %w, want at least 1", oneIn, ErrArgument)
	}
	v := &Verified{Backend: b, oracle: oracle, oneIn: uint64(oneIn)}
	v.pool.New = func() any { return new(trial) }
	return v, nil
}

// verifiedBy puts the oracle that Options ask for beside a backend, which it closes where it fails. A GPU is checked by
// the native CPU backend, and that by the portable one; the portable one by a second of its kind, which finds what
// memory or a processor did wrong and not what the program does.
func verifiedBy(b Backend, o Options) (Backend, error) {
	oneIn := o.Verify
	if oneIn == VerifyAuto {
		oneIn = 0
		if b.Name() == "cuda" {
			oneIn = verifyDefault
		}
	}
	if oneIn == 0 {
		return b, nil
	}
	name := "go"
	if b.Name() == "cuda" {
		name = "cpu"
	}
	oracle, err := open(Options{Name: name})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verify: %w", err), b.Close())
	}
	v, err := Verify(b, oracle, oneIn)
	if err != nil {
		return nil, errors.Join(err, oracle.Close(), b.Close())
	}
	v.seed, v.ownsBoth = o.VerifySeed, true
	if o.Log != nil {
		o.Log.Info("what the backend writes is verified", "one_in", oneIn, "by", oracle.Name(), "seed", o.VerifySeed)
	}
	return v, nil
}

// Checked is how many blocks were checked, and how many of these differed.
func (v *Verified) Checked() (blocks, mismatches uint64) {
	return v.checked.Load(), v.mismatches.Load()
}

// Injected reports whether a wrong bit was written because Options.WrongBits asked for it.
func (v *Verified) Injected() bool {
	w, ok := v.Backend.(interface{ injected() bool })
	return ok && w.injected()
}

// OneIn is what share of blocks is checked.
func (v *Verified) OneIn() int { return int(v.oneIn) }

// Close implements Backend. The oracle is closed where Open gave it.
func (v *Verified) Close() error {
	err := v.Backend.Close()
	if v.ownsBoth {
		err = errors.Join(err, v.oracle.Close())
	}
	return err
}

func (v *Verified) reason() string {
	return fmt.Sprintf("%s; one optimizer block in %d checked by %s (%s)", reasonOf(v.Backend), v.oneIn, v.oracle.Name(),
		v.oracle.ISA())
}

// openQueue refuses: what a stream writes stays on the device, and nothing that is not checked may go through here.
func (v *Verified) openQueue() (queue, error) {
	return nil,
		fmt.Errorf("%w: backend %s is verified, which needs results that the host can read: open a stream on one that is not",
			ErrUnsupported, v.Name())
}

// due is the first block to be checked in [from, end); false where there is none.
func (v *Verified) due(from, end uint64) (uint64, bool) {
	for ; from < end; from = (from/v.oneIn + 1) * v.oneIn {
		turn := from / v.oneIn
		if at := turn*v.oneIn + mix(turn+v.seed*0x9e3779b97f4a7c15)%v.oneIn; at >= from {
			return at, at < end
		}
	}
	return 0, false
}

// number counts blocks that go through: those of this call are [first, first+blocks). due says that some are to be
// checked.
func (v *Verified) number(blocks int) (first uint64, due bool) {
	if blocks <= 0 {
		return 0, false
	}
	end := v.blocks.Add(uint64(blocks))
	first = end - uint64(blocks)
	_, due = v.due(first, end)
	return first, due
}

// mix is splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// check does a call of which blocks are due, and checks those. again has the oracle do one block, and notes in the
// trial what to compare. Where the call replaces what it reads (inPlace) the oracle goes first.
func (v *Verified) check(op string, first uint64, blocks int, inPlace bool, call func() error, again func(t *trial,
	block int) error) error {
	t := v.borrow()
	defer v.giveBack(t)
	end := first + uint64(blocks)
	var refused error
	if inPlace {
		for at, ok := v.due(first, end); ok && refused == nil; at, ok = v.due(at+1, end) {
			t.begin(int(at - first))
			refused = again(t, t.block)
		}
	}
	if err := call(); err != nil {
		return err
	}
	if inPlace {
		return v.settle(op, t, refused)
	}
	for at, ok := v.due(first, end); ok; at, ok = v.due(at+1, end) {
		t.clear()
		t.begin(int(at - first))
		if err := v.settle(op, t, again(t, t.block)); err != nil {
			return err
		}
	}
	return nil
}

// settle compares what the backend has done with what the oracle made of it, or failed to.
func (v *Verified) settle(op string, t *trial, refused error) error {
	v.checked.Add(uint64(t.blocks))
	if e, ok := refused.(*MismatchError); ok { // the oracle has seen it
		return v.mismatch(op, e)
	}
	if refused != nil { // arguments that the backend has taken
		v.mismatches.Add(1)
		return fmt.Errorf("%w: %s: %s took what %s refuses: %w", ErrVerify, op, v.Name(), v.oracle.Name(), refused)
	}
	for i := range t.parts {
		if e := t.parts[i].differs(); e != nil {
			return v.mismatch(op, e)
		}
	}
	return nil
}

func (v *Verified) mismatch(op string, e *MismatchError) error {
	v.mismatches.Add(1)
	e.Op, e.backend, e.oracle = op, v.Name(), v.oracle.Name()
	e.injected = v.Injected()
	return e
}

func (v *Verified) borrow() *trial { return v.pool.Get().(*trial) }

func (v *Verified) giveBack(t *trial) {
	t.clear()
	v.pool.Put(t)
}
