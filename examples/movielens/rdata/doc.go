// Package rdata reads data frames from R's own files: the databases of objects, NAME.rdx and NAME.rdb, that an R
// package keeps its data in, and the serialized objects in them (XDR format, versions 2 and 3). R is not needed.
//
//	frame, err := rdata.Load("/usr/lib/R/site-library/dslabs/data/Rdata", "movielens")
//	ratings, err := frame.Reals("rating")
//
// It reads vectors of integers, reals and texts, lists of them, and their names: what a data frame is made of. Objects
// of other kinds (functions, environments) are refused by name. Every length is checked against the bytes that are
// there before anything is allocated from it.
//
// The format is described in R Internals, section 1.8 (serialization), and in R's help page makeLazyLoad.
//
// The package knows files and bytes. It must not know ratings. A newcomer may add a kind of vector, with its case in
// the tests.
package rdata
