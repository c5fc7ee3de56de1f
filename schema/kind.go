package schema

import "strconv"

// Kind says what a frame is for. The numbers are part of the protocol.
type Kind uint16

const (
	KindDense     Kind = 1  // a chunk of a dense gradient, summed over a node's lanes: trainer to shard
	KindSparse    Kind = 2  // gradients of table rows, summed over a node's lanes: trainer to shard
	KindMean      Kind = 3  // the result of a dense chunk, or of a sparse round: owner to trainers
	KindLookup    Kind = 4  // a request for rows by key: trainer to shard
	KindRows      Kind = 5  // rows: the answer to a lookup or to a pull of a table
	KindPull      Kind = 6  // a request for a kept result, for parameters or for a part of a table: trainer to shard
	KindAck       Kind = 7  // what has been received, and how much more may be in flight
	KindControl   Kind = 8  // membership: a Control as JSON
	KindHeartbeat Kind = 9  // a sign of life; with a telemetry report, when one is due, as JSON
	KindRefusal   Kind = 10 // a frame was not taken: a Refusal as JSON

	KindForward  Kind = 11 // the input of a hosted module: trainer to shard
	KindBackward Kind = 12 // the gradient of the loss by a module's output, for a context: trainer to shard
	KindStep     Kind = 13 // a request to step a module's parameters by the gradients of contexts: trainer to shard
	KindWeights  Kind = 14 // a request for a module's parameters, or for a context's gradients: trainer to shard
	KindOutput   Kind = 15 // what a module answers: shard to trainer

	// KindState is a piece of what a shard or trainer has at one version: to the ps that stands by, or to who asks for it.
	KindState Kind = 16
)

// kindMax is the greatest kind of this version.
const kindMax = KindState

var kindNames = [kindMax + 1]string{
	KindDense: "dense", KindSparse: "sparse", KindMean: "mean", KindLookup: "lookup", KindRows: "rows", KindPull: "pull",
	KindAck: "ack", KindControl: "control", KindHeartbeat: "beat", KindRefusal: "refusal",
	KindForward: "forward", KindBackward: "backward", KindStep: "step", KindWeights: "weights", KindOutput: "output",
	KindState: "state",
}

