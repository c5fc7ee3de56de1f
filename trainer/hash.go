package trainer

import (
	"fmt"
	"math/bits"

	"gradbus/philox"
	"gradbus/schema"
)

// HashID gives a 64-bit id a row, from 0 on, of a table of so many rows. Ids that a program does not number itself,
// such as those of users or items, so fit a table of any size:
//
//	keys[0] = append(keys[0], trainer.HashID(user, usersRows, 0))
//
//	row = high 64 bits of mix(id xor mix(salt + 0x9e3779b97f4a7c15)) * rows
//	mix = z ^= z>>30; z *= 0xbf58476d1ce4e5b9; z ^= z>>27; z *= 0x94d049bb133111eb; z ^= z>>31
//
// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014, with
// the constants of Stafford's variant 13). It is a bijection, and every bit of an id moves each bit of the result with
// a probability near one half. The product picks the row (Lemire: Fast Random Integer Generation in an Interval, 2019):
// without a division, by the high bits, and off from equal shares by less than rows/2^64. The bits are the same in
// every language and for ever; docs/ids.md has Python and vectors.
//
// Two ids may have one row, which they then share. Of n ids, each shares its row with another with the probability
// 1-(1-1/rows)^(n-1), about n/rows where that is small: 1 % of the ids where rows are 100 times as many, 9.5 % at 10
// times, 63 % at as many. Different salts collide independently: two rows of an id, by two salts, which the program
// adds up, are both shared with the same id once in rows^2.
//
// rows must be at least 1.
func HashID(id, rows, salt uint64) uint64 {
	row, _ := bits.Mul64(mix(id^mix(salt+0x9e3779b97f4a7c15)), rows)
	return row
}

// HashString gives a text an id, for HashID: FNV-1a of 64 bits over its bytes, as UTF-8 in most languages. Of n texts
// about n^2/2^65 pairs share an id: below one in a thousand up to a hundred million texts.
//
//	keys[0] = append(keys[0], trainer.HashID(trainer.HashString("user:42"), usersRows, 0))
func HashString(s string) uint64 { return philox.FNV(s) }

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// outside says that a key is not one of a table's.
func outside(spec *schema.TableSpec, key uint64) error {
	return fmt.Errorf("table %q: id %d is outside [0, %d): want the number of a row; trainer.HashID gives any id one",
		spec.Name, key, spec.Rows)
}
