package exchange

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"gradbus/bench/harness"
	"gradbus/bench/machine"
	"gradbus/schema"
)

// Config has the settings of Run. The zero value is not usable: begin with DefaultConfig.
type Config struct {
	Trainers   int     `flag:"trainers" default:"4" range:"1 32" help:"N: trainers of the fan-in; full rounds have two" json:"trainers"`
	Shards     int     `flag:"shards" default:"1" range:"1 16" help:"N: shards" json:"shards"` // in one server process
	Bytes      int     `flag:"bytes" default:"37781504" range:"4 1073741824" help:"BYTES: float32 gradients of a trainer in a batch" json:"bytes"`
	ChunkBytes int     `flag:"chunk" default:"65024" help:"BYTES: values in one frame" json:"chunk_bytes"`
	WindowMiB  int     `flag:"window-mib" default:"4" range:"1 256" help:"MIB: window from each trainer to each shard" json:"-"`
	Seconds    float64 `flag:"seconds" default:"2" range:"1e-9 3600" help:"SECONDS: time of each measurement in each turn" json:"seconds"`
	Rounds     int     `flag:"rounds" range:"0 1048576" help:"N: full rounds in each turn; 0 is as many as fit in --seconds" json:"-"`
	Turns      int     `flag:"turns" default:"3" range:"1 1000" help:"N: turns; figures are medians over them" json:"turns"`
	JSON       bool    `flag:"json" help:"print one line of JSON and nothing else" json:"-"`

	Profile string   `flag:"profile" hidden:"yes" help:"DIR: write profiles of each process of the first turn to this folder" json:"-"`
	Only    []string `flag:"only" hidden:"yes" help:"LIST: measurements to take; the others are 0 in the result" json:"-"`

	SmallRounds int       `json:"-"` // in each turn; a 99th percentile needs some
	Progress    io.Writer `json:"-"`
}

const (
	roundTrainers = 2        // trainers of a full round
	smallBytes    = 64 << 10 // gradients of a trainer in a small round
)

// DefaultConfig returns the configuration of the documented figures. The gradients are those of an embedding and eight
// layers of 1024 by 1024. A frame with its NATS header is 64 KiB, the size of one read of the server.
func DefaultConfig() Config {
	c := Config{SmallRounds: 2000, Progress: io.Discard}
	harness.SetDefaults(&c)
	return c
}

// windowBytes is the window of each trainer and shard; requests under load have windows of 4 MiB and 1 MiB.
func (c *Config) windowBytes() int { return c.WindowMiB << 20 }

// validate returns an error for the first wrong setting: the flag, its value and what would be right.
func (c *Config) validate() error {
	if err := harness.CheckSettings(c); err != nil {
		return err
	}
	if c.ChunkBytes < schema.ChunkBytesMin || c.ChunkBytes > schema.ChunkBytesMax || c.ChunkBytes%4 != 0 {
		return fmt.Errorf("chunk %d: want %d to %d, a multiple of 4", c.ChunkBytes, schema.ChunkBytesMin, schema.ChunkBytesMax)
	}
	for _, name := range c.Only {
		if !slices.ContainsFunc((&bench{}).measures(), func(m measure) bool { return m.name == name }) {
			return fmt.Errorf("only %q: no such measure", name)
		}
	}
	return jobOf("check", c.Trainers, c.Bytes, c.ChunkBytes).Validate()
}

// Result is the result of Run: medians over the turns. Its JSON names are part of the interface of `psbench fabric
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
	Config
	RoundTrainers int    `json:"round_trainers"`
	WindowBytes   int    `json:"window_bytes"`
	Backend       string `json:"backend"`
}

// What is to be reached, on two cores, with separate processes and loopback TCP.
const (
	wantFanInRatio  = 0.40
	wantRound       = 1.0 // GB/s
	wantRequest     = 40  // us
	wantLoad        = 3000
	wantLoad1MiB    = 1000
	wantLoadShare   = 0.8
	wantSmallP50    = 400
	wantSmallP99    = 1000
	wantPeakRSS     = 400e6
	wantFlatPercent = 2
	flatRoundsMin   = 200 // below them growth says nothing
)

