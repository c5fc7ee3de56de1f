package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// What the shards of a job have is kept at another ps, too, and where several ps have shards also at their own: one
// version of all. The coordinator says who keeps what, and names the versions that are told: a batch that no shard has
// begun. A version that all have of whom each keeps shards is whole, and takes the place of the one before. So whatever
// one ps takes with it, the others have one version of all shards, and the job goes on with that.
//
//  1. All who keep shards make room, and say that they are ready.
//  2. The coordinator names a version. Shards copy it and tell what has changed.
//  3. When all have all of it the coordinator says so. Then it replaces the one before, everywhere.
//  4. When it has, the next version is named. One that a shard has missed is given up for a later one.
//
// When one who keeps shards is gone, or cannot, others are found, who are told everything.

const (
	// copiesEvery is the time between two versions that are told: what is computed again when a ps is lost. Where telling
	// takes long it is copiesShare times that.
	copiesEvery = 100 * time.Millisecond
	copiesShare = 5
	// copiesRetry is the time after which others keep shards in place of a ps that could not.
	copiesRetry = 10 * time.Second
)

// Peer is a ps that is announced.
type Peer struct {
	ID          string
	Incarnation uint64 // what it drew at its start
	Keeps       bool   // it keeps shards of others
}

// copies is what a coordinator knows of what is kept.
type copies struct {
	peers   []Peer        // that may keep shards, ascending by their ids
	plan    []keepsShards // empty: nobody keeps any
	planned time.Time
	series  uint32
	serial  int

	at    schema.Version // that is being told; 0: none
	since schema.Version // after which it tells changes; 0: everything
	whole schema.Version // that all have; 0: none
	late  int            // versions that were missed since one was told
	due   time.Time      // when at is to be reached, as of when it was named

	wholeAt time.Time // when whole became that
	bytes   uint64    // that were told in earlier series

	ending bool // the job is to go on elsewhere, from the version that is told next

	begun   schema.Batch // on shards, when anybody said last
	begunAt time.Time
	rate    float64 // batches a second
}

// keepsShards is one who keeps shards.
type keepsShards struct {
	is   Peer
	from []schema.DataServer // whose; empty: it only tells what its own have
	to   []schema.Member     // who keeps its own
	said schema.Kept         // last, of this series
	at   time.Time           // then, or when it was told to
}

func (k *keepsShards) member() schema.Member { return schema.ServerMember(k.is.ID) }

// Keepers returns the ps that keep shards of the job, or tell what theirs have.
func (c *Coordinator) Keepers() (all []schema.Member) {
	for i := range c.copies.plan {
		all = append(all, c.copies.plan[i].member())
	}
	return all
}

// KeptVersion returns the newest version that other ps have whole and could continue with now; 0: none.
func (c *Coordinator) KeptVersion(now time.Time) schema.Version {
	if !c.copies.ready(now) {
		return 0
	}
	return c.copies.whole
}

// MayKeep reports that several ps stand by for each other, and may keep what the shards of the job have.
func (c *Coordinator) MayKeep() bool { return c.config.Copies && whyNotKept(c.config.Job) == "" }

// CheckCopies returns why a job has no replica, or nil. A replica exists for jobs whose lost trainers are replaced in
// place.
func CheckCopies(job *schema.Job) error {
	switch err := job.CheckVersions(); {
	case err != nil || job.TakesOver():
		return err
	case job.Plan().Owner == schema.ByTrainers:
		return fmt.Errorf("job %s: its trainers own dense parameters, and it restarts from checkpoints alone", job.Name)
	}
	return fmt.Errorf("job %s: its trainers are not replaced in place, and it restarts from checkpoints alone", job.Name)
}

// whyNotKept says why nobody may keep what the shards of a job have; empty: others may.
func whyNotKept(job *schema.Job) string {
	if !job.NeedsShards() {
		return "its shards add up nothing"
	}
	if err := CheckCopies(job); err != nil {
		return err.Error()
	}
	if job.Policy == schema.PolicyFail {
		return "its policy is " + schema.PolicyFail
	}
	return ""
}

