package coordinator

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/schema"
)

// admission decides which trainers may join a job, and why others may not.
type admission struct {
	config *Config
	onLoss lossAction
	former []schema.Member // that left before the start, by the names they joined under; the latest, at most formerMax
}

// formerMax bounds the trainers that are remembered after they left before the start: a job may wait for long.
const formerMax = 256

// places returns how many trainers the manifests of newcomers have.
func (a *admission) places() int { return cmp.Or(a.config.SlotsMax, a.config.Job.Trainers) }

// admit returns a vacant slot for a newcomer, or why there is none. gathers reports that the job has yet to start.
func (a *admission) admit(now time.Time, members slots, gathers bool, j *schema.Join) (int, *schema.Refused) {
	if refused := a.differs(j); refused != nil {
		return 0, refused
	}
	if j.Resume != (a.config.Resume != nil) && a.config.Rejoining == nil {
		return 0, a.refuseResume(j.Resume)
	}
	if !gathers {
		return 0, a.full(members)
	}
	if a.config.Job.Plan().Reduces(schema.ByTrainers) && j.URL == "" {
		return 0, a.noURL()
	}
	if j.Wanted != "" && (!a.onLoss.restarts() || a.config.Rejoining == nil) {
		return a.slotOf(now, members, j.Wanted)
	}
	for i := range members {
		if members[i].joiner == "" {
			return i, nil
		}
	}
	if len(members) < a.places() {
		return 0, a.roomSoon(members)
	}
	return 0, &schema.Refused{Reason: "job_full", Text: fmt.Sprintf("job %s has all of its %d trainers", a.config.Job.Name,
		len(members))}
}

// refuseResume refuses a trainer that wants to resume and the others do not, or the other way round.
func (a *admission) refuseResume(wanted bool) *schema.Refused {
	r := &schema.Refused{Reason: "job_differs", Field: "resume", Have: fmt.Sprint(!wanted), Want: fmt.Sprint(wanted)}
	r.Text = fmt.Sprintf("job %s begins at version 0, and this trainer resumes", a.config.Job.Name)
	switch {
	case !wanted && a.config.Resume != nil:
		r.Text = fmt.Sprintf("job %s is resumed at version %d, and this trainer does not resume", a.config.Job.Name,
			a.config.Resume.Version)
	case !wanted:
		r.Text = fmt.Sprintf("job %s is resumed, and this trainer does not resume", a.config.Job.Name)
	}
	r.Text += ": want all trainers to resume, or none"
	return r
}

// noURL refuses a trainer that the others cannot reach.
func (a *admission) noURL() *schema.Refused {
	return &schema.Refused{Reason: "invalid_job", Field: "url", Text: fmt.Sprintf(
		"trainers of job %s reduce among themselves, and this one has no data server: give its url", a.config.Job.Name)}
}

// differs refuses a newcomer whose manifest differs from the job's; nil: it does not.
func (a *admission) differs(j *schema.Join) *schema.Refused {
	field, have, want, differs := a.config.Job.WithChunkBytes(cmp.Or(a.config.ChunkBytes,
		a.config.Job.ChunkBytes)).WithTrainers(a.places()).Diff(j.Job)
	if !differs {
		return nil
	}
	return &schema.Refused{Reason: "job_differs", Field: field, Have: have, Want: want,
		Text: fmt.Sprintf("job %s is registered with %s %s, and this trainer has %s", a.config.Job.Name, field, have, want)}
}

// RunOver refuses a trainer that rejoins a run that has ended.
func RunOver(job schema.JobName) *schema.Refused {
	return &schema.Refused{Reason: schema.RefusedOver,
		Text: fmt.Sprintf("the run of job %s that this trainer was part of has ended", job)}
}

// full refuses a newcomer to a job that has started.
func (a *admission) full(members slots) *schema.Refused {
	text := fmt.Sprintf("job %s has started with its %d trainers; choose another name or wait until it has ended",
		a.config.Job.Name, len(members))
	if i := slices.IndexFunc(members, func(m member) bool { return m.lost() }); i >= 0 && a.onLoss == lossContinue {
		text += fmt.Sprintf(". It goes on without %s, whose place only the process can have that was lost, if it goes on",
			schema.TrainerMember(i))
	}
	return &schema.Refused{Reason: "job_full", Text: text}
}

