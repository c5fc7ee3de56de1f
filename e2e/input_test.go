package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gradbus/fabric/fabrictest"
)

// mistake is a command and what its one line has to say.
type mistake struct {
	name, bin string
	args      []string
	want      []string
}

func mistakes(t *testing.T) []mistake {
	t.Helper()
	folder := t.TempDir()
	file := func(folder, name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	data := index(t, 50)
	settings := file(folder, "ps.yaml", "shards: 2\nshard: 3\n")
	images := filepath.Dir(file(t.TempDir(), "train-images-idx3-ubyte", "It was a dark and stormy night.\n"))
	return []mistake{
		{"unknown workload", "trainer", []string{"pakcages"}, []string{`unknown workload "pakcages"`, "packages"}},
		{"unknown flag", "trainer", []string{"packages", "--epoch", "4"}, []string{"--epoch"}},
		{"unknown benchmark", "psbench", []string{"resnet"}, []string{`unknown benchmark "resnet"`, "packages"}},
		{"argument to ps", "ps", []string{"start"}, []string{`"start"`}},
		{"everybody", "ps", []string{"--listen", "0.0.0.0:0"}, []string{"0.0.0.0", "token", "insecure"}},
		{"settings", "ps", []string{"--config", settings}, []string{"ps.yaml:2", `"shard"`, "shards"}},
		{"cut index", "trainer", []string{"packages", "--input", file(folder, "cut.gz", "\x1f\x8b\x08\x00\x00\x00")},
			[]string{"cut.gz"}},
		{"no model", "trainer", []string{"packages", "--load", filepath.Join(folder, "none"), "--predict", "x"},
			[]string{"none"}},
		{"folder as model", "trainer", []string{"packages", "--input", data, "--save", folder},
			[]string{"--save", folder, "directory"}},
		{"no server", "trainer",
			[]string{"packages", "--input", data, "--server", fmt.Sprint("nats://127.0.0.1:", fabrictest.DeadPort(t))},
			[]string{"no gradbus server", filepath.Join(binaries, "ps") + " starts one"}},
		{"not images", "trainer", []string{"mnist", "--data-dir", images},
			[]string{"train-images-idx3-ubyte", "begins with 49742077, want 00000803"}},
	}
}

// What a person can mistype: one clear line, status 1, nothing on standard output.
func TestMistakes(t *testing.T) {
	for _, c := range mistakes(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, c.bin, c.args...)
			p.fails(t, c.want...)
			if out := p.stdout.String(); out != "" {
				t.Errorf("printed %q", out)
			}
		})
	}
}