// Print writes the result as a table for people, with what is to be reached and whether it was.
func (r *Result) Print(to io.Writer) error {
	s, m := &r.Settings, &r.Machine
	if _, err := fmt.Fprintf(to,
		"%s, %s, %s, %s, backend %s\n%s, %d bytes of gradients in chunks of %d; medians of %s\n\n",
		m.CPU, count(m.Cores, "core"), m.Kernel, m.Go, s.Backend, count(s.Shards, "shard"), s.Bytes, s.ChunkBytes,
		count(s.Turns, "turn")); err != nil {
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "measure\tfound\tto reach\treached\tCPU s/GB")
	line := func(name, found, want string, reached bool, cpu string) {
		verdict := "yes"
		switch {
		case want == "":
			verdict = ""
		case !reached:
			verdict = "no"
		}
		used := ""
		if cpu != "" {
			used = fmt.Sprintf("%.2f", r.CPU[cpu])
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, found, want, verdict, used)
	}
	rate := func(gb float64) string { return fmt.Sprintf("%.2f GB/s", gb) }
	line(fmt.Sprintf("raw TCP, one hop, writes of %d KiB", r.RawTCPWrite>>10), rate(r.RawTCP), "", true, nameRaw)
	line("NATS, publisher to in-process reader", rate(r.NATS), "", true, nameNATS)
	line(fmt.Sprintf("%s to %s, with the sum", count(s.Trainers, "trainer"), count(s.Shards, "shard")), rate(r.FanIn), "",
		true, nameFanIn)
	line("  of raw TCP", fmt.Sprintf("%.2f", r.FanInRatio), fmt.Sprintf("%.2f", wantFanInRatio),
		r.FanInRatio >= wantFanInRatio, "")
	line(fmt.Sprintf("full round, %d trainers", s.RoundTrainers), rate(r.Round), rate(wantRound),
		r.Round >= wantRound, nameRound)
	line("request and reply, 16 bytes, p50, p99", micros(r.RequestP50, r.RequestP99), fmt.Sprintf("%d us", wantRequest),
		r.RequestP50 <= wantRequest, "")
	line(fmt.Sprintf("  while %.2f of the fan-in flows, windows of 4 MiB", r.RequestLoadShare),
		micros(r.RequestLoadP50, r.RequestLoadP99),
		fmt.Sprintf("p99 %d us at %.1f", wantLoad, wantLoadShare), r.RequestLoadP99 <= wantLoad &&
			r.RequestLoadShare >= wantLoadShare, nameLoad)
	line(fmt.Sprintf("  while %.2f of the fan-in flows, windows of 1 MiB", r.Request1MiBShare),
		micros(r.Request1MiBP50, r.Request1MiBP99),
		fmt.Sprintf("p99 %d us at %.1f", wantLoad1MiB, wantLoadShare), r.Request1MiBP99 <= wantLoad1MiB &&
			r.Request1MiBShare >= wantLoadShare, nameLoad1MiB)
	line("64 KiB round trip with sum, p50, p99", micros(r.SmallP50, r.SmallP99),
		fmt.Sprintf("%d, %d us", wantSmallP50, wantSmallP99),
		r.SmallP50 <= wantSmallP50 && r.SmallP99 <= wantSmallP99, nameSmall)
	line("peak memory of the server, full rounds", mega(r.PeakRSS),
		fmt.Sprintf("%.0f MB, bound %s", wantPeakRSS/1e6, mega(r.RSSBound)),
		r.PeakRSS <= wantPeakRSS && r.PeakRSS <= r.RSSBound, "")
	growth := r.growth()
	flat := fmt.Sprintf("%d %%", wantFlatPercent)
	if r.RoundsRun/s.Turns < flatRoundsMin {
		flat = "" // buffers are still being made
	}
	line(fmt.Sprintf("  growth over %d rounds", r.RoundsRun/s.Turns), fmt.Sprintf("%.1f %%", growth), flat,
		growth <= wantFlatPercent, "")
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(to, "\n%d values compared, all as they must be; %d frames or requests were sent more "+
		"than once\n", r.ValuesChecked, r.Again)
	return err
}

// growth is by how many per cent the server's memory in the last tenth of the last turn's rounds was above that in the
// fifth.
func (r *Result) growth() float64 {
	n := len(r.RSSTenths)
	if n < 2 {
		return 0
	}
	middle := float64(r.RSSTenths[n/2-1])
	return 100 * (float64(r.RSSTenths[n-1]) - middle) / middle
}

func count(n int, of string) string {
	if n != 1 {
		of += "s"
	}
	return fmt.Sprintf("%d %s", n, of)
}

func micros(p50, p99 float64) string { return fmt.Sprintf("%.0f, %.0f us", p50, p99) }

func mega(bytes int64) string { return fmt.Sprintf("%.0f MB", float64(bytes)/1e6) }
