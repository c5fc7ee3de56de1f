package chaos

import (
	"slices"
	"time"
)

// Direction is the direction of a message.
type Direction uint8

const (
	ToServer   Direction = iota // from members: PUB and HPUB
	FromServer                  // to members: MSG and HMSG
	directions
)

func (d Direction) String() string { return [...]string{"to server", "from server"}[d] }

// Rule says what happens to some of the messages. The five shares are of the messages that match, each 0 to 1, their
// sum at most 1: a message is harmed in at most one way.
type Rule struct {
	Direction Direction
	Kinds     []string // fifth tokens of subjects; nil: all. Other matches subjects that are not of gradbus
	Members   []string // names of connections, as in the members' CONNECT; nil: all

	Drop    float64 // dropped
	Repeat  float64 // passed on twice
	Delay   float64 // passed on up to DelayMax later; later messages do not wait
	Reorder float64 // passed on after 1 to 8 later messages of its connection, or after DelayMax if there are none
	Flip    float64 // one bit of the payload is changed; a message without a payload is passed on

	DelayMax time.Duration // 0: 20 ms
}

const (
	delayMaxDefault = 20 * time.Millisecond
	reorderMax      = 8 // bound of the later messages that a reordered one waits for
)

// Other is the kind of messages whose subject is not one of gradbus.
const Other = "other"

func (r *Rule) matches(d Direction, member, kind string) bool {
	return r.Direction == d && (r.Kinds == nil || slices.Contains(r.Kinds, kind)) &&
		(r.Members == nil || slices.Contains(r.Members, member))
}

// fate is the treatment of one message.
type fate uint8

const (
	pass fate = iota
	drop
	repeat
	delay
	reorder
	flip
)

// fate maps [0, 1) to the treatments of the rule.
func (r *Rule) fate(u float64) fate {
	for _, share := range []struct {
		of   float64
		fate fate
	}{{r.Drop, drop}, {r.Repeat, repeat}, {r.Delay, delay}, {r.Reorder, reorder}, {r.Flip, flip}} {
		if u < share.of {
			return share.fate
		}
		u -= share.of
	}
	return pass
}

// dice draws for messages: a pure function of seed, direction, member, subject and the number of earlier messages of
// these.
type dice struct {
	seed        uint64
	now, before map[uint64]uint64 // messages seen, by key; two generations, so that memory is bounded
}

// subjectsMax is the size of a generation.
const subjectsMax = 1 << 16

func newDice(seed uint64) *dice { return &dice{seed: seed, now: map[uint64]uint64{}} }

// roll draws 64 bits for the next message. Not safe for concurrent use.
func (d *dice) roll(direction Direction, member string, subject []byte) uint64 {
	key := mix(d.seed + uint64(direction))
	for i := range len(member) {
		key = (key ^ uint64(member[i])) * 0x100000001b3 // FNV-1a, 64 bits
	}
	key = mix(key)
	for _, c := range subject {
		key = (key ^ uint64(c)) * 0x100000001b3
	}
	n, ok := d.now[key]
	if !ok {
		n = d.before[key]
		if len(d.now) == subjectsMax {
			d.now, d.before = make(map[uint64]uint64, subjectsMax), d.now
		}
	}
	d.now[key] = n + 1
	return mix(mix(key) + n)
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
