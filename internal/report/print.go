package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"gradbus/schema"
)

// plainLines is the number of lines of progress that a whole run prints without a terminal.
const plainLines = 20

// Plain prints progress as lines: for logs, and wherever there is no terminal.
type Plain struct {
	To io.Writer
}

// Show prints one batch in so many that a run has about twenty lines, and the first and the last.
func (p *Plain) Show(at Progress) {
	every := max(at.Batches/plainLines, 1)
	if last := at.Batch+1 == at.Batches; !last && at.Batch%every != 0 {
		return
	}
	fmt.Fprintf(p.To, "batch %d of %d  loss %.4f  %s samples/s\n", at.Batch+1, at.Batches, at.Loss,
		Thousands(at.SamplesPerSecond))
}

// Note prints a line.
func (p *Plain) Note(text string) { fmt.Fprintln(p.To, text) }

// End is called once, after the last Show.
func (p *Plain) End() {}

// PrintJSON writes the result as exactly one line.
func (r Result) PrintJSON(to io.Writer) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	_, err = to.Write(append(line, '\n'))
	return err
}

// Print writes the result for people.
func (r Result) Print(to io.Writer) error {
	input := r.Input
	if r.Synthetic {
		input += " (synthetic: this accuracy says nothing about real data)"
	}
	_, err := fmt.Fprintf(to, `input      %s
%s on %s test samples
loss       %.4f in the last of %s
rate       %s samples/s: %s samples in %.2f s
traffic    %s sent, %s received
job        %s, %s, %s, backend %s
weights    sha256 %s
`, input, r.scores(), Thousands(float64(r.TestSamples)), r.Loss, count(r.Epochs, "epoch"),
		Thousands(r.SamplesPerSecond), Thousands(float64(r.Samples)), r.Seconds, Bytes(r.BytesSent), Bytes(r.BytesReceived),
		count(r.Trainers, "trainer"), count(r.Shards, "shard"), count(r.Lanes, "lane"), r.Backend, r.WeightsSHA256)
	if err == nil && r.LanesSkipped > 0 {
		_, err = fmt.Fprintf(to, "skipped    %s of %d batches, whose gradients were not finite\n",
			count(int(r.LanesSkipped), "lane"), r.Batches)
	}
	if err == nil && r.WeightsOf != "" {
		_, err = fmt.Fprintf(to, "moment     the end of trainer %s: others may have trained longer, and end with other "+
			"weights, accuracy and model\n", schema.Printable(r.WeightsOf))
	}
	if err == nil && r.Suspect != "" {
		_, err = fmt.Fprintf(to, "suspect    %s\n", schema.Printable(r.Suspect))
	}
	if err == nil && r.Saved != "" {
		_, err = fmt.Fprintf(to, "saved      %s\n", r.Saved)
	}
	return err
}

// scores returns the results on the test set.
func (r Result) scores() string {
	if r.RMSE > 0 {
		return fmt.Sprintf("error      RMSE %.4f, AUC %.4f", r.RMSE, r.AUC)
	}
	return fmt.Sprintf("accuracy   %.4f", r.Accuracy)
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// Thousands writes a number without decimals, its digits in groups of three: 129,950.
func Thousands(x float64) string {
	digits := fmt.Sprintf("%.0f", x)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Bytes writes a number of bytes with the unit that keeps it short: 7 B, 1.5 KiB, 12.0 MiB.
func Bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n)/1024, 0
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	for ; x >= 1024 && unit < len(units)-1; unit++ {
		x /= 1024
	}
	return fmt.Sprintf("%.1f %s", x, units[unit])
}
