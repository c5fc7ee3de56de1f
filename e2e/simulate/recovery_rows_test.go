package simulate

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// The factors of the recovery table, but for the job.
var (
	recoverySizes = [][2]int{{1, 1}, {1, 3}, {2, 3}} // shards and trainers
	recoveryKeeps = []string{keepsNothing, keepsFolder, keepsReplica}
	recoveryWho   = []string{whoTrainer, whoTrainers, whoCoordinator, whoOther, whoReplica, whoBoth}
	recoveryWhen  = []string{whenGathering, whenInBatch, whenBetween, whenWriting}
)

// The state to go on from.
const (
	keepsNothing = "nothing"
	keepsFolder  = "folder"  // of checkpoints
	keepsReplica = "replica" // on another ps, and the folder
)

// Who dies.
const (
	whoNobody      = "nobody"
	whoTrainer     = "a trainer"
	whoTrainers    = "all trainers"
	whoCoordinator = "coordinator's ps"
	whoOther       = "another ps"
	whoReplica     = "replica"
	whoBoth        = "trainer and ps"
)

// When it dies.
const (
	whenGathering = "gathering"
	whenInBatch   = "in mid-batch"
	whenBetween   = "between batches"
	whenWriting   = "version written"
)

// Who is cut off with the replica's ps from the coordinator's, and how, while trainers start on its side.
var (
	splitWith = []string{"no trainer", "one trainer of 3", "two trainers of 3"}
	splitHow  = []string{splitCut, splitRefused, splitOneWay}
)

const (
	splitCut     = "cut"
	splitRefused = "refused"     // connections are
	splitOneWay  = "cut one way" // what the coordinator's side sends arrives
)

// recoveryRow is a row of the recovery table.
type recoveryRow struct {
	job              string
	shards, trainers int
	keeps            string
	who, when        string
}

func (r recoveryRow) String() string {
	return strings.Join([]string{r.job, fmt.Sprintf("%d,%d", r.shards, r.trainers), r.keeps, r.who, r.when}, " | ")
}

// rowOf is the row with this text.
func rowOf(text string) (r recoveryRow, err error) {
	words := strings.Split(text, " | ")
	if len(words) != 5 {
		return r, fmt.Errorf("row %q: want five fields", text)
	}
	r.job, r.keeps, r.who, r.when = words[0], words[2], words[3], words[4]
	_, err = fmt.Sscanf(words[1], "%d,%d", &r.shards, &r.trainers)
	return r, err
}

// possible reports whether the job has the processes that die, and the moment at which they do.
func (r recoveryRow) possible() bool {
	job := recoveryJob(r.job, r.trainers)
	switch {
	case r.who == whoReplica && r.keeps != keepsReplica, r.who == whoOther && r.shards == 1:
		return false
	case r.when == whenGathering && r.trainers == 1:
		return false
	case r.when == whenWriting && (r.keeps == keepsNothing || job.CheckVersions() != nil):
		return false
	}
	return true
}

// recoveryTable gives the rows: each job undisturbed, then with every value of every factor, then what is missing for
// all pairs of values that are possible to occur. A job's own rows do not depend on the other jobs.
func recoveryTable() (rows []recoveryRow) {
	var all, chosen []recoveryRow
	for _, job := range recoveryJobs {
		_, rounded := sharesDigest(recoveryJob(job, 1))
		var own []recoveryRow
		for i, size := range recoverySizes {
			if i == 0 || rounded && size[0] == 1 {
				rows = append(rows, recoveryRow{job, size[0], size[1], keepsNothing, whoNobody, "-"})
			}
			for _, keeps := range recoveryKeeps {
				for _, who := range recoveryWho {
					for _, when := range recoveryWhen {
						if r := (recoveryRow{job, size[0], size[1], keeps, who, when}); r.possible() {
							own = append(own, r)
						}
					}
				}
			}
		}
		slices.SortFunc(own, func(a, b recoveryRow) int { return cmp.Compare(a.hash(), b.hash()) })
		all = append(all, own...)
		chosen = append(chosen, cover(own, nil, recoveryRow.values)...)
	}
	chosen = append(chosen, cover(all, chosen, recoveryRow.pairs)...)
	slices.SortStableFunc(chosen, func(a, b recoveryRow) int {
		return cmp.Compare(slices.Index(recoveryJobs, a.job), slices.Index(recoveryJobs, b.job))
	})
	for _, with := range splitWith {
		for _, how := range splitHow {
			chosen = append(chosen, splitRow(with, how))
		}
	}
	return append(rows, chosen...)
}

func splitRow(with, how string) recoveryRow {
	return recoveryRow{"sync update shards rows", 1, 3, keepsReplica, with, how}
}

// split is how many trainers are with the replica's ps when the network is split; ok is false if it is not.
func (r recoveryRow) split() (trainers int, ok bool) {
	trainers = slices.Index(splitWith, r.who)
	return trainers, trainers >= 0
}

// cover chooses of rows until they have, with those that are there, all that any of them has. It takes the row with the
// most that is missing, again and again, and of several the first.
func cover(rows, there []recoveryRow, has func(recoveryRow) []string) (chosen []recoveryRow) {
	of := make([][]string, len(rows))
	missing := map[string]bool{}
	for i, r := range rows {
		of[i] = has(r)
		for _, v := range of[i] {
			missing[v] = true
		}
	}
	for _, r := range there {
		for _, v := range has(r) {
			delete(missing, v)
		}
	}
	for len(missing) > 0 {
		best, most := 0, 0
		for i := range rows {
			n := 0
			for _, v := range of[i] {
				if missing[v] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		chosen = append(chosen, rows[best])
		for _, v := range of[best] {
			delete(missing, v)
		}
	}
	return chosen
}

// values are those of the row, of all factors but the job.
func (r recoveryRow) values() []string {
	return []string{fmt.Sprint(r.shards, r.trainers), r.keeps, r.who, r.when}
}

// pairs are those of the row's values.
func (r recoveryRow) pairs() (pairs []string) {
	values := append(r.values(), r.job)
	for i := range values {
		for j := range i {
			pairs = append(pairs, values[j]+", "+values[i])
		}
	}
	return pairs
}

func (r recoveryRow) hash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(r.String()))
	return h.Sum64()
}
