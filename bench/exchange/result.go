package exchange

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"gradbus/bench/machine"
	"gradbus/schema"
)

// Config says what Run measures.
type Config struct {
	Trainers    int     // of the fan-in; rounds always have two
	Shards      int     // in one server process
	Bytes       int     // of float32 gradients that each trainer has in a batch; rounded down to values
	ChunkBytes  int     // of values in one frame
	WindowBytes int     // of each trainer and shard; requests under load take 4 MiB and 1 MiB
	Seconds     float64 // of each measure in each turn, about
	Rounds      int     // of the full round in each turn; 0 is as many as Seconds hold
	Turns       int     // that the measures take
	SmallRounds int     // in each turn
	// measures to take, by their names in Result.CPU; empty is all. What is left out is zero in the result
	Only     []string
	Profile  string // directory for profiles of the members of the first turn; empty for none
	Progress io.Writer
}

const (
	// dummyBytes is the default size of a gradient, 38 MB: an embedding and eight layers of 1024 by 1024.
	dummyBytes = 37_781_504
	// chunkBytes is the default size of chunks: a frame with its NATS header is 64 KiB, what the server reads at once.
	chunkBytes = 65024
	// roundTrainers is how many trainers a full round has.
	roundTrainers = 2
	// smallBytes is what a trainer contributes to a small round.
	smallBytes = 64 << 10
	// smallRoundsDefault is what a 99th percentile needs to mean something.
	smallRoundsDefault = 2000
)

// DefaultConfig is what the documented figures are measured with.
func DefaultConfig() Config {
	return Config{Trainers: 4, Shards: 1, Bytes: dummyBytes, ChunkBytes: chunkBytes,
		WindowBytes: 4 << 20, Seconds: 2, Turns: 3, SmallRounds: smallRoundsDefault, Progress: io.Discard}
}

// validate lists everything that is wrong, each with its value and what would be right.
func (c *Config) validate() error {
	var wrong []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	check(c.Trainers >= 1 && c.Trainers <= 32, "trainers %d: want 1 to 32", c.Trainers)
	check(c.Shards >= 1 && c.Shards <= 16, "shards %d: want 1 to 16", c.Shards)
	check(c.Bytes >= 4 && c.Bytes <= 1<<30, "bytes %d: want 4 to %d", c.Bytes, 1<<30)
	check(c.ChunkBytes >= schema.ChunkBytesMin && c.ChunkBytes <= schema.ChunkBytesMax && c.ChunkBytes%4 == 0,
		"chunk %d: want %d to %d, a multiple of 4", c.ChunkBytes, schema.ChunkBytesMin, schema.ChunkBytesMax)
	check(c.WindowBytes >= 1<<18 && c.WindowBytes <= 256<<20, "window %d bytes: want 256 KiB to 256 MiB", c.WindowBytes)
	check(c.Seconds > 0 && c.Seconds <= 3600, "seconds %v: want more than 0, up to 3600", c.Seconds)
	check(c.Rounds >= 0 && c.Rounds <= 1<<20, "rounds %d: want 0 to %d", c.Rounds, 1<<20)
	check(c.Turns >= 1 && c.Turns <= 1000, "turns %d: want 1 to 1000", c.Turns)
	for _, name := range c.Only {
		known := slices.ContainsFunc((&bench{}).measures(), func(m measure) bool { return m.name == name })
		check(known, "only %q: no such measure", name)
	}
	check(c.SmallRounds >= 1, "small rounds %d: want at least 1", c.SmallRounds)
	if wrong != nil {
		return errors.Join(wrong...)
	}
	if err := jobOf("check", c.Trainers, c.Bytes, c.ChunkBytes).Validate(); err != nil {
		return err
	}
	return nil
}

// Result is what Run has found: medians over the turns. Its JSON names are part of the interface of `psbench fabric
// --json`: fields may be added, none changes its meaning.
type Result struct {
	RawTCP      float64 `json:"raw_tcp_gb_per_second"`
	RawTCPWrite int     `json:"raw_tcp_write_bytes"` // the size of write that was best
	NATS        float64 `json:"nats_gb_per_second"`
	FanIn       float64 `json:"fan_in_sum_gb_per_second"` // into the shards, sums included
	FanInRatio  float64 `json:"fan_in_ratio"`             // of raw TCP, each turn's by itself
	// into the shards; as much goes out, or twice as much where gradients have 16 bits
	Round        float64 `json:"round_gb_per_second"`
	RoundSeconds float64 `json:"round_seconds"` // of one round

	RequestP50       float64 `json:"request_p50_us"`
	RequestP99       float64 `json:"request_p99_us"`
	RequestLoadP50   float64 `json:"request_under_load_p50_us"` // windows of 4 MiB
	RequestLoadP99   float64 `json:"request_under_load_p99_us"`
	RequestLoadRate  float64 `json:"request_under_load_gb_per_second"` // that flowed at the same time
	RequestLoadShare float64 `json:"request_under_load_share"`         // of the fan-in's
	Request1MiBP50   float64 `json:"request_under_load_1mib_p50_us"`
	Request1MiBP99   float64 `json:"request_under_load_1mib_p99_us"`
	Request1MiBRate  float64 `json:"request_under_load_1mib_gb_per_second"`
	Request1MiBShare float64 `json:"request_under_load_1mib_share"`

	SmallP50 float64 `json:"small_round_p50_us"`
	SmallP99 float64 `json:"small_round_p99_us"`

	// CPU is the processor seconds of all processes of a measure over the gigabytes that went into the receiver; of
	// requests over a million of them.
	CPU map[string]float64 `json:"cpu_seconds_per_gb"`

	PeakRSS  int64 `json:"peak_rss_bytes"`  // of the server process over all full rounds
	RSSBound int64 `json:"rss_bound_bytes"` // documented
	// of the server process, after each tenth of the last turn's full rounds
	RSSTenths []int64 `json:"rss_bytes_at_tenths"`

	RoundsRun     int  `json:"rounds"`         // full ones, over all turns
	ValuesChecked int  `json:"values_checked"` // sums compared with what they must be
	Again         int  `json:"sent_again"`     // frames and requests that were sent more than once
	SumsExact     bool `json:"sums_exact"`     // always true: Run fails otherwise

	Settings settings             `json:"settings"`
	Machine  machine.Machine      `json:"machine"`
	Turns    map[string][]float64 `json:"turns"` // every figure of every turn
}

// settings repeats what was asked for.
type settings struct {
	Trainers      int     `json:"trainers"`
	RoundTrainers int     `json:"round_trainers"`
	Shards        int     `json:"shards"`
	Bytes         int     `json:"bytes"`
	ChunkBytes    int     `json:"chunk_bytes"`
	WindowBytes   int     `json:"window_bytes"`
	Seconds       float64 `json:"seconds"`
	Turns         int     `json:"turns"`
	Backend       string  `json:"backend"`
}
