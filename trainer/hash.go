package trainer

import (
	"fmt"
	"math/bits"

	"gradbus/philox"
	"gradbus/schema"
)

// HashID returns a row in [0, rows) for a 64-bit id, so a table of any size can serve ids that are not row numbers,
// such as user ids. rows must be at least 1.
//
//	keys[0] = append(keys[0], trainer.HashID(user, usersRows, 0))
//
//	row = high 64 bits of mix(id xor mix(salt + 0x9e3779b97f4a7c15)) * rows
//	mix = z ^= z>>30; z *= 0xbf58476d1ce4e5b9; z ^= z>>27; z *= 0x94d049bb133111eb; z ^= z>>31
//
// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014, with
// the constants of Stafford's variant 13). It is a bijection, and each bit of an id flips each bit of the result with a
// probability near one half. The product selects the row without a division (Lemire: Fast Random Integer Generation in
// an Interval, 2019); rows differ in probability by less than rows/2^64. The result will not change, and is the same in
// every language; docs/ids.md has Python and test vectors.
//
// Ids that collide share a row. Of n ids, each shares its row with another one with probability 1-(1-1/rows)^(n-1),
// about n/rows if that is small: 1 % if rows is 100 n, 9.5 % if it is 10 n, 63 % if it is n. Different salts collide
// independently: if a program adds two rows per id, with two salts, two ids share both rows with probability 1/rows^2.
func HashID(id, rows, salt uint64) uint64 {
	row, _ := bits.Mul64(mix(id^mix(salt+0x9e3779b97f4a7c15)), rows)
	return row
}

// HashString returns an id for a text, for HashID: 64-bit FNV-1a over its bytes, which are UTF-8 in most languages. Of
// n texts about n^2/2^65 pairs share an id, less than 0.001 pairs up to 100 million texts.
//
//	keys[0] = append(keys[0], trainer.HashID(trainer.HashString("user:42"), usersRows, 0))
func HashString(s string) uint64 { return philox.FNV(s) }

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// outside returns the error for a key that is out of a table's range.
func outside(spec *schema.TableSpec, key uint64) error {
	return fmt.Errorf("table %q: id %d is outside [0, %d): want the number of a row; trainer.HashID gives any id one",
		spec.Name, key, spec.Rows)
}
