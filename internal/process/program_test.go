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

// Commands are written as documents write them, and printed as they run where this program was started.
func TestAsInvoked(t *testing.T) {
	const text = "see ./bin/ps status and ./bin/psbench all; ./bin/trainer packages starts one"
	for arg, want := range map[string]string{
		"./bin/trainer": text,
		"/usr/bin/gradbus-ps": "see /usr/bin/gradbus-ps status and /usr/bin/gradbus-psbench all; /usr/bin/gradbus-trainer " +
			"packages starts one",
		"../bin/ps": "see ../bin/ps status and ../bin/psbench all; ../bin/trainer packages starts one",
		"ps":        "see ps status and psbench all; trainer packages starts one",
	} {
		if got := asInvoked(arg, text); got != want {
			t.Errorf("%s: %q, want %q", arg, got, want)
		}
		if got := asInvoked(arg, want); got != want {
			t.Errorf("%s, a second time: %q", arg, got)
		}
	}
}
