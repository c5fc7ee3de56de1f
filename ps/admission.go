package ps

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/lane"
	"gradbus/schema"
)

// Join answers a trainer that wants to take part. A repeated request gets the same answer, brought up to date.
func (c *Coordinator) Join(now time.Time, from schema.Member, j *schema.Join) []Decision {
	if i, ok := c.members.find(from); ok {
		c.members[i].Begin(now)
		return []Decision{c.joined(i)}
	}
	if slices.Contains(c.former, from) {
		return nil // said again before it left, and heard late
	}
	if j.Run != 0 && j.Run != c.config.RunID && !slices.Contains(c.config.Returning, j.Run) {
		return c.Refuse(from, runOver(c.config.Job.Name))
	}
	if i := slices.IndexFunc(c.members, func(m member) bool { return m.here() && j.Key != 0 && m.key == j.Key }); i >= 0 {
		return c.readmit(now, i, from, j)
	}
	if c.running() && c.differs(j) == nil {
		return c.joinRunning(now, from, j)
	}
	i, refused := c.admit(now, j)
	if refused != nil {
		return c.Refuse(from, refused)
	}
	d := c.seatAt(now, i, c.generation, from, j)
	d.Note = fmt.Sprintf("trainer %s joined from %s, %d missing", d.Who, j.Host, c.members.missing())
	return append(c.routed(i, d), c.start(now)...)
}

// readmit gives a trainer the place that it has and has not heard of: it had given up waiting for the answer, and asks
// under another name. Nobody has done anything in that place.
func (c *Coordinator) readmit(now time.Time, i int, from schema.Member, j *schema.Join) []Decision {
	m := &c.members[i]
	c.forget(m.joiner)
	generation := m.generation
	m.become(slotVacant, member{})
	d := c.seatAt(now, i, generation, from, j)
	d.Note = fmt.Sprintf("trainer %s asked again from %s, and had not heard that it has joined", d.Who, j.Host)
	return c.routed(i, d)
}

// routed is what is said of a trainer that has a place, and to shard servers of the way to it.
func (c *Coordinator) routed(i int, d Decision) []Decision {
	if c.members[i].cluster {
		return append([]Decision{d}, c.reassign()...)
	}
	return []Decision{d}
}

// seatAt gives a place to a newcomer, in a generation, and says so.
func (c *Coordinator) seatAt(now time.Time, i int, g schema.Generation, who schema.Member, j *schema.Join) Decision {
	c.members[i].become(slotJoining, member{joiner: who, host: j.Host, cluster: j.Data == schema.DataCluster, url: j.URL,
		by: -1, process: j.Process, key: j.Key, generation: g})
	c.members[i].Begin(now)
	d := c.joined(i)
	d.Who = schema.TrainerMember(i)
	return d
}

// forget has a name be one under which somebody has joined that has no place by it any more.
func (c *Coordinator) forget(joiner schema.Member) {
	if c.former = append(c.former, joiner); len(c.former) > formerMax {
		c.former = slices.Delete(c.former, 0, 1)
	}
}

// Refuse turns a trainer away that is no member.
func (c *Coordinator) Refuse(from schema.Member, r *schema.Refused) []Decision {
	c.endIfEmpty() // where it was the first, nobody is here
	return []Decision{{To: from, Control: schema.Control{Refused: r}, Note: "join refused: " + r.Text, Who: from}}
}

// admit finds a place for a newcomer, or says why there is none.
func (c *Coordinator) admit(now time.Time, j *schema.Join) (int, *schema.Refused) {
	if refused := c.differs(j); refused != nil {
		return 0, refused
	}
	if j.Resume != (c.config.Resume != nil) && c.config.Returning == nil {
		return 0, c.refuseResume(j.Resume)
	}
	if !c.gathers() {
		return 0, c.full()
	}
	if c.plan.Reduces(schema.ByTrainers) && j.URL == "" {
		return 0, c.noURL()
	}
	if j.Wanted != "" && (!c.goesBack() || c.config.Returning == nil) {
		return c.place(now, j.Wanted)
	}
	for i := range c.members {
		if c.members[i].joiner == "" {
			return i, nil
		}
	}
	if len(c.members) < c.places() {
		return 0, c.roomSoon()
	}
	return 0, &schema.Refused{Reason: "job_full", Text: fmt.Sprintf("job %s has all of its %d trainers", c.config.Job.Name,
		len(c.members))}
}

