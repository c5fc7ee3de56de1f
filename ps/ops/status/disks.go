package status

import (
	"fmt"
	"slices"
	"strings"

	"gradbus/schema"
)

// Disks are asked every ten seconds. One that has not answered for diskHangs hangs: whoever writes to it waits.
const diskHangs = 30_000

// Bounds of what is left of a file system, besides what a model takes, in bytes. Below lowShare of its size alone they
// count: a memory file system of 64 MiB is not full all of its life. A hundredth of a large one may be much, and is no
// reason to wake anybody.
const (
	fullBytes = 64 << 20
	lowBytes  = 1 << 30
	lowShare  = 0.10
)

// disksOf is what a member says of its file systems, with their ages.
func disksOf(h *heard, said []schema.DiskReport, now int64) (all []Disk) {
	for _, d := range said[:min(len(said), disksPerReport)] {
		out := Disk{Path: brief(d.Path), Use: brief(d.Use), FreeBytes: max(d.FreeBytes, 0), TotalBytes: max(d.TotalBytes, 0),
			NeedBytes: max(d.NeedBytes, 0), device: d.Device}
		if out.AgeMS = h.age(now); d.SampleMS > 0 {
			out.AgeMS += min(max(h.report.NowMS-d.SampleMS, 0), msMax)
		}
		all = append(all, out)
	}
	return all
}

// code says what is wrong with a file system; empty where nothing is.
func (d *Disk) code() string {
	if d.TotalBytes <= 0 {
		return ""
	}
	free, little := d.FreeBytes, float64(d.FreeBytes) < lowShare*float64(d.TotalBytes)
	switch {
	case d.AgeMS >= diskHangs:
		return CodeDiskHangs
	case free < d.NeedBytes, free < fullBytes && little:
		return CodeDiskFull
	case free/2 < d.NeedBytes, free < lowBytes && little:
		return CodeDiskLow
	}
	return ""
}

// diskUser is somebody who writes to a file system.
type diskUser struct {
	host, job, member string
	disk              *Disk
}

// disks finds file systems that are full, nearly so, or do not answer: each once, whoever writes to it.
func (j *ranking) disks() {
	type key struct{ host, name string }
	var order []key
	users := map[key][]diskUser{}
	note := func(u diskUser) {
		k := key{u.host, u.disk.device}
		if k.name == "" {
			k.name = "path " + u.disk.Path
		}
		if users[k] == nil {
			order = append(order, k)
		}
		users[k] = append(users[k], u)
	}
	for i := range j.s.Servers {
		v := &j.s.Servers[i]
		if s := j.t.servers[v.ID]; !s.heard.fresh(j.s.NowMS) {
			continue
		}
		for k := range v.Disks {
			note(diskUser{v.Host, "", "p-" + v.ID, &v.Disks[k]})
		}
	}
	for i := range j.s.Jobs {
		job := &j.s.Jobs[i]
		for m := range job.Trainers {
			tr := &job.Trainers[m]
			for k := range tr.Disks {
				if job.Phase != schema.PhaseEnded && tr.State != stateLeft && tr.State != stateLost && tr.State != stateSilent {
					note(diskUser{tr.Host, job.Name, tr.Member, &tr.Disks[k]})
				}
			}
		}
	}
	for _, k := range order {
		j.disk(users[k])
	}
}

// disk says what is wrong with one file system, after what the worst of its users say of it.
func (j *ranking) disk(users []diskUser) {
	weightOf := func(u diskUser) int {
		return slices.Index([]string{"", CodeDiskLow, CodeDiskHangs, CodeDiskFull}, u.disk.code())
	}
	worst := slices.MaxFunc(users, func(a, b diskUser) int { return weightOf(a) - weightOf(b) })
	code, d := worst.disk.code(), worst.disk
	if code == "" {
		return
	}
	where := fmt.Sprintf("the disk under %s on %s", schema.Clip(d.Path), worst.host)
	var use []string
	for _, u := range users {
		for part := range strings.SplitSeq(u.disk.Use, ", ") {
			if part != "" && !slices.Contains(use, part) && len(use) < 4 {
				use = append(use, schema.Clip(part))
			}
		}
	}
	text := fmt.Sprintf("%s has %s free of %s", where, amount(d.FreeBytes), amount(d.TotalBytes))
	switch {
	case code == CodeDiskHangs:
		text = fmt.Sprintf("%s has not answered for %s", where, ago(d.AgeMS))
	case d.FreeBytes < d.NeedBytes:
		text += fmt.Sprintf(", and %s needs %s for a model: saving it will fail", worst.who(), amount(d.NeedBytes))
	case d.FreeBytes/2 < d.NeedBytes:
		text += fmt.Sprintf(", and %s needs %s for a model", worst.who(), amount(d.NeedBytes))
	}
	if len(use) > 0 && d.NeedBytes == 0 {
		text += " (for " + list(use) + ")"
	}
	action := ""
	if code == CodeDiskFull && d.FreeBytes < d.NeedBytes {
		action = fmt.Sprintf("Free %s there before the run ends; a model that cannot be saved is lost when its trainers end.",
			amount(d.NeedBytes-d.FreeBytes))
	}
	f := j.find(code, "%s", text).about(worst.job, worst.member).do(action).after(byHost + worst.host)
	if code == CodeDiskHangs {
		f.SinceMS = j.s.NowMS - d.AgeMS
	}
	for _, u := range users {
		if u.job == f.Job && u.member != f.Member {
			f.also = append(f.also, u.member)
		}
	}
	if id, ok := strings.CutPrefix(worst.member, "p-"); ok {
		f.after(byServer + id)
	}
	for _, u := range users {
		if id, ok := strings.CutPrefix(u.member, "p-"); ok && strings.Contains(u.disk.Use, UseCheckpoints) {
			f.before(byDisk + id)
		}
	}
}

// who names somebody who writes.
func (u diskUser) who() string {
	if u.job == "" {
		return u.member
	}
	return "trainer " + u.member + " of " + u.job
}
