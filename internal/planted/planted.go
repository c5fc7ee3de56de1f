// Package planted names defects that tests plant on purpose, to show that they find them. In a build with the tag
// planted a process has the one that Plant names. Any other build has none of this code: Is is false when it is
// compiled.
//
//	if planted.Is(planted.SkipFileSync) { ... }
//
// It knows names of defects alone. The code of a defect stands where it does harm.
package planted

// Defect is one defect; the zero value is none.
type Defect uint8

// The defects.
const (
	// CountContributors: requests counted in place of lanes.
	CountContributors Defect = iota + 1
	// ReuseGeneration: a generation used again.
	ReuseGeneration
	// CountNodeTwice: a node counted twice after a rise.
	CountNodeTwice
	// AnswerWithOldRows: a parked lookup answered with old rows.
	AnswerWithOldRows
	// ReadChangedRows: rows of a batch under way that have changed.
	ReadChangedRows
	// SkipEmptyBatch: the weights of a batch without samples.
	SkipEmptyBatch
	// TakeUnreachableForEnded: a ps that is out of reach taken for one that has ended.
	TakeUnreachableForEnded
	// GoOnWithMinority: less than half of the trainers go on elsewhere.
	GoOnWithMinority
	// SkipReplicaSteps: steps of rows that a replica is not told of.
	SkipReplicaSteps
	// KeepFirstPieces: stretches of parameters that stay as they were told first.
	KeepFirstPieces
	// SkipFolderSync: a name in a folder that is not brought to the disk.
	SkipFolderSync
	// SkipFileSync: a file that is not brought to the disk.
	SkipFileSync
	// SkipBatchUnderWay: a batch under way left out by a trainer that takes a place.
	SkipBatchUnderWay
	// RemakeShards: shards made again in the middle of a job.
	RemakeShards
	// TrustDates: silence by dates, which may be set.
	TrustDates
	// CopyLaterRows: rows of later batches in a version that is written down.
	CopyLaterRows
	// SkipSharedRows: rows that trainers have and do not copy.
	SkipSharedRows
	// CloseSharedRows: rows that trainers have as they are by now.
	CloseSharedRows
	// AskLateVersion: a version that is asked for when it is over.
	AskLateVersion
	// IgnoreOffers: a restart from version 0, whatever replicas and folders offer.
	IgnoreOffers
)