func TestHelpShowsExamples(t *testing.T) {
	for _, c := range []struct {
		bin  string
		args []string
	}{{"ps", []string{"--help"}}, {"trainer", []string{"--help"}}, {"trainer", []string{"packages", "--help"}},
		{"trainer", []string{"mnist", "--help"}}, {"trainer", []string{"movielens", "--help"}},
		{"psbench", []string{"packages", "--help"}}} {
		p := start(t, c.bin, c.args...)
		p.succeeds(t)
		if out := p.stdout.String(); !strings.Contains(out, "Examples:\n  "+binaries) || !strings.Contains(out, "Usage:") {
			t.Errorf("%s %q printed %q", c.bin, c.args, out)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, bin := range []string{"ps", "trainer", "psbench"} {
		for _, word := range []string{"--version", "version"} {
			p := start(t, bin, word)
			p.succeeds(t)
			form := regexp.MustCompile(
				"^" + bin + ` version [0-9.]+\ncommit: .+\ngo: go1\.\S+ \S+/\S+\nnative: .+\nwire: [0-9]+, protocol [0-9a-f]{16}\n$`)
			if out := p.stdout.String(); !form.MatchString(out) {
				t.Errorf("%s %s printed %q", bin, word, out)
			}
		}
	}
}

// Each program has scripts for shells, and man pages of itself and what is below it.
func TestCompletionAndMan(t *testing.T) {
	for bin, below := range map[string]string{"ps": "ps-status", "trainer": "trainer-packages",
		"psbench": "psbench-kernels"} {
		for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
			p := start(t, bin, "completion", shell)
			p.succeeds(t)
			if out := p.stdout.String(); !strings.Contains(out, "__complete") || !strings.Contains(out, bin) {
				t.Errorf("%s completion %s printed %.200q", bin, shell, out)
			}
		}
		folder := t.TempDir()
		start(t, bin, "man", folder).succeeds(t)
		for _, page := range []string{bin, below} {
			text, err := os.ReadFile(filepath.Join(folder, page+".1"))
			if err != nil || !strings.HasPrefix(string(text), ".nh\n.TH") {
				t.Errorf("%s: %.80q, %v", page, text, err)
			}
		}
	}
}

func TestPortTaken(t *testing.T) {
	_, url := server(t)
	address := strings.TrimPrefix(url, "nats://")
	start(t, "ps", "--listen", address, "--http", "off").fails(t, address, "--listen")
}

func TestToken(t *testing.T) {
	folder := t.TempDir()
	right, wrong := filepath.Join(folder, "right"), filepath.Join(folder, "wrong")
	for path, text := range map[string]string{right: "open-sesame-open\n", wrong: "open-barley-open\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, url := server(t, "--token-file", right)
	data := index(t, 50)
	train := []string{"packages", "--server", url, "--input", data, "--epochs", "1", "--batch", "16", "--dim", "8"}
	start(t, "trainer", train...).fails(t, "token", "none was given")
	start(t, "trainer", append(train, "--token-file", wrong)...).fails(t, "wrong token")
	start(t, "trainer", append(train, "--token-file", right)...).succeeds(t)
}

// Words of other programs, and slips, are answered by what is meant.
func TestNearest(t *testing.T) {
	for _, c := range []struct {
		line, want string
	}{
		{"ps staus", "did you mean status?"},
		{"ps --port 4222", "did you mean --listen?"},
		{"trainer --trainers 2", "name the workload first"},
		{"trainer packages --learning-rate 2", "did you mean --lr?"},
		{"trainer mnist --batch-size 2", "did you mean --batch?"},
		{"trainer packages --data cluster", "did you mean --input or --route?"},
		{"psbench hosted --batch-size 2", "did you mean --trainer-batch?"},
		{"psbench hosted --data mnist", "did you mean --input or --route?"},
		{"psbench kernels --device cuda", "did you mean --backend?"},
		{"psbench update --join nats://127.0.0.1:4222", "did you mean --server?"},
		{"psbench hybird", "did you mean hybrid?"},
	} {
		words := strings.Fields(c.line)
		start(t, words[0], words[1:]...).fails(t, c.want)
	}
}

// What config print writes is taken by --config, a variable of the environment wins over it, and a flag over that.
func TestSettings(t *testing.T) {
	folder := t.TempDir()
	for line, wrong := range map[string]struct{ flags, want string }{
		"ps": {"--shards 0", "shards 0: want"}, "trainer packages": {"--lr -1", "lr -1: want"},
		"trainer mnist":  {"--lr -1", "lr -1: want"},
		"psbench update": {"--batches 0", "batches 0: want"}, "psbench hosted": {"--epochs -1", "epochs -1: want"},
		"psbench kernels": {"--threads 0", "threads 0: want"},
	} {
		words := strings.Fields(line)
		p := start(t, words[0], append([]string{"config", "print"}, words[1:]...)...)
		p.succeeds(t)
		path := filepath.Join(folder, strings.Join(words, "-")+".yaml")
		if err := os.WriteFile(path, []byte(p.stdout.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		// The file is right, and so is what comes after it but for one flag.
		start(t, words[0], append(words[1:], append(strings.Fields(wrong.flags), "--config", path)...)...).fails(t,
			wrong.want)
	}
	ps := exec.Command(filepath.Join(binaries, "ps"), "--config", filepath.Join(folder, "ps.yaml"), "--http",
		"127.0.0.1:0")
	ps.Env = append(os.Environ(), "GRADBUS_LISTEN=127.0.0.1:0", "GRADBUS_HTTP=off", "GRADBUS_SHARDS=3")
	p := startCommand(t, "ps", ps)
	p.says(t, "(shards 3, deadline 30s)")
	p.says(t, "The page, with all jobs:")
	train := exec.Command(filepath.Join(binaries, "trainer"), "packages")
	train.Env = append(os.Environ(), "GRADBUS_TRAINERS=many")
	startCommand(t, "trainer", train).fails(t, `GRADBUS_TRAINERS in the environment: "many": want a whole number`)
}

// A password on a command line is refused; in a file it reaches the trainers that are started too, whose command lines
// do not have it.
func TestPasswordInAddress(t *testing.T) {
	folder := t.TempDir()
	token, file := filepath.Join(folder, "token"), filepath.Join(folder, "trainer.yaml")
	const secret = "open-sesame-open"
	if err := os.WriteFile(token, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, url := server(t, "--token-file", token)
	with := strings.Replace(url, "nats://", "nats://"+secret+"@", 1)
	if err := os.WriteFile(file, []byte("server: "+with+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	train := []string{"packages", "--input", index(t, 50), "--epochs", "1", "--batch", "16", "--dim", "8", "--spawn",
		"--trainers", "2"}
	p := start(t, "trainer", append(train, "--server", with)...)
	p.fails(t, "--server has a password or token in its address", "--token-file", "--config")
	if strings.Contains(p.stderr.String(), secret) {
		t.Errorf("the error shows the secret: %s", p.stderr.String())
	}
	start(t, "trainer", append(train, "--config", file)...).succeeds(t)
	bench := []string{"update", "--server", url, "--trainers", "1", "--batches", "2", "--warmup", "0", "--json"}
	start(t, "psbench", append(bench, "--token-file", token)...).succeeds(t)
	start(t, "psbench", bench...).fails(t, "token")
}
