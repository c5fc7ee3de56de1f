package process

import "testing"

func TestInvoked(t *testing.T) {
	for _, c := range []struct{ arg, program, want string }{
		{"./bin/ps", "ps", "./bin/ps"},
		{"./bin/trainer", "ps", "./bin/ps"},
		{"bin/psbench", "trainer", "bin/trainer"},
		{"ps", "ps", "ps"},
		{"/usr/bin/gradbus-ps", "ps", "/usr/bin/gradbus-ps"},
		{"gradbus-trainer", "ps", "gradbus-ps"},
		{"/opt/our models/ps", "ps", "'/opt/our models/ps'"},
		{"it's/ps", "ps", `'it'\''s/ps'`},
		{"./test.test", "ps", "./ps"},
	} {
		if got := invoked(c.arg, c.program); got != c.want {
			t.Errorf("%s of a process started as %s is %s, want %s", c.program, c.arg, got, c.want)
		}
	}
}
