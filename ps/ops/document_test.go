package ops

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The document names every path, header limit and bound as they are.
func TestDocument(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	l := limits{}.withDefaults()
	want := []string{
		"`/api/v1/stream`", "`/login`", fmt.Sprintf("| %d KiB, within %d s; no body", l.headerBytesMax>>10,
			int(l.headerTime.Seconds())),
		fmt.Sprintf("within %d s; an update of the stream within %d s", int(l.writeTime.Seconds()),
			int(l.streamTime.Seconds())),
		fmt.Sprintf("| connections | %d;", l.connectionsMax), fmt.Sprintf("| streams | %d;", l.streamsMax),
		fmt.Sprintf("| between requests | %d s", int(l.idleTime.Seconds())),
		fmt.Sprintf("has not run for %d s", int(l.aliveTime.Seconds())),
		fmt.Sprintf("at least %d characters", tokenBytesMin),
	}
	for path := range paths {
		path, _, _ = strings.Cut(path, "?")
		if !strings.HasPrefix(path, "/assets/") {
			want = append(want, "`"+path)
		}
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("docs/http.md: no %q", w)
		}
	}
}
