package schema

import (
	"fmt"
	"strings"
)

// Plan is a manifest resolved once into typed choices. Only this file, and the checks of manifests, read mode strings;
// other code uses the plan in a Placement. It is read-only once made, and may be shared.
type Plan struct {
	Clock Clock
	Ahead int // batches that a trainer may be ahead of the version it computes on; 0 in sync, async and grouped
	Group int // contributors to an update in ClockGrouped; else 0

	Roundless     bool  // there are neither parameters nor tables, so nothing is aggregated
	Reducer       Party // party that aggregates dense gradients
	Owner         Party // party that owns dense parameters and their optimizer
	Summing       Summing
	DType         DType // of gradients on the wire
	ErrorFeedback bool
	SkipNonfinite bool // treat a lane whose gradient is not finite as absent from its batch

	// AsyncTables applies each trainer's contribution to tables alone when it arrives, while dense gradients are
	// averaged over all trainers.
	AsyncTables bool
	Tables      []TablePlan // by index of the manifest

	exact      bool // an optimizer catches up on the batches that a row missed
	modules    bool // shards host modules
	globalClip bool // the norm of all gradients together is clipped
}

// TablePlan is the plan of one table.
type TablePlan struct {
	Cut     Cut
	Owner   Party // party that has its rows: ByTrainers if each trainer has all of them
	Reducer Party // party that aggregates its gradients
}

// Clock is the rule by which trainers share a round, by which it closes, and by which its result is sent.
type Clock uint8

const (
	ClockBounded Clock = iota // all trainers, when all have contributed; sync is no batch ahead
	ClockEach                 // async: each trainer has rounds of its own, which close with its contribution
	ClockGrouped              // the next Plan.Group contributions from any trainers
)

// Common reports whether rounds belong to all trainers, under the same batch number.
func (c Clock) Common() bool { return c == ClockBounded }

// Waits reports whether trainers wait for each other.
func (c Clock) Waits() bool { return c != ClockEach }

// Renumbers reports whether results have numbers of their own instead of those of their receivers' batches.
func (c Clock) Renumbers() bool { return c == ClockGrouped }

// Party is shards or trainers.
type Party uint8

// The parties of a job.
const (
	ByShards Party = iota
	ByTrainers
)

// Summing is the time at which contributions are added up. The bits are the same.
type Summing uint8

const (
	// SummingFused adds two children of a lane-tree node as soon as both have arrived. The last addition of a round is
	// left to the pass that divides and runs the optimizer.
	SummingFused Summing = iota
	// SummingAtClose keeps all contributions, and adds them up in that pass.
	SummingAtClose
)

func summingOf(word string) Summing {
	if word == SumClose {
		return SummingAtClose
	}
	return SummingFused
}

func (s Summing) String() string { return [...]string{SumFused, SumClose}[s] }

// Cut is the way in which a table is divided over shards.
type Cut uint8

const (
	CutRows    Cut = iota // every shard has the rows of some partitions
	CutColumns            // every shard has some columns of every row
	CutNone               // the table is whole on one shard
)

// PooledByShards reports whether a shard that has part of the table has part of every row, so that it can pool whole
// bags: then lookups carry bags, answers carry pooled rows, and gradients are sent as bags.
func (c Cut) PooledByShards() bool { return c != CutRows }

// Plan resolves a validated manifest.
//
//	if job.Plan().Clock == ClockGrouped { ... }
func (j *Job) Plan() *Plan {
	p := &Plan{Clock: ClockOf(j.Consistency), Reducer: partyOf(j.Reduce, ReduceTrainers), Owner: OwnerOf(j.Apply),
		Summing: summingOf(j.Sum), DType: j.Wire.DType(), ErrorFeedback: j.Wire.ErrorFeedback,
		SkipNonfinite: j.OnNonfinite == NonfiniteSkip,
		Roundless:     len(j.Parameters)+len(j.Tables) == 0,
		AsyncTables:   j.TableConsistency == ConsistencyAsync,
		modules:       len(j.Modules) > 0}
	p.resolveOptimizers(j)
	if p.Clock == ClockBounded {
		p.Ahead = j.Ahead
	}
	if p.Clock == ClockGrouped {
		p.Group = j.Group
	}
	for i := range j.Tables {
		t := &j.Tables[i]
		table := TablePlan{Cut: t.Cut()}
		if t.Replicated {
			table.Owner, table.Reducer = ByTrainers, p.Reducer
			if t.Reduce != "" {
				table.Reducer = partyOf(t.Reduce, ReduceTrainers)
			}
		}
		p.Tables = append(p.Tables, table)
	}
	return p
}

// resolveOptimizers sets the fields that depend on the optimizers of the job, its parameters and tables.
func (p *Plan) resolveOptimizers(j *Job) {
	optimizers := []Optimizer{j.Optimizer}
	for i := range j.Parameters {
		optimizers = append(optimizers, j.OptimizerOfParameter(i))
	}
	for i := range j.Tables {
		optimizers = append(optimizers, j.OptimizerOf(Table(i)))
	}
	for _, o := range optimizers {
		p.exact = p.exact || o.Exact
		p.globalClip = p.globalClip || o.Clip != nil && o.Clip.Kind == ClipGlobal
	}
}

// ClockOf returns the clock of a consistency, as manifests and telemetry reports name it.
func ClockOf(consistency string) Clock {
	switch consistency {
	case ConsistencyAsync:
		return ClockEach
	case ConsistencyGrouped:
		return ClockGrouped
	}
	return ClockBounded
}