// String is the kind's name, or its number where it has none.
func (k Kind) String() string {
	if k > 0 && k <= kindMax {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// DType is the type of a frame's values.
type DType uint16

const (
	DTypeNone     DType = 0 // the kind has no values
	DTypeFloat32  DType = 1 // IEEE 754 binary32, little-endian
	DTypeBFloat16 DType = 2 // the upper half of a binary32; gradients only
	DTypeFloat16  DType = 3 // IEEE 754 binary16; gradients only
)

// dtypeMax is the greatest type of this version.
const dtypeMax = DTypeFloat16

// dtypes has the types' names, as manifests spell those of gradients, and the sizes of their values.
var dtypes = [dtypeMax + 1]struct {
	name  string
	bytes int
}{{"none", 0}, {GradientsFloat32, 4}, {GradientsBFloat16, 2}, {GradientsFloat16, 2}}

// Bytes is the size of one value, 0 for DTypeNone and for unknown types.
func (d DType) Bytes() int {
	if d > dtypeMax {
		return 0
	}
	return dtypes[d].bytes
}

// String is the type's name, or its number where it has none.
func (d DType) String() string {
	if d > dtypeMax {
		return "dtype " + strconv.Itoa(int(d))
	}
	return dtypes[d].name
}

// Flags of a head. Bits that are not listed are zero.
const (
	// FlagMore, of rows that answer a pull: keys above the last one are still to be asked for. Of state: the piece is of
	// what has changed since the version before in the series, and the rest is as it was.
	FlagMore uint32 = 1 << 0
	// FlagParameters, of a mean: the values are the new parameters, not an average. Of a pull: parameters are asked for,
	// and where trainers have them, what the optimizer keeps of them, too. Of state: the piece is of a parameter.
	FlagParameters uint32 = 1 << 1
	// FlagEvaluate, of a forward: nothing is dropped, and no context is opened.
	FlagEvaluate uint32 = 1 << 2
	// FlagInput, of a backward: the gradient by the module's input is asked for too.
	FlagInput uint32 = 1 << 3
	// FlagStep, of a backward: a step by its context follows at once.
	FlagStep uint32 = 1 << 4
	// FlagGradients, of a weights frame: the gradients of its context are asked for, not the parameters.
	FlagGradients uint32 = 1 << 5
	// FlagComplete, of a trainer's heartbeat or leave: it is between two runs, and every batch that it took part in is
	// complete.
	FlagComplete uint32 = 1 << 6
	// FlagNarrow, of a contribution: its sender's window is narrower than was granted, so that each frame is to be
	// acknowledged at once. A receiver that waits for a quarter of what it granted might wait for more than may come.
	FlagNarrow uint32 = 1 << 7
	// FlagCopy, of a mean, or of rows that answer a lookup: the version that it makes, or that they are of, is being
	// written down, and the trainer of lane 0 is asked for what trainers own of it.
	FlagCopy uint32 = 1 << 8
)

// rule is what a kind's frames hold; the table in docs/protocol.md is made from it. What a kind does not have is zero,
// absent or empty.
type rule struct {
	place   place // bucket, chunk and chunks
	node    need  // node, of the tree over lanes
	weight  bool
	offset  bool
	flags   uint32
	values  bool // values; then dtype says of which type
	half    bool // values may be of 16 bits
	keys    bool // sections and keys
	rows    bool // values are exactly the rows of the sections' keys
	someRow bool // where there are sections, likewise; else values are a chunk's
	// sections may hold bags; their values, where the kind has them, are then exactly one row for each bag
	bags     bool
	pooled   bool     // bags have no keys here: only how many there are
	contexts contexts // keys are contexts, of no section; as many
	module   bool     // it is about a hosted module, whose index is the bucket
	ack      bool     // an ack, always
	body     need
	repeats  bool // the head repeats that of a refused frame and is not checked
}

// place is what a kind's bucket, chunk and chunks are.
type place uint8

const (
	placeNone   place = iota // zero
	placeChunk               // chunk < chunks
	placeSeries              // chunk < chunks, or any chunk where chunks is 0: how many there are is not known
)

// need is whether a kind has a part.
type need uint8

const (
	never need = iota
	maybe
	always
)

var rules = [kindMax + 1]rule{
	KindDense: {place: placeChunk, node: always, weight: true, offset: true, flags: FlagNarrow, values: true, half: true},
	KindSparse: {place: placeChunk, node: always, weight: true, flags: FlagNarrow, values: true, half: true, keys: true,
		rows: true, bags: true},
	KindMean: {place: placeChunk, node: maybe, weight: true, offset: true, flags: FlagParameters | FlagCopy, values: true,
		keys: true, someRow: true},
	KindLookup: {place: placeChunk, keys: true, bags: true},
	KindRows: {place: placeSeries, weight: true, offset: true, flags: FlagMore | FlagCopy, values: true, keys: true,
		rows: true, bags: true, pooled: true},
	KindPull:      {place: placeSeries, flags: FlagParameters, keys: true},
	KindAck:       {ack: true},
	KindControl:   {flags: FlagComplete, body: always},
	KindHeartbeat: {flags: FlagComplete, body: maybe},
	KindRefusal:   {body: always, repeats: true},

	KindForward: {module: true, place: placeChunk, node: always, weight: true, offset: true, flags: FlagEvaluate,
		values: true},
	KindBackward: {module: true, place: placeChunk, weight: true, offset: true, flags: FlagInput | FlagStep, values: true,
		contexts: contexts{1, 1}},
	KindStep:    {module: true, place: placeChunk, weight: true, contexts: contexts{1, moduleContextsMax}},
	KindWeights: {module: true, place: placeSeries, flags: FlagGradients, contexts: contexts{0, 1}},
	KindOutput:  {module: true, place: placeChunk, offset: true, values: true, contexts: contexts{0, 1}},

	KindState: {place: placeSeries, weight: true, offset: true, flags: FlagMore | FlagParameters, values: true,
		keys: true},
}
