package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A job whose ps and trainers are all killed with -9 goes on from its newest durable version, by other numbers of both,
// to the weights of a run in which nothing happened. What is resumed too early or with other settings says so.
func TestKilledAndResumed(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: trainer.TestResume does the same in one process, on fake time")
	}
	for _, apply := range []string{"update", "mean"} {
		t.Run(apply, func(t *testing.T) { killedAndResumed(t, "--apply", apply) })
	}
}

func killedAndResumed(t *testing.T, flags ...string) {
	data, dir := index(t, 200), filepath.Join(t.TempDir(), "checkpoints")
	flags = append(flags, "--epochs", "4000", "--optimizer", "adam", "--lr", "0.001") // 48,000 batches
	quiet := start(t, "trainer", append(slices.Delete(short("", data), 1, 3), append(flags, "--local", "--json")...)...)

	keep := []string{"--checkpoint-dir", dir, "--checkpoint-every", "100"}
	ps, url := server(t, keep...)
	ps.says(t, "written to "+dir)
	start(t, "trainer", short(url, data, append(flags, "--resume")...)...).fails(t, "no", "durable version")
	trainers := []*process{
		start(t, "trainer", short(url, data, append(flags, "--trainers", "2", "--id", "t0")...)...),
		start(t, "trainer", short(url, data, append(flags, "--trainers", "2", "--id", "t1")...)...),
	}
	ps.says(t, "version is durable")
	for _, p := range append(trainers, ps) {
		p.signal(t, syscall.SIGKILL)
		p.status(t)
	}
	listed := start(t, "ps", "checkpoints", "list", dir)
	listed.succeeds(t)
	if out := listed.stdout.String(); !strings.Contains(out, "durable") {
		t.Errorf("list says\n%s", out)
	}

	_, url = server(t, append(keep, "--shards", "3")...)
	start(t, "trainer", short(url, data, append(flags, "--resume", "--dim", "16")...)...).
		fails(t, "shape", "is 8 in the checkpoint and 16 in the job")
	flags = append(flags, "--resume", "--spawn", "--trainers", "4", "--json")
	resumed := start(t, "trainer", short(url, data, flags...)...)
	quiet.succeeds(t)
	resumed.succeeds(t)
	want, got := quiet.result(t), resumed.result(t)
	if got.WeightsSHA256 != want.WeightsSHA256 || got.Batches >= want.Batches {
		t.Errorf("resumed: %d batches, weights %s, want fewer than %d, and weights %s", got.Batches, got.WeightsSHA256,
			want.Batches, want.WeightsSHA256)
	}
}

// A job whose shards add up nothing ends when one of its trainers is killed with -9. It says with which model to begin
// a new one, and a new one begins with that.
func TestKilledAndLoaded(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: trainer.TestSavedWhileItRuns does the same in one process")
	}
	data, model := index(t, 200), filepath.Join(t.TempDir(), "model.safetensors")
	_, url := server(t)
	flags := []string{"--apply", "mean", "--reduce", "trainers", "--failure-policy", "fail", "--epochs", "4000",
		"--trainers", "2", "--save", model, "--save-every", "100"}
	first := start(t, "trainer", short(url, data, append(flags, "--id", "t0")...)...)
	second := start(t, "trainer", short(url, data, append(flags, "--id", "t1")...)...)
	first.says(t, "model saved")
	second.signal(t, syscall.SIGKILL)
	second.status(t)
	first.fails(t, "trainer t1", "by --load "+model)
	loaded := start(t, "trainer", short(url, data, "--apply", "mean", "--reduce", "trainers", "--load", model, "--spawn",
		"--trainers", "3", "--epochs", "1", "--job", "loaded")...)
	loaded.succeeds(t)
}

// A trainer killed with -9 is replaced by another, or the job restarts without it if trainers own dense parameters. Then a
// new process comes, and a ps that is killed and started again has its trainers back: the weights are those of a run in
// which nothing happened.
func TestKilledAndReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: e2e/simulate does the same in one process")
	}
	for name, c := range map[string]struct {
		flags []string
		lost  string // what the ps says of the trainer
	}{
		"shards own the parameters": {[]string{"packages", "--input", index(t, 200), "--lanes", "6", "--batch", "32", "--dim", "8",
			"--epochs", "4000", "--optimizer", "adam", "--lr", "0.001", "--apply", "update"}, "are computed by"},
		"trainers own them": {[]string{"mnist", "--input", "synthetic", "--batch", "48", "--lanes", "6", "--batches", "120",
			"--apply", "mean"}, "the job goes back"},
	} {
		t.Run(name, func(t *testing.T) {
			keep := []string{"--checkpoint-dir", filepath.Join(t.TempDir(), "checkpoints"), "--checkpoint-every", "1s"}
			killedAndReplaced(t, c.flags, keep, c.lost)
		})
	}
}

