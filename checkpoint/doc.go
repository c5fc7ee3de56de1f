// Package checkpoint writes, finds, verifies, reads and prunes the files of durable checkpoints of a job. NewPart and
// Complete write one, List and Newest find them, Manifest.Verify and Manifest.Read read one, and Manifest.Export makes
// a model file. A checkpoint is complete or counts for nothing. It can be read by any number of shards, and by other
// programs.
//
// Below a folder DIR that an operator chooses are
//
//	DIR/<job name>/<id>/s<shard>.safetensors   a part for each shard, written by the ps that has it
//	DIR/<job name>/<id>/program                bytes of the program's own, at most 64 MiB, where it has given any
//	DIR/<job name>/<id>/complete.json          the manifest, written last, by the coordinator's ps
//
// An ID names the run that wrote the checkpoint, and the version. A checkpoint counts from the moment at which
// complete.json has its name: every part, and the folders, were on the disk before. A crash before that moment leaves
// an incomplete checkpoint, and a crash after it a complete one. Removal begins with complete.json, so a partly removed
// checkpoint is incomplete.
//
//   - part.go: the contents of a part, which follow from the job's manifest, the number of shards and the shard, like
//     the state of a shard. Part is a part that is written, from the pieces of a snapshot in any order.
//   - manifest.go: Manifest is complete.json. It lists all parts with their sizes and checksums, and ends with its own
//     checksum. Verify reads every byte. An increment has the changes since another checkpoint of its run. The file
//     also has the names of checkpoints, their folders and their files.
//   - read.go: Read returns the pieces, of a full part with the increments over it.
//   - folder.go: finds checkpoints (List, Newest, NextEpoch), removes old ones, and tracks which pieces of a part have
//     arrived.
//   - export.go: writes a model to one file, as trainer.Session.Save does, so that trainer.OpenModel reads it.
//
// # A part
//
// A part is a safetensors file of float32 tensors:
//
//	dense/<parameter>         the elements on this shard, ascending
//	dense/<parameter>:<slot>  the optimizer's state of them
//	table/<table>             [rows here, columns here], by partition and key ascending
//	table/<table>:<slot>      the same, or [rows here] for a slot with one value a row
//	table/<table>:last        [rows here, 2] the mark n of each row as n>>24 and n&(1<<24-1), which float32 holds exactly
//
// Names of tensors may have slashes; their colons and percent signs are written as %3A and %25. The metadata have the
// checkpoint, job and shard of the part, and the number of steps of each tensor.
//
// # An increment
//
// The part of an increment has the same tensors, with the elements and rows that have changed since its base, and
// perhaps others:
//
//	dense/<parameter>       elements, ascending; the metadata list them (gradbus.runs)
//	table/<table>           rows, in the order of a full part
//	table/<table>:key       [rows, 2] the key of each, in the form of marks
//
// The manifest has the id of the base and the checksum of its complete.json, so no other checkpoint can replace it.
// Both are of one run, and so of the same number of shards. An increment counts with all of its bases, or not at all.
//
// # Limits
//
// Checkpoints exist for jobs whose state is on shards, or equal at all trainers, which send it to shards. Checkpoints
// with the state of trainers alone, in one part, were written by earlier builds, and are read as models. A checkpoint
// is of one version, except for jobs without a common version, where each part has the state of its own moment
// (schema.Job.Moments). Nothing is compressed.
//
// # What it knows and what it must not know
//
// It knows files, snapshots, manifests and placement. It must not know frames, rounds, coordinators or when a
// checkpoint is due. It starts no goroutine, logs nothing and keeps no state between calls. A newcomer may add a field
// to Manifest (with a higher format if an older reader would misread the checkpoint), or a command of cmd/ps. Do not
// change the order in which files become durable, or the names in a part: a newer format is refused by its number, so a
// change begins with a new number.
package checkpoint
