// Package keep holds what is remembered of GPUs in a file, which all processes of a user on a machine share.
//
// # The file
//
// One line of JSON, of mode 0600: a version, and a health.Kept for every GPU of which something is remembered. It is
// made when there is something to remember, and not before. Where home folders are shared by machines, so is the file:
// UUIDs tell GPUs apart everywhere.
//
// Whoever changes it holds a lock (flock) on a file beside it, reads it, and puts a new one in its place, which is on
// the disk before it has the name. Whoever reads it needs no lock: it is a whole file at any moment. Who wants to know
// whether it has changed compares its Stamp, which is one stat.
//
// It is read strictly: an unknown field, a missing one or a value out of bounds is ErrDamaged, and a file of a newer
// version is ErrNewer. A newer one is never written to; a damaged one is set aside, as FILE.damaged, when there is
// something to write.
//
// # Bounds
//
// GPUsMax GPUs, each with findingsMax findings and as many incidents, and bytesMax bytes. A GPU of which nothing holds
// is dropped after thirty days, and where there are too many the one that was seen longest ago.
//
// # What it leaves out
//
// What is seen by nobody is not remembered: an error of the driver while no ps or trainer runs. Users of one machine do
// not share what they know.
package keep