// noURL refuses a trainer that the others cannot reach.
func (c *Coordinator) noURL() *schema.Refused {
	return &schema.Refused{Reason: "invalid_job", Field: "url", Text: fmt.Sprintf(
		"trainers of job %s reduce among themselves, and this one has no data server: give its url", c.config.Job.Name)}
}

// differs says in what a newcomer's manifest is another than the job's.
func (c *Coordinator) differs(j *schema.Join) *schema.Refused {
	field, have, want, differs := c.config.Job.WithChunkBytes(cmp.Or(c.config.ChunkBytes,
		c.config.Job.ChunkBytes)).WithTrainers(c.places()).Diff(j.Job)
	if !differs {
		return nil
	}
	return &schema.Refused{Reason: "job_differs", Field: field, Have: have, Want: want,
		Text: fmt.Sprintf("job %s is registered with %s %s, and this trainer has %s", c.config.Job.Name, field, have, want)}
}

// runOver refuses who comes back to a run that is no more.
func runOver(job schema.JobName) *schema.Refused {
	return &schema.Refused{Reason: schema.RefusedOver,
		Text: fmt.Sprintf("the run of job %s that this trainer was part of has ended", job)}
}

// full refuses who comes too late.
func (c *Coordinator) full() *schema.Refused {
	text := fmt.Sprintf("job %s has started with its %d trainers; choose another name or wait until it has ended",
		c.config.Job.Name, len(c.members))
	if i := slices.IndexFunc(c.members, func(m member) bool { return m.lost() }); i >= 0 && c.policy.goesOn() {
		text += fmt.Sprintf(". It goes on without %s, whose place only the process can have that was lost, if it goes on",
			schema.TrainerMember(i))
	}
	return &schema.Refused{Reason: "job_full", Text: text}
}

// place is the place of a member id that a newcomer asks for.
func (c *Coordinator) place(now time.Time, wanted schema.Member) (int, *schema.Refused) {
	number, isTrainer := strings.CutPrefix(string(wanted), "t")
	i, err := strconv.Atoi(number)
	if !isTrainer || err != nil || i < 0 || i >= len(c.members) || schema.TrainerMember(i) != wanted {
		return 0, &schema.Refused{Reason: "invalid_job", Field: "wanted", Want: string(wanted),
			Text: fmt.Sprintf("member %q: the trainers of job %s are t0 to t%d", wanted, c.config.Job.Name, len(c.members)-1)}
	}
	if m := &c.members[i]; m.joiner != "" {
		return 0, &schema.Refused{Reason: "member_taken", Field: "wanted", Want: string(wanted),
			Text: fmt.Sprintf("member %s of job %s is taken by %s, last seen %s ago", wanted, c.config.Job.Name, m.host,
				rounded(m.For(now)))}
	}
	return i, nil
}

func (c *Coordinator) joined(i int) Decision {
	first, count := lane.Share(i, len(c.members), c.config.Job.Lanes)
	chunks, trainers := 0, 0
	if c.config.ChunkBytes != 0 {
		chunks = c.config.Job.ChunkBytes
	}
	if n := len(c.members); n != c.places() {
		trainers = n
	}
	return Decision{To: c.members[i].joiner, Control: schema.Control{Joined: &schema.Joined{
		Member: schema.TrainerMember(i), RunID: c.config.RunID, Generation: c.members[i].generation, FirstLane: first,
		LaneCount: count,
		Servers:   c.servers(c.members[i].cluster), Shards: c.shards, Missing: c.members.missing(), Started: c.running(),
		DeadlineMS: c.config.Deadline.Milliseconds(),
		Peers:      c.peers(), WindowBytes: c.config.WindowBytes, ParkedBytes: parkedBytes(c.config.Job),
		ChunkBytes: chunks, Trainers: trainers, LR: c.lr.decided,
		Version: c.begins(i), Resumed: c.config.Resume.version(),
		Durable: c.config.Checkpoints != nil || c.mayKeep(), Standby: c.standby.url,
	}}}
}

// begins is the version that a trainer begins with.
func (c *Coordinator) begins(i int) schema.Version {
	if c.members[i].generation == c.config.Generation {
		return c.resumed()
	}
	return c.done()
}

// peers says where all trainers are reached, once they are there, in a job whose trainers reduce among themselves.
func (c *Coordinator) peers() []schema.Peer {
	if !c.plan.Reduces(schema.ByTrainers) || !c.running() {
		return nil
	}
	var all []schema.Peer
	for i := range c.members {
		all = append(all, schema.Peer{Member: schema.TrainerMember(i), URL: c.members[i].url})
	}
	return all
}
