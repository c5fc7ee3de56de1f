package terminal

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"gradbus/schema"
)

// none stands for what is not known.
const none = "–"

// number writes a value with at most four significant digits and a unit prefix of thousands: 1234567 is 1.235M.
func number(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 0):
		return fmt.Sprintf("%+f", x)[:4]
	}
	return scaled(x, 1000, []string{"", "k", "M", "G", "T", "P"})
}

// size writes a number of bytes in powers of 1024: 1.5 MiB.
func size(n int64) string {
	return scaled(float64(n), 1024, []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB"})
}

// rate writes bytes a second in powers of 1000, as networks are measured and as the page does: 1.5 MB/s.
func rate(x schema.Real) string {
	f := float64(x)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return number(f)
	}
	return scaled(f, 1000, []string{" B/s", " kB/s", " MB/s", " GB/s", " TB/s", " PB/s"})
}

func scaled(x, base float64, units []string) string {
	u := 0
	// What would be rounded up to the next unit belongs there: 1023.99 KiB is 1.0 MiB.
	for ; math.Abs(x) >= base-0.5 && u < len(units)-1; u++ {
		x /= base
	}
	digits := 0
	if whole := math.Abs(x); u > 0 || whole != math.Trunc(whole) {
		digits = 1
		if whole >= 99.95 {
			digits = 0
		}
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + units[u]
}

// count writes a whole number, its digits in groups of three.
func count(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// loss writes a loss or a norm with four significant digits.
func loss(x *schema.Real) string {
	if x == nil {
		return none
	}
	f := float64(*x)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return number(f)
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

// span writes a length of time so that it is read at a glance: 3 ms, 1.2 s, 18 s, 3m20s, 2h05m, 4d03h.
func span(ms int64) string {
	switch s := ms / 1000; {
	case ms < 0:
		return "0 s"
	case ms < 1000:
		return fmt.Sprintf("%d ms", ms)
	case s < 10:
		return fmt.Sprintf("%d.%d s", s, ms/100%10)
	case s < 120:
		return fmt.Sprintf("%d s", s)
	case s < 7200:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 48*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	default:
		return fmt.Sprintf("%dd%02dh", s/86400, s%86400/3600)
	}
}

// seconds writes a short time that is measured in seconds: a round trip.
func seconds(x schema.Real) string {
	f := float64(x)
	switch {
	case f == 0:
		return none
	case math.IsNaN(f) || math.IsInf(f, 0):
		return number(f)
	case f < 1e-3:
		return fmt.Sprintf("%.0f µs", f*1e6)
	case f < 1:
		return fmt.Sprintf("%.1f ms", f*1e3)
	}
	return span(int64(f * 1000))
}

// percent writes a share.
func percent(x schema.Real) string {
	f := float64(x)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return number(f)
	}
	return fmt.Sprintf("%.0f %%", f*100)
}

// clock is the time of day at a moment, in the zone of whoever looks.
func clock(ms int64, zone *time.Location) string {
	return time.UnixMilli(ms).In(zone).Format("15:04:05")
}
