// Package checkpoint is the files of durable checkpoints of a job: each is there whole or counts for nothing, is
// verified before it is used, and is read by any number of shards, and by other programs.
//
// Below a folder DIR that an operator gives lies
//
//	DIR/<job name>/<id>/s<shard>.safetensors   a part for each shard, written by the ps that has it
//	DIR/<job name>/<id>/complete.json          the manifest, written last, by the coordinator's ps
//
// An ID is that of the run that wrote it and of the version. A checkpoint counts from the moment when complete.json has
// its name: every part was on the disk by then, and so were the folders. Whatever a crash leaves before that moment is
// incomplete, and after it whole. Removal begins with complete.json, so nothing that is half gone looks whole.
//
//   - part.go says what a part holds, and where: it follows from the job's manifest, the number of shards and the
//     shard, as the state of a shard does. Part is one that is written, from the pieces of a snapshot in any order.
//   - Manifest (manifest.go) is complete.json. It names all parts with their sizes and checksums, and ends with a
//     checksum of its own. Verify reads every byte. An increment has what has changed since another checkpoint of its
//     run; the same file has what goes on from what, and names checkpoints, their folders and their files.
//   - Read (read.go) gives the pieces again, of a full part with the increments over it.
//   - folder.go finds checkpoints (List, Newest, NextEpoch), removes old ones and tells what of a part has come.
//   - export.go makes one file of a model, as trainer.Session.Save does, so that trainer.OpenModel reads it.
//
// # A part
//
// It is a safetensors file of float32 tensors:
//
//	dense/<parameter>         the elements on this shard, ascending
//	dense/<parameter>:<slot>  what the optimizer keeps of them
//	table/<table>             [rows here, columns here], by partition and key ascending
//	table/<table>:<slot>      the same, or [rows here] of a slot with one value a row
//	table/<table>:last        [rows here, 2] the mark n of each row as n>>24 and n&(1<<24-1), which float32 holds exactly
//
// Names of tensors may have slashes; colons and percent signs of theirs are written as %3A and %25. The metadata say of
// which checkpoint, job and shard the part is, and how many steps each tensor has had.
//
// # An increment
//
// Its part has the same tensors, with the elements and rows that have changed since its base, and perhaps others:
//
//	dense/<parameter>       elements, ascending; the metadata say which (gradbus.runs)
//	table/<table>           rows, in the order of a full part
//	table/<table>:key       [rows, 2] the key of each, as marks are
//
// The manifest has the id of the base and the checksum of its complete.json, so no other can take its place. Both are
// of one run, so of as many shards. An increment counts with all of its bases, or not at all.
//
// # What it leaves out
//
// It is of jobs whose state is on shards, or the same with every trainer, of whom shards ask for it; or with trainers
// alone, in one part: those are of earlier builds, and are read as models. A checkpoint is of one version; of
// jobs that have none in common each part is of a moment of its own (schema.Job.Moments). Nothing is compressed.
//
// The package knows files, snapshots, manifests and placement. It must not know frames, rounds, who coordinates or when
// a checkpoint is due; it starts no goroutine, logs nothing and keeps no state between calls. A newcomer may add a
// field to Manifest (with a higher format where who reads without it would be wrong), or a command of cmd/ps over what
// is here. The order in which files become durable, and the names in a part, are not to be touched: a newer format is
// refused by name, so it begins with a new number.
package checkpoint