// Peers takes it which ps are there.
func (c *Coordinator) Peers(now time.Time, servers []Peer) []Decision {
	if whyNotKept(c.config.Job) != "" {
		return nil
	}
	k := &c.copies
	k.peers = slices.DeleteFunc(slices.Clone(servers), func(p Peer) bool { return !p.Keeps })
	slices.SortFunc(k.peers, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
	if !c.IsRunning() {
		return nil
	}
	late := c.ticks.Pause(now, c.config.Deadline) > 0 // what has come meanwhile is read before the next tick
	gone := func(p keepsShards) bool {
		other := func(s Peer) bool { return s.ID == p.is.ID } // which was started anew, or leaves
		return k.peer(p.is.ID, p.is.Incarnation) < 0 && (slices.ContainsFunc(servers, other) || !late && k.missing(&p, now))
	}
	if slices.ContainsFunc(k.plan, gone) {
		return c.planCopies(now)
	}
	return c.BeginCopies(now)
}

// missing reports that one who keeps shards is not known to be there, and has not said so by itself for a while: a
// control server that was started anew knows nobody at first.
func (k *copies) missing(p *keepsShards, now time.Time) bool {
	return k.peer(p.is.ID, p.is.Incarnation) < 0 && now.Sub(p.at) > keptSilentMax
}

// copiesAfter is how long a run has been training before its shards are kept. Telling all of them takes processors and
// memory, and trainers that have just lost a ps wait for their first batch.
const copiesAfter = 200 * time.Millisecond

// BeginCopies has shards be kept from now on, where it is time and nobody keeps any.
func (c *Coordinator) BeginCopies(now time.Time) []Decision {
	k := &c.copies
	if !c.IsRunning() || whyNotKept(c.config.Job) != "" || len(k.plan) > 0 || now.Sub(c.started) < copiesAfter {
		return nil
	}
	return c.planCopies(now)
}

// peer is the index of a ps that may keep shards; -1 where it may not. Incarnation 0 is any.
func (k *copies) peer(id string, incarnation uint64) int {
	return slices.IndexFunc(k.peers, func(p Peer) bool {
		return p.ID == id && (incarnation == 0 || p.Incarnation == incarnation)
	})
}

// planCopies says who keeps what: every ps its own shards, unless it has all of them, and of the others the one that has
// least, of those who could before. All is told anew then. Where a ps with shards may not keep any, or no other one is
// there, nobody does.
func (c *Coordinator) planCopies(now time.Time) []Decision {
	k := &c.copies
	had := k.whole > 0
	k.bytes = k.told()
	before := k.plan
	k.plan, k.at, k.since, k.whole, k.late, k.planned = nil, 0, 0, 0, 0, now
	k.series++
	plan, load := make([]keepsShards, len(k.peers)), make([]int, len(k.peers))
	for i := range plan {
		plan[i].is, plan[i].at = k.peers[i], now
		if slices.ContainsFunc(before, func(p keepsShards) bool { return p.is.ID == plan[i].is.ID && p.said.Failure != "" }) {
			load[i] = c.shards
		}
	}
	var hosts []int
	for _, s := range c.config.ShardServers {
		i := k.peer(s.Server.ID, s.Incarnation)
		if i < 0 || len(plan) < 2 {
			return c.notKept(had)
		}
		hosts = append(hosts, i)
		if len(c.config.ShardServers) > 1 {
			plan[i].from, plan[i].to = []schema.DataServer{s.Server}, []schema.Member{plan[i].member()}
		}
		load[i] += len(s.Server.Shards)
	}
	for n, s := range c.config.ShardServers {
		least := -1
		for after := range len(plan) - 1 { // of several the one that follows first
			if i := (hosts[n] + 1 + after) % len(plan); least < 0 || load[i] < load[least] {
				least = i
			}
		}
		plan[least].from = append(plan[least].from, s.Server)
		plan[hosts[n]].to = append(plan[hosts[n]].to, plan[least].member())
		load[least] += len(s.Server.Shards)
	}
	k.plan = slices.DeleteFunc(plan, func(p keepsShards) bool { return len(p.from)+len(p.to) == 0 })
	return c.tellKeep()
}

// notKept says that nothing is kept any more, where something was.
func (c *Coordinator) notKept(had bool) []Decision {
	if !had {
		return nil
	}
	return []Decision{{Note: "nobody stands by for the shards any more: " + c.tooFew()}}
}

// tooFew says which ps are not there, so that nobody keeps shards.
func (c *Coordinator) tooFew() string {
	var not []string
	for _, s := range c.config.ShardServers {
		if c.copies.peer(s.Server.ID, s.Incarnation) < 0 {
			not = append(not, s.Server.ID)
		}
	}
	switch len(not) {
	case 0:
		if len(c.copies.peers) > 1 {
			return "" // soon
		}
		return fmt.Sprintf("ps %s alone is there with --replicas 1", c.config.ShardServers[0].Server.ID)
	case 1:
		return fmt.Sprintf("ps %s, which has shards of it, is not there with --replicas 1", not[0])
	}
	return fmt.Sprintf("ps %s, which have shards of it, are not there with --replicas 1", strings.Join(not, ", "))
}

// tellKeep tells all who keep shards what is to be.
func (c *Coordinator) tellKeep() (decisions []Decision) {
	k := &c.copies
	k.serial++
	c.standby.tell(k.serial, c.members.voters())
	for i := range k.plan {
		p := &k.plan[i]
		keep := &schema.Keep{Job: c.config.Job, Serial: k.serial, Series: k.series, Shards: c.shards, From: p.from,
			To: p.to, At: k.at, Since: k.since, Whole: k.whole, LR: c.lr.decided, Runs: c.config.Rejoining,
			Process: c.config.Process, Incarnation: c.config.Incarnation, Voters: c.members.voters(),
			Last: c.HandedOver()}
		if p.said.Series == k.series {
			keep.Job = nil
		}
		keep.Runs = keep.Runs[:min(len(keep.Runs), schema.KeptRunsMax)]
		decisions = append(decisions, Decision{To: p.member(), Control: schema.Control{Keep: keep}})
	}
	return decisions
}

// Kept takes what a ps says that it keeps.
func (c *Coordinator) Kept(now time.Time, from schema.Member, said *schema.Kept) []Decision {
	k := &c.copies
	i := slices.IndexFunc(k.plan, func(p keepsShards) bool { return p.member() == from })
	if !c.IsRunning() || i < 0 || said.Run != c.config.RunID || said.Series != k.series {
		return nil
	}
	k.plan[i].said, k.plan[i].at = *said, now
	if len(k.plan[i].from) > 0 { // it has a replica, and does not only send one
		c.standby.heard(said.Serial)
	}
	k.pace(now, said.Begun)
	return c.advanceCopies(now)
}

// advanceCopies says what follows from what was said last.
func (c *Coordinator) advanceCopies(now time.Time) []Decision {
	k := &c.copies
	all := func(is func(*schema.Kept) bool) bool {
		return !slices.ContainsFunc(k.plan, func(p keepsShards) bool { return !is(&p.said) })
	}
	holders := func(is func(*schema.Kept) bool) bool {
		return !slices.ContainsFunc(k.plan, func(p keepsShards) bool { return len(p.from) > 0 && !is(&p.said) })
	}
	switch {
	case len(k.plan) == 0 || !all(func(s *schema.Kept) bool { return s.Ready && s.Failure == "" }):
		return nil
	case k.at == 0:
		return c.nameVersion(now)
	case k.whole != k.at && !all(func(s *schema.Kept) bool { return s.Missed != k.at }):
		k.late++
		return c.nameVersion(now)
	case c.HandedOver():
		return nil
	case k.whole == k.at && holders(func(s *schema.Kept) bool { return s.Version == k.at }):
		k.late = 0
		return c.nameVersion(now)
	case k.whole != k.at && holders(func(s *schema.Kept) bool { return s.Next == k.at || s.Version == k.at }):
		first := k.whole == 0
		k.whole, k.wholeAt = k.at, now
		decisions := c.tellKeep()
		if first {
			decisions[0].Note = fmt.Sprintf("standing by with all shards of the job: it would go on at version %d", k.whole)
		}
		return decisions
	}
	return nil
}

// HandOver has the job go on elsewhere, from the version that is told next. One that is not begun yet makes way for an
// earlier one.
func (c *Coordinator) HandOver(now time.Time) []Decision {
	k := &c.copies
	if k.ending {
		return nil
	}
	switch k.ending = true; {
	case c.HandedOver():
		return c.tellKeep()
	case k.at > schema.Version(k.begun):
		return c.nameVersion(now)
	}
	return nil
}

// HandedOver reports whether that has been told.
func (c *Coordinator) HandedOver() bool {
	k := &c.copies
	return k.ending && k.whole > 0 && k.whole == k.at
}

// pace notes how far shards are.
func (k *copies) pace(now time.Time, begun schema.Batch) {
	took := now.Sub(k.begunAt).Seconds()
	switch {
	case begun <= k.begun:
		return
	case k.begun > 0 && took > 0 && k.rate == 0:
		k.rate = float64(begun-k.begun) / took
	case k.begun > 0 && took > 0:
		k.rate = (k.rate + float64(begun-k.begun)/took) / 2
	}
	k.begun, k.begunAt = begun, now
}

// ahead is the batch that is under way after a time.
func (k *copies) ahead(after time.Duration) schema.Version {
	return schema.Version(k.begun) + schema.Version(math.Ceil(min(k.rate*after.Seconds(), 1e6))) + 1
}

// copiesAhead is how long before a version is reached it is named: a message takes that to all shards.
const copiesAhead = 10 * time.Millisecond

// nameVersion names the version that is told next. It is reached when it is time for another one.
func (c *Coordinator) nameVersion(now time.Time) []Decision {
	k := &c.copies
	within := max(copiesEvery, copiesShare*k.took())
	if k.whole == 0 || k.late > 0 || k.ending { // the sooner the better
		within = copiesAhead << min(k.late, 6)
	}
	k.at, k.since, k.due = max(k.ahead(within), k.whole+1), k.whole, now.Add(within)
	return c.tellKeep()
}

// tickCopies finds others where somebody cannot keep shards, and says everything again. A version that is far off,
// since batches take longer than they did, is given up for an earlier one.
func (c *Coordinator) tickCopies(now time.Time) []Decision {
	k := &c.copies
	if !c.IsRunning() || whyNotKept(c.config.Job) != "" {
		return nil
	}
	failed := func(p keepsShards) bool { return p.said.Failure != "" }
	switch {
	case len(k.plan) == 0:
		return c.BeginCopies(now)
	case slices.ContainsFunc(k.plan, func(p keepsShards) bool { return k.missing(&p, now) }):
		return c.planCopies(now)
	case slices.ContainsFunc(k.plan, failed) && now.Sub(k.planned) >= copiesRetry:
		return c.planCopies(now)
	}
	if now.Sub(k.begunAt) > TickEvery {
		k.rate /= 2
	}
	left := max(k.due.Sub(now), copiesAhead)
	if k.at > k.whole && k.at > k.ahead(left+2*TickEvery)+1 { // due stays, or it would never be reached
		k.at = max(k.ahead(left), k.whole+1)
	}
	return c.tellKeep()
}

// keptSilentMax is how long a ps that keeps shards may be silent before what it keeps counts for nothing. It is asked
// each second.
const keptSilentMax = 5 * time.Second

// CopiesReport is what other ps keep of a job's shards.
type CopiesReport struct {
	Off     string         // why nobody may keep any; empty: others may
	Missing string         // which ps are not there, so that nobody does; empty: they are
	Failure string         // of one who keeps shards
	Ready   bool           // all shards are kept at two ps, with one version
	Version schema.Version // that all have; 0: none
	At      time.Time      // when it became that
	Kept    []schema.KeptReport
	Bytes   uint64        // that were told
	Took    time.Duration // telling the last version
}

// CopiesReport returns what other ps keep of the shards.
func (c *Coordinator) CopiesReport(now time.Time) CopiesReport {
	k := &c.copies
	r := CopiesReport{Off: whyNotKept(c.config.Job), Failure: k.failure(now), Ready: k.ready(now), Version: k.whole,
		At: k.wholeAt, Kept: k.reports(), Bytes: k.told(), Took: k.took()}
	if r.Off == "" && !c.IsRunning() {
		r.Off = "it has not started"
	}
	if r.Off == "" && len(k.plan) == 0 {
		r.Missing = c.tooFew()
	}
	return r
}

// ready reports that all shards are kept at two ps, with one version.
func (k *copies) ready(now time.Time) bool { return k.whole > 0 && k.failure(now) == "" }

// failure says which of those who keep shards cannot, and why; empty: all can, or nobody is to.
func (k *copies) failure(now time.Time) string {
	for i := range k.plan {
		p := &k.plan[i]
		if p.said.Failure != "" {
			return schema.ClipFailure(fmt.Sprintf("ps %s: %s", p.is.ID, p.said.Failure))
		}
		if silent := now.Sub(p.at); silent > keptSilentMax {
			return fmt.Sprintf("ps %s has not said for %v what it keeps", p.is.ID, silent.Round(time.Second))
		}
	}
	return ""
}

// reports are what each of them keeps.
func (k *copies) reports() (all []schema.KeptReport) {
	for i := range k.plan[:min(len(k.plan), schema.TelemetryKeptMax)] {
		p := &k.plan[i]
		if len(p.from) == 0 {
			continue
		}
		r := schema.KeptReport{Server: p.is.ID, Ready: p.said.Ready, Version: max(p.said.Version, p.said.Next),
			Failure: p.said.Failure}
		for _, d := range p.from {
			r.Of = append(r.Of, d.ID)
		}
		all = append(all, r)
	}
	return all
}

// told is how many bytes were told to those who keep shards.
func (k *copies) told() uint64 {
	n := k.bytes
	for i := range k.plan {
		n += k.plan[i].said.Bytes
	}
	return n
}

// took is how long telling the last version took.
func (k *copies) took() (took time.Duration) {
	for i := range k.plan {
		took = max(took, time.Duration(k.plan[i].said.TookMS)*time.Millisecond)
	}
	return took
}
