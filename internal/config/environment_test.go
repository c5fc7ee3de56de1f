package config

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestEnvironmentOrder(t *testing.T) {
	path := write(t, "shards: 5\ndeadline: 2m\nlisten: 127.0.0.1:9\n")
	for name, value := range map[string]string{"GRADBUS_SHARDS": "4", "GRADBUS_DEADLINE": "3m", "GRADBUS_CONFIG": path,
		"GRADBUS_LR": "7"} {
		t.Setenv(name, value)
	}
	var s settings
	flags := flagsOf(&s)
	if err := flags.Parse([]string{"--shards", "3"}); err != nil {
		t.Fatal(err)
	}
	if err := Load(flags, nobody(t)); err != nil {
		t.Fatal(err)
	}
	want := settings{shards: 3, listen: "127.0.0.1:9", deadline: 3 * time.Minute, start: time.Hour, lr: 7}
	if s != want {
		t.Errorf("got %+v, want %+v: flag over environment over file over default", s, want)
	}
	if value, there := os.LookupEnv("GRADBUS_SHARDS"); there {
		t.Errorf("GRADBUS_SHARDS=%s is left for what this process starts", value)
	}
}

func TestEnvironmentWrong(t *testing.T) {
	for _, c := range []struct{ name, value, want, told string }{
		{"GRADBUS_SHARDS", "many", `GRADBUS_SHARDS in the environment: "many": want a whole number`, ""},
		{"GRADBUS_DEADLINE", "30", `GRADBUS_DEADLINE in the environment: "30": want a time with its unit`, ""},
		{"GRADBUS_SHRADS", "2", "",
			"GRADBUS_SHRADS in the environment is no setting of this command (did you mean GRADBUS_SHARDS?)"},
		{"GRADBUS_GATHER", "1h", "GRADBUS_GATHER in the environment is called GRADBUS_START_TIMEOUT now", ""},
		{"GRADBUS_STANDBY_PEERS", "true",
			"GRADBUS_STANDBY_PEERS in the environment is GRADBUS_REPLICAS 1 now", ""},
		{"GRADBUS_AHEAD", "2", "", ""}, // of a command that has no --staleness
		{"GRADBUS_LEARNING_RATE", "2", "", "(did you mean GRADBUS_LR?)"},
		{"GRADBUS_shards", "2", "", "(did you mean GRADBUS_SHARDS?)"},
		{"GRADBUS_OF_ANOTHER_PROGRAM", "2", "", ""},
		{"GRADBUS_HELP", "true", "", ""},
		{"GRADBUS_LISTEN", "", "GRADBUS_LISTEN in the environment: is empty: want a string, or leave it out", ""},
		{"GRADBUS_LISTEN", "nats://ann:secret@10.0.0.1:4222",
			"GRADBUS_LISTEN has a password or token in its address, and in the environment", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			var s settings
			flags := flagsOf(&s)
			Addresses(flags, "listen")
			told := ""
			err := Load(flags, func(text string) { told += text })
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if !strings.Contains(told, c.told) || c.told == "" && told != "" {
				t.Errorf("told %q, want %q", told, c.told)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

// A variable named as a flag that a command had may be a setting of another command, whose environment is the same. A
// file of settings belongs to one command, and so does its command line (TestWords).
func TestRemovedFlagsInTheEnvironment(t *testing.T) {
	withCurves := func() *pflag.FlagSet {
		flags := flagsOf(&settings{})
		flags.String("tensorboard", "", "")
		return flags
	}
	for name, value := range map[string]string{"GRADBUS_CHECKPOINT_DIR": "/checkpoints", "GRADBUS_CHECKPOINT_EVERY": "100",
		"GRADBUS_CHECKPOINT_KEEP": "3"} {
		t.Setenv(name, value)
	}
	if err := Load(withCurves(), nobody(t)); err != nil {
		t.Error(err)
	}
	t.Setenv("GRADBUS_CONFIG", write(t, "checkpoint-dir: /checkpoints\n"))
	const want = "checkpoint-dir is gone: a trainer writes no checkpoints"
	if err := Load(withCurves(), nobody(t)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// A password in an address is for the file alone.
func TestPasswordsInAddresses(t *testing.T) {
	const secret = "nats://a:4222,nats://ann:secret@10.0.0.1:4222"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", secret}, "--listen has a password or token in its address, and on a command line every user"},
		{[]string{"--listen", "TOKEN@10.0.0.1:4222"}, "--listen has"},
		{[]string{"--listen", "nats://10.0.0.1:4222"}, ""},
		{[]string{"--config", write(t, "listen: "+secret+"\n")}, ""},
	} {
		var s settings
		flags := flagsOf(&s)
		Addresses(flags, "listen")
		if err := flags.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		err := Load(flags, nobody(t))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "secret")) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

// What config print writes sets every flag to its default, and says of each what it is for.
func TestPrintedFileComesBack(t *testing.T) {
	root := trainerLike()
	var out strings.Builder
	root.SetOut(&out)
	root.SetArgs([]string{"config", "print", "mnist"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n# learning rate\nlr: 20\n", "\n#server: STRING\n", "\ntrainers: 1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
	root.SetArgs([]string{"mnist", "--config", write(t, out.String())})
	if err := root.Execute(); err != nil {
		t.Error(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "#server") {
			lines[i] = "server: nats://10.0.0.1:4222"
		}
	}
	root.SetArgs([]string{"mnist", "--config", write(t, strings.Join(lines, "\n"))})
	if err := root.Execute(); err != nil {
		t.Error(err)
	}
	for line, want := range map[string]string{"config print": "want a workload: one of mnist, packages",
		"config print resnet": `unknown workload "resnet"`, "config": "want config print"} {
		root.SetArgs(strings.Fields(line))
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}
