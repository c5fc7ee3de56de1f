package status

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ago is a time of ms milliseconds as sentences say it: "0.4 s", "18 s", "3 min", "2 h 5 min", "3 days".
func ago(ms int64) string {
	switch s := ms / 1000; {
	case s < 1:
		return fmt.Sprintf("0.%d s", max(ms/100, 1))
	case s < 120:
		return fmt.Sprintf("%d s", s)
	case s < 120*60:
		return fmt.Sprintf("%d min", s/60)
	case s < 48*3600:
		if m := s / 60 % 60; m > 0 {
			return fmt.Sprintf("%d h %d min", s/3600, m)
		}
		return fmt.Sprintf("%d h", s/3600)
	default:
		return fmt.Sprintf("%d days", s/86400)
	}
}

// count is a quantity with its thousands apart: "12,300". Numbers of batches and versions are names, and stand as they
// are in logs.
func count(f float64) string {
	if math.IsNaN(f) || math.Abs(f) >= 1e15 {
		return "very many"
	}
	if f < 10 && f != math.Trunc(f) {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(math.Round(f), 'f', 0, 64)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// figure is a number with three significant digits: "0.41", "12.3", "NaN".
func figure(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 0):
		return "infinite"
	case f == 0:
		return "0"
	case math.Abs(f) >= 1000 && math.Abs(f) < 1e6:
		return count(f)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}

// percent of a share.
func percent(share float64) string { return fmt.Sprintf("%.0f %%", share*100) }

// bytes is an amount: "512 MiB".
func amount(bytes int64) string {
	const units = "KMGTP"
	f, unit := float64(bytes), ""
	for i := 0; f >= 1024 && i < len(units); i++ {
		f, unit = f/1024, units[i:i+1]+"i"
	}
	if f < 10 && unit != "" {
		return fmt.Sprintf("%.1f %sB", f, unit)
	}
	return fmt.Sprintf("%.0f %sB", f, unit)
}

// list names some things: "t0", "t0 and t3", "t0, t1 and 3 more".
func list(names []string) string {
	switch n := len(names); {
	case n == 0:
		return "nobody"
	case n == 1:
		return names[0]
	case n <= 4:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	default:
		return strings.Join(names[:3], ", ") + fmt.Sprintf(" and %d more", n-3)
	}
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
