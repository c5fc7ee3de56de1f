// Package corpus turns an index of Debian packages into examples for a text classifier: which section does a package
// belong to, given its name and the first line of its description?
//
// It knows the format of a Packages index (Debian policy, chapter 5; deb822), the ways in which apt compresses it, how
// words become keys, and which examples are kept for testing. It must not know of jobs, lanes, backends or frames, and
// the single-process reference uses it without any of those.
//
// The examples are a pure function of the records: they are ordered by package name, so two machines whose indexes hold
// the same records in another order, another compression or another number of files have the same Digest.
//
// A newcomer may add a compression or a source (source.go). How text becomes keys and the order of what is
// hashed (data.go) are fixed: saved models and running jobs depend on them.
package corpus
