package exchange

import (
	"gradbus/schema"
)

// What a member may be.
const (
	roleSink    = "sink"    // reads a raw TCP connection
	roleSource  = "source"  // writes one
	roleReader  = "reader"  // embedded NATS server, read in process
	roleWriter  = "writer"  // publishes to it
	roleShard   = "shard"   // a parameter server
	roleFeeder  = "feeder"  // contributes to a job and takes no results
	roleAsker   = "asker"   // contributes nothing to a job, and asks for rows
	roleTrainer = "trainer" // a trainer.Session
)

// spec is the settings of a member: what it is.
type spec struct {
	Role        string      `json:"role"`
	Index       int         `json:"index"` // among those of its role
	Job         *schema.Job `json:"job,omitempty"`
	Shards      int         `json:"shards,omitempty"`
	ChunkBytes  int         `json:"chunk_bytes,omitempty"`
	WindowBytes int         `json:"window_bytes,omitempty"`
	Feeders     int         `json:"feeders,omitempty"` // members of the job whose values count
	Procs       int         `json:"procs,omitempty"`   // for harness.Member.LimitProcs
}

// Operations of an order.
const (
	opListen  = "listen"  // give the address to dial
	opConnect = "connect" // to URL, and be ready
	opWrite   = "write"   // in pieces of Bytes, until told otherwise
	opRun     = "run"     // Rounds rounds
	opAsk     = "ask"     // for Seconds
	opMark    = "mark"    // say what was used so far, by a mark in place of an answer
)

// order is what a member is asked.
type order struct {
	Op      string  `json:"op"`
	URL     string  `json:"url,omitempty"`
	Bytes   int     `json:"bytes,omitempty"`
	Rounds  int     `json:"rounds,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// answer is what it answers to each order but opMark.
type answer struct {
	URL string `json:"url,omitempty"`
	Ran *ran   `json:"ran,omitempty"`
}

// ran is what came of rounds or requests.
type ran struct {
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"`
	P50     float64 `json:"p50"` // seconds of one
	P99     float64 `json:"p99"`
	Checked int     `json:"checked"` // values that were compared with what they must be
	Again   int     `json:"again"`   // frames or requests that were sent again
}

// mark is what a process has done and used since it began.
type mark struct {
	At         float64 `json:"at"`      // seconds since the epoch
	CPU        float64 `json:"cpu"`     // seconds, user and system
	Bytes      uint64  `json:"bytes"`   // of payload received or sent, by role
	RSS        int64   `json:"rss"`     // bytes
	PeakRSS    int64   `json:"peak"`    // bytes
	Goroutines int     `json:"threads"` // goroutines
}
