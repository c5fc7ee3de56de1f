// Package philox draws the random numbers of gradbus. New returns a sequence for a seed and a purpose; FillTensor and
// FillRow write initial values.
//
// The numbers are counter-based: each is a pure function of (seed, purpose, position), so every trainer and every shard
// draws the same one without communication, in any order and from any batch on. The generator is Philox4x32-10 (Salmon,
// Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC11), which passes BigCrush and needs two
// multiplications per round.
//
// The package knows seeds, names and positions. It must not know jobs, the placement of tables, trainers or backends,
// and it imports nothing of the project. Every value that it returns is part of the protocol: trainers and shards of
// different builds, on different processors, must agree on every bit. So all floating-point operations have explicit
// rounding (Go would otherwise fuse x*y + z on some processors), and logarithms are its own. A newcomer may add
// purposes and distributions but never change the values of existing ones; golden values in the tests check that.
package philox

import "fmt"

// Multipliers and key increments of Philox4x32 (Random123, philox.h).
const (
	multiplier0 = 0xD2511F53
	multiplier1 = 0xCD9E8D57
	increment0  = 0x9E3779B9
	increment1  = 0xBB67AE85
)

// Block computes Philox4x32-10: it enciphers a 128-bit counter under a 64-bit key. Distinct counters give distinct
// blocks.
//
//	philox.Block([4]uint32{}, [2]uint32{}) // 6627e8d5 e169c58d bc57ac4c 9b00dbd8
func Block(counter [4]uint32, key [2]uint32) [4]uint32 {
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := key[0], key[1]
	for range 10 {
		p0 := uint64(multiplier0) * uint64(c0)
		p1 := uint64(multiplier1) * uint64(c2)
		c0, c1, c2, c3 = uint32(p1>>32)^c1^k0, uint32(p1), uint32(p0>>32)^c3^k1, uint32(p0)
		k0 += increment0
		k1 += increment1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// pair splits a 64-bit number into two words, low word first, the form of numbers in counters and keys.
func pair(x uint64) (uint32, uint32) { return uint32(x), uint32(x >> 32) }

func block(lo, hi uint64, key [2]uint32) [4]uint32 {
	c0, c1 := pair(lo)
	c2, c3 := pair(hi)
	return Block([4]uint32{c0, c1, c2, c3}, key)
}

// FNV returns the 64-bit FNV-1a hash of a name.
func FNV(name string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(name) {
		h ^= uint64(name[i])
		h *= 0x100000001b3
	}
	return h
}

// Source is a sequence of random numbers. The zero value is the sequence of key 0; New makes others. A Source is not
// safe for concurrent use, and copying it copies its position.
type Source struct {
	key  [2]uint32
	high uint64 // upper half of the counter: distinguishes sequences of one key
	next uint64 // lower half of the counter: the next block
	rest [4]uint32
	left int // unused words of rest: its last ones
}

// New returns the sequence of (seed, purpose, a, b, c), for instance New(seed, "dropout", batch, lane, layer).
//
// Two blocks fold the five into a key and the upper half of the counter: x = Block(FNV(purpose), a) under the seed,
// then y = Block(b, c) under x's first two words; the sequence is Block(0, h), Block(1, h), ... under y's first two
// words, with h = y's last two words xor x's last two.
func New(seed uint64, purpose string, a, b, c uint64) Source {
	s0, s1 := pair(seed)
	x := block(FNV(purpose), a, [2]uint32{s0, s1})
	y := block(b, c, [2]uint32{x[0], x[1]})
	high := uint64(y[2]^x[2]) | uint64(y[3]^x[3])<<32
	return Source{key: [2]uint32{y[0], y[1]}, high: high}
}

// uint32 returns the next 32 random bits.
func (s *Source) uint32() uint32 {
	if s.left == 0 {
		s.rest = block(s.next, s.high, s.key)
		s.next++
		s.left = 4
	}
	s.left--
	return s.rest[3-s.left]
}

// Uint64 returns the next 64 random bits, the first word lowest.
func (s *Source) Uint64() uint64 {
	low := s.uint32()
	return uint64(low) | uint64(s.uint32())<<32
}

// Uniform returns the next number in [0, 1), a multiple of 2^-24.
func (s *Source) Uniform() float32 { return uniform32(s.uint32()) }

// Normal returns the next standard normal number.
func (s *Source) Normal() float64 { return normal64(s.uint32()) }

// Below returns the next integer in [0, n), each equally likely: the upper half of n times 32 random bits, drawn again
// while the lower half shows that the remainder would favor some integers (Lemire: Fast Random Integer Generation in an
// Interval, 2019). It panics if n is 0.
func (s *Source) Below(n uint32) uint32 {
	if n == 0 {
		panic("philox: Below(0)")
	}
	product := uint64(s.uint32()) * uint64(n)
	if uint32(product) < n {
		for unfair := -n % n; uint32(product) < unfair; {
			product = uint64(s.uint32()) * uint64(n)
		}
	}
	return uint32(product >> 32)
}

// Mask writes a dropout mask: each value is 0 with probability p, rounded up to a multiple of 2^-24, else 1/(1-p), from
// one uniform number per value. p is in [0, 1]; if it is 1, all values are 0.
//
//	s := New(seed, "dropout", batch, lane, layer); s.Mask(mask, 0.5) // mask is 0 2 2 0 ...
func (s *Source) Mask(mask []float32, p float32) {
	if !(p >= 0 && p <= 1) {
		panic(fmt.Sprintf("philox: Mask with probability %v", p))
	}
	keep := float32(1) / (1 - p)
	for i := range mask {
		mask[i] = 0
		if s.Uniform() >= p {
			mask[i] = keep
		}
	}
}

// Permutation returns the order in which an epoch runs through n examples: each of 0..n-1 once, a pure function of
// (seed, epoch, n). It shuffles by Fisher-Yates from the last position down, with the sequence New(seed, "permutation",
// epoch, n, 0).
func Permutation(seed, epoch uint64, n int) []int32 {
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	s := New(seed, "permutation", epoch, uint64(n), 0)
	for i := n - 1; i > 0; i-- {
		j := s.Below(uint32(i) + 1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}