func killedAndReplaced(t *testing.T, flags, keep []string, lost string) {
	quiet := start(t, "trainer", append(flags, "--local", "--json")...)
	ps, url := server(t, keep...)
	trainer := func() *process {
		return start(t, "trainer", append(flags, "--server", url, "--trainers", "3", "--json")...)
	}
	trainers := []*process{trainer(), trainer(), trainer()}
	trainers[0].says(t, "batch ")
	trainers[1].signal(t, syscall.SIGKILL)
	trainers[1].status(t)
	ps.says(t, lost)
	trainers[1] = trainer()
	trainers[1].says(t, "batch ")
	ps.signal(t, syscall.SIGKILL)
	ps.status(t)
	server(t, append(keep, "--listen", strings.TrimPrefix(url, "nats://"))...)
	endAlike(t, quiet, trainers)
}

// Of two ps that hold replicas for each other the one with the job is killed, then, once the first is there again, the
// other: nothing is on a disk, and the weights are those of a job in which nothing has happened.
func TestKilledAndStoodByFor(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: e2e/simulate does the same in one process")
	}
	flags := []string{"movielens", "--input", "synthetic", "--epochs", "1500", "--optimizer", "adam", "--lr", "0.001"}
	quiet := start(t, "trainer", append(flags, "--local", "--json")...)
	first, at := server(t)
	second, other := server(t, "--replicas", "1", "--peer", at)
	trainers := make([]*process, 3)
	for i := range trainers {
		trainers[i] = start(t, "trainer", append(flags, "--server", at, "--trainers", "3", "--json")...)
	}
	second.says(t, "job replicated")
	first.signal(t, syscall.SIGKILL)
	first.status(t)
	second.says(t, "job goes on here")
	first, _ = server(t, "--listen", strings.TrimPrefix(at, "nats://"), "--replicas", "1", "--peer", other)
	first.says(t, "job replicated")
	drained := start(t, "ps", "drain", "--server", other)
	drained.succeeds(t)
	second.status(t)
	if said := drained.stdout.String(); !strings.Contains(said, "handed over to the ps at "+at) {
		t.Errorf("drain says %q, want that the job is handed over to the ps at %s", said, at)
	}
	first.says(t, "job goes on here")
	endAlike(t, quiet, trainers)
}

// Three ps with the shards of one job are ended in turn, each as an operator does it, and started again: no batch is
// lost. The last is the one that the others find each other at.
func TestKilledAndRolled(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: TestKilledAndReplaced restarts one ps; e2e/simulate restarts both of two")
	}
	flags := []string{"movielens", "--input", "synthetic", "--epochs", "2000", "--optimizer", "adam", "--lr", "0.001"}
	quiet := start(t, "trainer", append(flags, "--local", "--json")...)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keep := []string{"--control-token-file", token, "--checkpoint-dir", filepath.Join(t.TempDir(), "checkpoints"),
		"--checkpoint-every", "2s"}
	first, url := server(t, keep...)
	all, at := []*process{first}, []string{url}
	for range 2 {
		p, url := server(t, append(keep, "--nats", at[0])...)
		all, at = append(all, p), append(at, url)
	}
	trainers := make([]*process, 3)
	for i := range trainers {
		trainers[i] = start(t, "trainer", append(flags, "--server", at[0], "--trainers", "3", "--json")...)
	}
	trainers[0].says(t, "batch ")
	for n, i := range []int{2, 1, 0} {
		all[i].signal(t, syscall.SIGTERM)
		all[i].succeeds(t)
		args := append(keep, "--listen", strings.TrimPrefix(at[i], "nats://"))
		if i > 0 {
			args = append(args, "--nats", at[0])
		}
		all[i], _ = server(t, args...)
		for _, p := range trainers {
			poll(t, fmt.Sprintf("%s has come back from %d restarts", p.name, n+1), func() bool {
				came := strings.Split(p.stderr.String(), "rejoining job")
				return len(came) > n+1 && strings.Contains(came[len(came)-1], "\nbatch ")
			})
		}
	}
	endAlike(t, quiet, trainers)
	if said := all[0].stderr.String(); strings.Contains(said, `"servers":1`) || !strings.Contains(said, `"servers":`) {
		t.Errorf("after the last restart the job has gone on without the other ps:\n%s", said)
	}
}

// endAlike waits for the end of trainers, whose weights are to be those of the job in which nothing happened.
func endAlike(t *testing.T, quiet *process, trainers []*process) {
	t.Helper()
	quiet.succeeds(t)
	want := quiet.result(t).WeightsSHA256
	for i, p := range trainers {
		p.succeeds(t)
		if got := p.result(t).WeightsSHA256; got != want {
			t.Errorf("trainer %d: weights %s, want %s", i, got, want)
		}
	}
}
