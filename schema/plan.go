package schema

import (
	"fmt"
	"strings"
)

// Plan is a manifest resolved once into typed choices. Only this file, and what checks manifests, reads their mode
// strings: everybody else asks the plan, which a Placement holds. Read only once it is made, so it may be shared.
type Plan struct {
	Clock Clock
	Ahead int // batches that a trainer may be ahead of the version it computes on; 0 in sync, async and grouped
	Group int // contributors to an update in ClockGrouped; else 0

	Roundless     bool  // there are neither parameters nor tables, so nothing is added up
	Reducer       Party // who adds up dense gradients
	Owner         Party // who owns dense parameters and their optimizer
	Summing       Summing
	DType         DType // of gradients on the wire
	ErrorFeedback bool
	SkipNonfinite bool // a lane whose gradient is not finite is absent from its batch

	// AsyncTables is that each trainer's contribution to tables is applied when it arrives, by itself, while dense
	// gradients are averaged over all trainers.
	AsyncTables bool
	Tables      []TablePlan // by index of the manifest

	exact      bool // an optimizer makes up for the batches that a row sat out
	modules    bool // shards host modules
	globalClip bool // gradients are clipped by the norm of all of them together
}

// TablePlan is the part of a Plan that is a table's.
type TablePlan struct {
	Cut     Cut
	Owner   Party // who keeps its rows: ByTrainers where each has them all
	Reducer Party // who adds up its gradients
}

// Clock is who shares a round, when it is over and who hears of it.
type Clock uint8

const (
	ClockBounded Clock = iota // all trainers, when all have contributed; sync is no batch ahead
	ClockEach                 // async: each trainer has rounds of its own, which are over when it has contributed
	ClockGrouped              // the next Plan.Group contributions from any trainers
)

// Common reports whether rounds are of all trainers, who call each of them by the same batch.
func (c Clock) Common() bool { return c == ClockBounded }

// Waits reports whether trainers wait for each other.
func (c Clock) Waits() bool { return c != ClockEach }

// Renumbers reports whether results have numbers of their own, and not those of their receivers' batches.
func (c Clock) Renumbers() bool { return c == ClockGrouped }

// Party is who does a thing.
type Party uint8

const (
	ByShards Party = iota
	ByTrainers
)

// Summing is when contributions are added up. The bits are the same.
type Summing uint8

const (
	// SummingFused adds two children of a lane-tree node as soon as both are there; what the last contribution of a
	// round completes is left to the pass that divides and runs the optimizer.
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

// Cut is how a table lies on shards.
type Cut uint8

const (
	CutRows    Cut = iota // every shard has the rows of some partitions
	CutColumns            // every shard has some columns of every row
	CutNone               // the table is whole on one shard
)

// PooledByShards reports whether a shard that holds anything of the table holds it of every row, so that it can pool
// whole bags: then bags go there in lookups, pooled rows come back, and gradients travel as bags.
func (c Cut) PooledByShards() bool { return c != CutRows }

// Plan resolves a manifest that Validate has found right.
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

// resolveOptimizers sets what follows from the job's optimizers and those of its parameters and tables.
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

// ClockOf is the clock of a consistency, as manifests and telemetry reports name it.
func ClockOf(consistency string) Clock {
	switch consistency {
	case ConsistencyAsync:
		return ClockEach
	case ConsistencyGrouped:
		return ClockGrouped
	}
	return ClockBounded
}

// OwnerOf is who owns dense parameters, by what manifests and telemetry reports say of who applies.
func OwnerOf(apply string) Party { return partyOf(apply, ApplyMean) }

func partyOf(word, trainers string) Party {
	if word == trainers {
		return ByTrainers
	}
	return ByShards
}

// Cut is how the table lies on shards.
func (t *TableSpec) Cut() Cut {
	switch t.Placement {
	case PlacementColumns:
		return CutColumns
	case PlacementTables:
		return CutNone
	}
	return CutRows
}

// Mean reports whether the table's bags are pooled by their mean, not by their sum.
func (t *TableSpec) Mean() bool { return t.Pooling == PoolingMean }

// DType is the type of the values of dense and sparse frames: the gradients' own.
func (w Wire) DType() DType {
	switch w.Gradients {
	case GradientsBFloat16:
		return DTypeBFloat16
	case GradientsFloat16:
		return DTypeFloat16
	}
	return DTypeFloat32
}

// Sync reports whether every batch is computed on the version that the batch before it made.
func (p *Plan) Sync() bool { return p.Clock == ClockBounded && p.Ahead == 0 }

// ClockOf is the clock of the rounds that a party adds up. What trainers add up is in step.
func (p *Plan) ClockOf(by Party) Clock {
	switch {
	case by == ByTrainers:
		return ClockBounded
	case p.AsyncTables:
		return ClockEach
	}
	return p.Clock
}

// DenseShards is how many of a number of shards have dense chunks. In grouped it is one, which decides who belongs to
// a group.
func (p *Plan) DenseShards(shards int) int {
	if p.Clock == ClockGrouped {
		return min(1, shards)
	}
	return shards
}

// Reduces reports whether a party adds up anything: dense gradients, or those of a table. Trainers that do have a
// data server each.
func (p *Plan) Reduces(by Party) bool {
	for i := range p.Tables {
		if p.Tables[i].Reducer == by {
			return true
		}
	}
	return p.Reducer == by
}

// NeedsShards reports whether the job has anything for shards to do: they host modules, or add up gradients.
func (j *Job) NeedsShards() bool { return len(j.Modules) > 0 || j.Plan().Reduces(ByShards) }

func (c Clock) String() string {
	return [...]string{"bounded", "each", "grouped"}[c]
}

func (p Party) String() string { return [...]string{"shards", "trainers"}[p] }

func (c Cut) String() string { return [...]string{"rows", "columns", "whole"}[c] }

// String is the plan in one line, for people.
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

// recovery is what happens to a job that loses a member.
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

// Capability is what the loss of a member can at best do to a job. The job's policy may ask for less.
type Capability struct {
	trainer recovery // of a lost trainer
	shard   recovery // of a lost shard
}

func (c Capability) String() string { return fmt.Sprintf("trainer %v, shard %v", c.trainer, c.shard) }

// Capability returns what the loss of a trainer and the loss of a shard do to a job of the plan.
func (p *Plan) Capability() Capability {
	var c Capability
	if !p.Roundless && !p.Reduces(ByShards) {
		return c // shards have nothing of what the job learned
	}
	// Exact rows cannot be saved while each shard is at a version of its own: see Job.CheckVersions.
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

// TakesOver reports whether another trainer may compute the lanes of a lost one from the middle of a batch on, without a
// change of a bit.
func (j *Job) TakesOver() bool { return j.Plan().Capability().trainer == recoveryInPlace }

// Rewinds reports whether a job that loses a trainer restarts from its newest durable version. Where some bits change by
// that, it does so only if asked to: see rewindsAlike.
func (j *Job) Rewinds() bool { return j.Plan().Capability().trainer == recoveryRestart }