// OwnerOf returns the owner of dense parameters, by the word for it in manifests and telemetry reports.
func OwnerOf(apply string) Party { return partyOf(apply, ApplyMean) }

func partyOf(word, trainers string) Party {
	if word == trainers {
		return ByTrainers
	}
	return ByShards
}

// Cut returns how the table is divided over shards.
func (t *TableSpec) Cut() Cut {
	switch t.Placement {
	case PlacementColumns:
		return CutColumns
	case PlacementTables:
		return CutNone
	}
	return CutRows
}

// Mean reports whether the table's bags are pooled by their mean instead of their sum.
func (t *TableSpec) Mean() bool { return t.Pooling == PoolingMean }

// DType returns the type of the values of dense and sparse frames.
func (w Wire) DType() DType {
	switch w.Gradients {
	case GradientsBFloat16:
		return DTypeBFloat16
	case GradientsFloat16:
		return DTypeFloat16
	}
	return DTypeFloat32
}

// Sync reports whether every batch is computed on the version made by the batch before it.
func (p *Plan) Sync() bool { return p.Clock == ClockBounded && p.Ahead == 0 }

// ClockOf returns the clock of the rounds of a party. Trainers aggregate in step.
func (p *Plan) ClockOf(by Party) Clock {
	switch {
	case by == ByTrainers:
		return ClockBounded
	case p.AsyncTables:
		return ClockEach
	}
	return p.Clock
}

// DenseShards returns how many of a number of shards have dense chunks. In grouped it is one, which decides the
// membership of groups.
func (p *Plan) DenseShards(shards int) int {
	if p.Clock == ClockGrouped {
		return min(1, shards)
	}
	return shards
}

// Reduces reports whether a party aggregates anything: dense gradients, or those of a table. Trainers that reduce have
// a data server each.
func (p *Plan) Reduces(by Party) bool {
	for i := range p.Tables {
		if p.Tables[i].Reducer == by {
			return true
		}
	}
	return p.Reducer == by
}

// NeedsShards reports whether shards have work in the job: they host modules, or aggregate gradients.
func (j *Job) NeedsShards() bool { return len(j.Modules) > 0 || j.Plan().Reduces(ByShards) }

func (c Clock) String() string {
	return [...]string{"bounded", "each", "grouped"}[c]
}

func (p Party) String() string { return [...]string{"shards", "trainers"}[p] }

func (c Cut) String() string { return [...]string{"rows", "columns", "whole"}[c] }

// String returns the plan in one line, for people.
//
//	bounded+2, owned by trainers, reduced by shards, sums fused, float32; tables: columns by shards
func (p *Plan) String() string {
	var s strings.Builder
	s.WriteString(p.Clock.String())
	switch {
	case p.Sync():
		s.WriteString(" in step")
	case p.Clock == ClockBounded:
		fmt.Fprintf(&s, "+%d", p.Ahead)
	case p.Clock == ClockGrouped:
		fmt.Fprintf(&s, " of %d", p.Group)
	}
	fmt.Fprintf(&s, ", owned by %v, reduced by %v, sums %v, %v", p.Owner, p.Reducer, p.Summing, p.DType)
	if p.ErrorFeedback {
		s.WriteString(" with feedback")
	}
	for i, t := range p.Tables {
		s.WriteString([]string{"; tables: ", ", "}[min(i, 1)])
		fmt.Fprintf(&s, "%v of %v, reduced by %v", t.Cut, t.Owner, t.Reducer)
	}
	if p.AsyncTables {
		s.WriteString(", async")
	}
	return s.String()
}

// recovery is the consequence of losing a member.
type recovery uint8

const (
	recoveryNone       recovery = iota // the job ends with an error
	recoveryInPlace                    // other trainers compute the lost lanes, and the run continues
	recoveryRestart                    // a new run starts from a replica or a checkpoint
	recoveryOthersGoOn                 // the run continues without the lost lanes
)

func (r recovery) String() string {
	return [...]string{"none", "in place", "restart", "others go on"}[r]
}

// Capability is the best possible recovery of a job. The job's policy may request less.
type Capability struct {
	trainer recovery // of a lost trainer
	shard   recovery // of a lost shard
}

func (c Capability) String() string { return fmt.Sprintf("trainer %v, shard %v", c.trainer, c.shard) }

// Capability returns how a job with this plan recovers from the loss of a trainer and of a shard.
func (p *Plan) Capability() Capability {
	var c Capability
	if !p.Roundless && !p.Reduces(ByShards) {
		return c // shards have no part of what the job learned
	}
	// Exact rows cannot be saved if shards have no common version: see Job.CheckVersions.
	if moments := p.Moments() || !p.ClockOf(ByShards).Common(); !moments || !p.exact {
		c.shard = recoveryRestart
	}
	switch {
	case !p.Clock.Common():
		c.trainer = recoveryOthersGoOn
	case p.Sync() && p.Owner == ByShards && !p.ErrorFeedback && !p.exact && !p.modules:
		c.trainer = recoveryInPlace
	default:
		c.trainer = c.shard
	}
	return c
}

// TakesOver reports whether another trainer can compute the lanes of a lost one from the middle of a batch on, with
// equal bits.
func (j *Job) TakesOver() bool { return j.Plan().Capability().trainer == recoveryInPlace }

// Rewinds reports whether a job that loses a trainer restarts from its newest durable version. If that changes bits, it
// does so only on request: see rewindsAlike.
func (j *Job) Rewinds() bool { return j.Plan().Capability().trainer == recoveryRestart }
