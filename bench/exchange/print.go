package exchange

import (
	"fmt"
	"io"
	"text/tabwriter"
)

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
