package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Ids of the protocol. Each has its own type so that arguments cannot be swapped.
type (
	// JobName names a training run; it matches [a-z0-9-]{1,63} and is a token of every subject.
	JobName string
	// Member names a process within a job: t0, t1, ... for trainers, s0, s1, ... for shards, "coordinator", p-{id} for a
	// ps.
	Member string
	// RunID distinguishes two runs of one job name; the coordinator draws it when the job is registered.
	RunID uint64
	// Generation is the incarnation of a job's membership, from 1.
	Generation uint32
	// Batch is a training step, from 0. Batch b is computed on version b.
	Batch uint64
	// Version is a number of batches applied.
	Version = Batch
	// Bucket names an aggregation unit; its meaning never changes within a job.
	Bucket uint32
	// Chunk is the index of a wire frame within a round or a request.
	Chunk uint32
	// Table is the index of an embedding table in the job's manifest.
	Table uint32
	// Partition is a fixed part of a table: see PartitionOf.
	Partition uint32
	// Sequence numbers the frames of one (trainer, shard) pair, from 1.
	Sequence uint64
)

// Coordinator is the member name of a job's coordinator; All addresses every trainer.
const (
	Coordinator Member = "coordinator"
	All         Member = "all"
)

// TelemetryJob replaces a job's name in the subjects of a ps's reports. A job may have this name, too: its members are
// trainers.
const TelemetryJob JobName = "ps"

var (
	nameForm  = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	labelForm = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
)

// CheckName returns why a job or member name is invalid, or nil.
func CheckName(what, name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%s %q: want 1 to 63 of a-z, 0-9 and -", what, name)
	}
	return nil
}

// derivedMark is part of every job name that gradbus derives from another one, such as films--dense. Programs cannot
// choose such names, so the two never collide.
const derivedMark = "--"

// CheckChosen returns an error if a program chose a name of the kind that gradbus derives.
func CheckChosen(job JobName) error {
	if strings.Contains(string(job), derivedMark) {
		return fmt.Errorf("job %q: names with %s are those that gradbus derives from others: want another one", job,
			derivedMark)
	}
	return nil
}

// Chosen returns the name that a program chose for a job, also for a job that gradbus derives from it.
func (j JobName) Chosen() JobName {
	chosen, _, _ := strings.Cut(string(j), derivedMark)
	return JobName(chosen)
}

// TrainerMember returns the member name of the i-th trainer.
func TrainerMember(i int) Member { return Member(fmt.Sprintf("t%d", i)) }

// HasTrainer reports whether a member is one of the job's trainers.
func (j *Job) HasTrainer(m Member) bool {
	digits, found := strings.CutPrefix(string(m), "t")
	n, err := strconv.ParseUint(digits, 10, 31)
	return found && err == nil && int(n) < j.Trainers && m == TrainerMember(int(n))
}

// ShardMember returns the member name of the i-th shard.
func ShardMember(i int) Member { return Member(fmt.Sprintf("s%d", i)) }

// ServerIDBytesMax is the length of the longest id of a ps. Its member name is the id after p-.
const ServerIDBytesMax = 61

// ServerMember returns the member name of the ps with an id.
func ServerMember(id string) Member { return Member("p-" + id) }

// ServerID returns the id of a ps from its member name.
func (m Member) ServerID() string { return strings.TrimPrefix(string(m), "p-") }

// IsServer reports whether a member is a ps.
func (m Member) IsServer() bool { return strings.HasPrefix(string(m), "p-") }

// PartitionOf returns the partition of a key in a table that is cut into a number of partitions. It is part of the
// protocol: trainers and shards must agree. Keys come in groups of as many keys as there are partitions. A group has
// one key in each: key i of group g is in partition (i + h(g)) modulo partitions, at position g of it. h(g) is the
// splitmix64 finalizer of g, its upper 32 bits scaled to [0, partitions), so that keys of any stride are spread.
func PartitionOf(key uint64, partitions int) Partition {
	p := uint64(partitions)
	return Partition((key%p + rotation(key/p, p)) % p)
}

// rotation returns h(g), the number of partitions by which a group is rotated.
func rotation(group, partitions uint64) uint64 {
	group ^= group >> 30
	group *= 0xbf58476d1ce4e5b9
	group ^= group >> 27
	group *= 0x94d049bb133111eb
	group ^= group >> 31
	return (group >> 32) * partitions >> 32
}

// level is an open object or array.
type level struct {
	object bool
	from   int                 // index of its first name
	many   map[string]struct{} // its names, if there are more than fewNames
}

// fewNames is the number of names of an object up to which they are compared one by one.
const fewNames = 48

// names scans a JSON text without interpreting its values.
type names struct {
	levels [jsonDepthMax + 1]level
	depth  int
	seen   [][]byte // names of open objects, the innermost last; parts of the text
}

// checkNames refuses names that are not lower case or repeated within one object, nesting that is too deep, and
// anything after an object or array. It checks nothing else: it may accept invalid JSON, which the reader refuses.
// io.EOF reports that the text ends within a value.
//
// Each byte is read once. With tokens of encoding/json this took as long as everything else that is done with a report.
func checkNames(b []byte) error {
	var n names
	isName, any := false, false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case ':':
			isName = false
			continue
		case ',':
			isName = n.depth > 0 && n.levels[n.depth-1].object
			continue
		case '}', ']':
			if n.close() {
				return checkEnd(b[i+1:])
			}
			isName = false
			continue
		}
		any = true
		if n.depth > jsonDepthMax && !(c == '"' && isName) {
			return fmt.Errorf("JSON nested deeper than %d", jsonDepthMax)
		}
		switch c {
		case '{', '[':
			n.open(c == '{')
			isName = c == '{'
		case '"':
			end := stringEnd(b, i+1)
			if end < 0 {
				return io.EOF
			}
			if isName {
				if err := n.add(b[i : end+1]); err != nil {
					return err
				}
			}
			i, isName = end, false
		}
	}
	if n.depth > 0 || !any {
		return io.EOF
	}
	return nil
}

