package metrics

import "gradbus/ps/ops/status"

// problemsMax bounds the problems that are told one by one; the worst come first.
const problemsMax = 200

// problemTable tells what is wrong, in all the cluster, as every ps sees it.
func problemTable() table[*status.Status] {
	type view = *status.Status
	return table[view]{nil, []figure[view]{
		gauges("gradbus_problem", "Problems there are, by code; 0 for those that are not.", []string{"code", "level"},
			countProblems),
		gauges("gradbus_problem_info", "Each problem there is and what it is about; always 1.",
			[]string{"code", "level", "job_name", "member", "gpu"}, listProblems),
	}}
}

// coded is a kind of problem.
type coded struct {
	code  string
	level status.Level
}

// countProblems has every code there is, 0 or not, so that alerts see a change.
func countProblems(s *status.Status, r *row) {
	codes := status.Codes()
	order, known := make([]coded, 0, len(codes)), make(map[coded]bool, len(codes))
	for _, c := range codes {
		order = append(order, coded{c.Code, c.Level})
		known[order[len(order)-1]] = true
	}
	counts := map[coded]int{}
	for i := range s.Problems {
		c := coded{s.Problems[i].Code, s.Problems[i].Level}
		if !known[c] && len(order) < len(codes)+problemsMax { // some are less bad at times
			order = append(order, c)
			known[c] = true
		}
		counts[c]++
	}
	for _, c := range order {
		r.value(float64(counts[c]), c.code, string(c.level))
	}
}

func listProblems(s *status.Status, r *row) {
	type about struct {
		coded
		job, member, gpu string
	}
	seen := map[about]bool{}
	for i := range s.Problems {
		p := &s.Problems[i]
		a := about{coded{p.Code, p.Level}, p.Job, p.Member, p.GPU}
		if seen[a] || len(seen) == problemsMax {
			continue
		}
		seen[a] = true
		r.value(1, p.Code, string(p.Level), p.Job, p.Member, p.GPU)
	}
}