// slotOf returns the slot of the member id that a newcomer requests, or why it cannot have it.
func (a *admission) slotOf(now time.Time, members slots, wanted schema.Member) (int, *schema.Refused) {
	number, isTrainer := strings.CutPrefix(string(wanted), "t")
	i, err := strconv.Atoi(number)
	if !isTrainer || err != nil || i < 0 || i >= len(members) || schema.TrainerMember(i) != wanted {
		return 0, &schema.Refused{Reason: "invalid_job", Field: "wanted", Want: string(wanted),
			Text: fmt.Sprintf("member %q: the trainers of job %s are t0 to t%d", wanted, a.config.Job.Name, len(members)-1)}
	}
	if m := &members[i]; m.joiner != "" {
		return 0, &schema.Refused{Reason: "member_taken", Field: "wanted", Want: string(wanted),
			Text: fmt.Sprintf("member %s of job %s is taken by %s, last seen %s ago", wanted, a.config.Job.Name, m.host,
				liveness.Rounded(m.For(now)))}
	}
	return i, nil
}

// fullFor refuses a newcomer that finds no slot. If one may be vacant soon, it asks again.
func (a *admission) fullFor(now time.Time, members slots, j *schema.Join) *schema.Refused {
	r := a.full(members)
	if j.Run != 0 { // the loss of its slot may not be noticed yet
		r.Reason = schema.RefusedBusy
	}
	for i := range members {
		if m := &members[i]; m.here() && (m.Cut() || m.For(now) > doubtAfter) {
			r.Reason = schema.RefusedBusy
			r.Text = fmt.Sprintf("job %s has all of its trainers, but %s on %s was last seen %s ago", a.config.Job.Name,
				schema.TrainerMember(i), m.host, liveness.Rounded(m.For(now)))
		}
	}
	return r
}

// doubtAfter is the silence of a trainer, which is heard each second, after which its slot may be vacant soon.
const doubtAfter = 2500 * time.Millisecond

// roomSoon refuses, as busy, a trainer for which the next run has a slot.
func (a *admission) roomSoon(members slots) *schema.Refused {
	return &schema.Refused{Reason: schema.RefusedBusy, Text: fmt.Sprintf(
		"job %s goes on with %d of %d trainers; there is a place once a version of it is durable", a.config.Job.Name,
		members.here(""), a.places())}
}

// unreachable refuses a newcomer on another machine than a member if one of them listens on its own machine alone.
func (a *admission) unreachable(members slots, j *schema.Join) *schema.Refused {
	machine := func(process string) string {
		boot, _, _ := strings.Cut(process, "/")
		return boot
	}
	for i := range members {
		m := &members[i]
		if !m.here() || m.process == "" || j.Process == "" || machine(m.process) == machine(j.Process) {
			continue
		}
		for _, one := range []struct{ url, host string }{{j.URL, j.Host}, {m.url, m.host}} {
			u, err := url.Parse(one.url)
			if err != nil {
				continue
			}
			if host, err := netip.ParseAddr(u.Hostname()); err != nil || !host.IsLoopback() {
				continue
			}
			return &schema.Refused{Reason: "invalid_job", Field: "url", Want: j.URL, Text: fmt.Sprintf(
				"the trainer on %s listens to others at %s, which leads to it on its own machine alone, and there are others on "+
					"other machines: give all of them a token (--token-file), or say where to listen (--data-host)", one.host,
				one.url)}
		}
	}
	return nil
}

// forget notes that the trainer that joined under a name has no slot by it any more.
func (a *admission) forget(joiner schema.Member) {
	if a.former = append(a.former, joiner); len(a.former) > formerMax {
		a.former = slices.Delete(a.former, 0, 1)
	}
}

// mayStart reports whether more than half of the voters have joined.
func (a *admission) mayStart(members slots) bool {
	if planted.Is(planted.GoOnWithMinority) {
		return true
	}
	voters := a.config.Voters
	here := CountVoters(voters, func(number uint64) bool {
		return number != 0 && slices.ContainsFunc(members, func(m member) bool { return m.here() && m.number == number })
	})
	return len(voters) == 0 || 2*here > len(voters)
}
