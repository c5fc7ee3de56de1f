package gpu

import (
	"strconv"
	"strings"
	"testing"
)

// The table of XIDs is NVIDIA's catalog: it says as of when it is, and every number has a name, and an action that has a
// rule.
func TestXIDCatalog(t *testing.T) {
	if !strings.Contains(catalog, "\n# As of: 20") {
		t.Error("the catalog has no date")
	}
	rows := 0
	for i, line := range strings.Split(strings.TrimSpace(catalog), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 3 {
			t.Fatalf("line %d: %d cells, want 3", i+1, len(cells))
		}
		number, err := strconv.ParseUint(cells[0], 10, 10)
		if err != nil || number == 0 || cells[1] == "" {
			t.Fatalf("line %d: XID %q, %q", i+1, cells[0], cells[1])
		}
		action := strings.TrimPrefix(cells[2], "-")
		class, text := asked(action)
		if strings.HasPrefix(text, "Look it up") && action != "" && action != "CONTACT_SUPPORT" {
			t.Errorf("line %d: no rule for %s", i+1, action)
		}
		if got := entryOf(number); got.class != class {
			t.Errorf("XID %d has class %d, want %d", number, got.class, class)
		}
		rows++
	}
	if rows < 170 {
		t.Errorf("%d XIDs, want all that NVIDIA documents", rows)
	}
}