// checkEnd refuses anything but white space after a value.
func checkEnd(b []byte) error {
	if len(bytes.TrimLeft(b, " \t\n\r")) > 0 {
		return errors.New("something follows the JSON value: want exactly one")
	}
	return nil
}

func (n *names) open(object bool) {
	n.levels[n.depth] = level{object: object, from: len(n.seen)}
	n.depth++
}

// close reports whether the value ended, or is not JSON.
func (n *names) close() bool {
	if n.depth > 0 {
		n.depth--
		n.seen = n.seen[:n.levels[n.depth].from]
	}
	return n.depth == 0
}

// add adds a name with its quotes.
func (n *names) add(quoted []byte) error {
	name := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		var plain string
		if err := json.Unmarshal(quoted, &plain); err != nil {
			return err
		}
		name = []byte(plain)
	}
	if !lower(name) {
		return fmt.Errorf("JSON name %q: want lower case", name)
	}
	if n.has(&n.levels[n.depth-1], name) {
		return fmt.Errorf("JSON name %q twice in one object", name)
	}
	n.seen = append(n.seen, name)
	return nil
}

// has reports whether an object has a name, and adds it if names are in a map.
func (n *names) has(of *level, name []byte) bool {
	if of.many != nil {
		_, has := of.many[string(name)]
		of.many[string(name)] = struct{}{}
		return has
	}
	all := n.seen[of.from:]
	for _, other := range all {
		if bytes.Equal(other, name) {
			return true
		}
	}
	if len(all) >= fewNames {
		of.many = map[string]struct{}{string(name): {}}
		for _, other := range all {
			of.many[string(other)] = struct{}{}
		}
	}
	return false
}

func lower(name []byte) bool {
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			return false
		}
		if c >= 0x80 {
			return string(name) == strings.ToLower(string(name))
		}
	}
	return true
}

// stringEnd returns the index of the quote that ends the string whose text begins at from; -1 if there is none.
func stringEnd(b []byte, from int) int {
	for i := from; ; i++ {
		quote := bytes.IndexByte(b[i:], '"')
		if quote < 0 {
			return -1
		}
		i += quote
		escapes := 0
		for i-escapes > from && b[i-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
}

// Limits of the protocol. Each is checked before anything is allocated or indexed by the number.
const (
	FrameBytesMax = 8 << 20 // of one frame
	// BagKeysMax is the largest number of keys in a bag of a table that shards pool: a bag is sent in one frame.
	BagKeysMax   = FrameBytesMax / 16
	bodyBytesMax = 1 << 20 // of a JSON body
	keysMax      = 1 << 20 // in one frame
	SectionsMax  = tablesMax
	ChunksMax    = 1 << 20 // of one round or request
	DimMax       = 1 << 16 // values in a row
	tablesMax    = 1 << 12 // tables of a job
	WeightMax    = 1 << 53 // samples of a contribution, and steps of an optimizer
)

// Limits are lower limits of one reader. Zero fields mean the protocol's own.
type Limits struct {
	FrameBytesMax int
	bodyBytesMax  int
	keysMax       int
}

func (l Limits) orDefault() Limits {
	l.FrameBytesMax = limit(l.FrameBytesMax, FrameBytesMax)
	l.bodyBytesMax = limit(l.bodyBytesMax, bodyBytesMax)
	l.keysMax = limit(l.keysMax, keysMax)
	return l
}

func limit(own, protocol int) int {
	if own <= 0 || own > protocol {
		return protocol
	}
	return own
}

// Printable makes foreign text safe to print: on one line, without characters that control a terminal or are invisible.
//
//	Printable("t1\n\x1b[2Jgone") == "t1 ?[2Jgone"
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '?'
	}, text)
}

// Group reports the events of a group to all trainers of a grouped job whose manifest requests them (Job.GroupEvents):
// a request was added to it, or, with Closed, all of its rounds have closed. Shards send it before the event has any
// effect, and send none twice.
type Group struct {
	Update Batch  `json:"update"` // number of the group, from 0
	Closed bool   `json:"closed,omitempty"`
	Start  bool   `json:"start,omitempty"`                // it assigns the values of a model: StartModel
	Member Member `json:"member,omitempty"`               // sender of the request; this and the fields below are zero if Closed
	Batch  Batch  `json:"batch,omitempty"`                // number of the sender's batch
	Parked int    `json:"parked,omitempty" check:"lanes"` // requests in the group
	Size   int    `json:"size,omitempty" check:"lanes"`   // requests that the group waits for, unless trainers are gone
	AtNS   int64  `json:"at_ns,string" check:"ns"`        // nanoseconds since 1970 by the shard's clock; rises from each to the next
}

func (g *Group) check() error {
	if g.Closed {
		if g.Member != "" || g.Batch != 0 || g.Parked != 0 || g.Size != 0 {
			return fmt.Errorf("group %d is closed: want no request with it", g.Update)
		}
		return nil
	}
	if g.Member == "" || g.Parked < 1 || g.Size < 1 {
		return fmt.Errorf("group %d has %d requests of %d, the last of member %q: want at least 1, and a member", g.Update,
			g.Parked, g.Size, g.Member)
	}
	return nil
}
