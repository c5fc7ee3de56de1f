package coordinator

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// replicas decides which ps hold replicas of a job's shards, and which version they get. What the shards have is kept at
// another ps, too, and where several ps have shards also at their own: one version of all. A version that all holders
// have is whole, and takes the place of the one before. So whatever one ps takes with it, the others have one version of
// all shards, and the job continues with that.
//
//  1. All holders make room, and say that they are ready.
//  2. The coordinator names a version: a batch that no shard has begun. Shards copy it and send what has changed.
//  3. When all have all of it the coordinator says so. Then it replaces the one before, everywhere.
//  4. When it has, the next version is named. One that a shard has missed is given up for a later one.
//
// If a holder is gone or has failed, others are chosen, and get everything.
//
// Methods that return tell want the holders told what is to be (keeps), and note is for the log.
type replicas struct {
	config *Config
	off    string // why the job has none; empty: it may have
	shards int    // of the job

	peers   []Peer   // that may hold replicas, ascending by their ids
	plan    []holder // empty: there are none
	planned time.Time
	series  uint32
	serial  int

	at    schema.Version // that is being sent; 0: none
	since schema.Version // after which changes are sent; 0: everything is
	whole schema.Version // that all have; 0: none
	late  int            // versions that were missed since one was sent
	due   time.Time      // when at is to be reached, as of when it was named

	wholeAt time.Time // when whole became that
	bytes   uint64    // that were sent in earlier series

	ending bool // the job is to continue elsewhere, from the version that is sent next

	begun   schema.Batch // on shards, by the latest report
	begunAt time.Time
	rate    float64 // batches a second
}

const (
	// replicateEvery is the time between two versions: what is computed again when a ps is lost. If sending takes long it
	// is replicateShare times that.
	replicateEvery = 100 * time.Millisecond
	replicateShare = 5
	// replicateRetry is the time after which another ps is chosen in place of one that failed.
	replicateRetry = 10 * time.Second
	// replicateAfter is the time for which a run trains before its shards are replicated. Sending all of them takes
	// processors and memory, and trainers that have just lost a ps wait for their first batch.
	replicateAfter = 200 * time.Millisecond
	// nameAhead is the time before a version is reached at which it is named: the time of a message to all shards.
	nameAhead = 10 * time.Millisecond
	// holderSilentMax is the silence of a holder after which its replica does not count. It is asked each second.
	holderSilentMax = 5 * time.Second
)

// Peer is a ps that is announced.
type Peer struct {
	ID          string
	Incarnation uint64 // what it drew at its start
	Keeps       bool   // it holds replicas of others' shards
}

// holder is a ps that holds replicas, or sends them.
type holder struct {
	is   Peer
	from []schema.DataServer // whose shards; empty: it only sends its own
	to   []schema.Member     // that hold replicas of its own
	said schema.Kept         // last, of this series
	at   time.Time           // then, or when it was told to
}

func (h *holder) member() schema.Member { return schema.ServerMember(h.is.ID) }

// CheckReplicas returns why a job has no replica, or nil. A replica exists for jobs whose lost trainers are replaced in
// place.
func CheckReplicas(job *schema.Job) error {
	if !job.NeedsShards() {
		return errors.New("its shards add up nothing")
	}
	switch err := job.CheckVersions(); {
	case err != nil:
		return err
	case job.Plan().Owner == schema.ByTrainers:
		return fmt.Errorf("job %s: its trainers own dense parameters, and it restarts from checkpoints alone", job.Name)
	case !job.TakesOver():
		return fmt.Errorf("job %s: its trainers are not replaced in place, and it restarts from checkpoints alone", job.Name)
	case job.Policy == schema.PolicyFail:
		return errors.New("its policy is " + schema.PolicyFail)
	}
	return nil
}

// setPeers notes which ps are announced.
func (k *replicas) setPeers(servers []Peer) {
	k.peers = slices.DeleteFunc(slices.Clone(servers), func(p Peer) bool { return !p.Keeps })
	slices.SortFunc(k.peers, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
}

// hasLost reports whether a holder is gone: one of its id was started anew or leaves, or it is missing. late says that
// messages wait to be read.
func (k *replicas) hasLost(now time.Time, servers []Peer, late bool) bool {
	return slices.ContainsFunc(k.plan, func(h holder) bool {
		other := func(s Peer) bool { return s.ID == h.is.ID }
		return k.peer(h.is.ID, h.is.Incarnation) < 0 && (slices.ContainsFunc(servers, other) || !late && k.isMissing(&h, now))
	})
}

// isMissing reports whether a holder is not announced, and has been silent for a while: a control server that was
// restarted knows no ps at first.
func (k *replicas) isMissing(h *holder, now time.Time) bool {
	return k.peer(h.is.ID, h.is.Incarnation) < 0 && now.Sub(h.at) > holderSilentMax
}

// begin chooses holders if a run that has started some time ago has none.
func (k *replicas) begin(now, started time.Time) (tell bool, note string) {
	if k.off != "" || len(k.plan) > 0 || now.Sub(started) < replicateAfter {
		return false, ""
	}
	return k.choose(now)
}

// peer returns the index of a ps that may hold replicas; -1: it may not. Incarnation 0 is any.
func (k *replicas) peer(id string, incarnation uint64) int {
	return slices.IndexFunc(k.peers, func(p Peer) bool {
		return p.ID == id && (incarnation == 0 || p.Incarnation == incarnation)
	})
}

// choose chooses who holds what: every ps its own shards, unless it has all of them, and of the others the one that has
// least, of those that could before. All is sent anew then. If a ps with shards may not hold any, or no other one is
// there, none does.
func (k *replicas) choose(now time.Time) (tell bool, note string) {
	had := k.whole > 0
	k.bytes = k.sent()
	before := k.plan
	k.plan, k.at, k.since, k.whole, k.late, k.planned = nil, 0, 0, 0, 0, now
	k.series++
	plan, load := make([]holder, len(k.peers)), make([]int, len(k.peers))
	for i := range plan {
		plan[i].is, plan[i].at = k.peers[i], now
		if slices.ContainsFunc(before, func(h holder) bool { return h.is.ID == plan[i].is.ID && h.said.Failure != "" }) {
			load[i] = k.shards
		}
	}
	var hosts []int
	for _, s := range k.config.ShardServers {
		i := k.peer(s.Server.ID, s.Incarnation)
		if i < 0 || len(plan) < 2 {
			if had {
				note = "no ps keeps a replica of the shards any more: " + k.tooFew()
			}
			return false, note
		}
		hosts = append(hosts, i)
		if len(k.config.ShardServers) > 1 {
			plan[i].from, plan[i].to = []schema.DataServer{s.Server}, []schema.Member{plan[i].member()}
		}
		load[i] += len(s.Server.Shards)
	}
	for n, s := range k.config.ShardServers {
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
	k.plan = slices.DeleteFunc(plan, func(h holder) bool { return len(h.from)+len(h.to) == 0 })
	return true, ""
}

// tooFew says which ps are not there, so that there are no replicas.
func (k *replicas) tooFew() string {
	var not []string
	for _, s := range k.config.ShardServers {
		if k.peer(s.Server.ID, s.Incarnation) < 0 {
			not = append(not, s.Server.ID)
		}
	}
	switch len(not) {
	case 0:
		if len(k.peers) > 1 {
			return "" // soon
		}
		return fmt.Sprintf("ps %s alone is there with --replicas 1", k.config.ShardServers[0].Server.ID)
	case 1:
		return fmt.Sprintf("ps %s, which has shards of it, is not there with --replicas 1", not[0])
	}
	return fmt.Sprintf("ps %s, which have shards of it, are not there with --replicas 1", strings.Join(not, ", "))
}

// keeps tells all holders what is to be.
func (k *replicas) keeps(voters []schema.Voter, lr []schema.LRChange) (decisions []Decision) {
	k.serial++
	for i := range k.plan {
		h := &k.plan[i]
		keep := &schema.Keep{Job: k.config.Job, Serial: k.serial, Series: k.series, Shards: k.shards, From: h.from,
			To: h.to, At: k.at, Since: k.since, Whole: k.whole, LR: lr, Runs: k.config.Rejoining,
			Process: k.config.Process, Incarnation: k.config.Incarnation, Voters: voters, Last: k.handedOver()}
		if h.said.Series == k.series {
			keep.Job = nil
		}
		keep.Runs = keep.Runs[:min(len(keep.Runs), schema.KeptRunsMax)]
		decisions = append(decisions, Decision{To: h.member(), Control: schema.Control{Keep: keep}})
	}
	return decisions
}

// find returns the holder that has said something of this series; nil: it is none.
func (k *replicas) find(from schema.Member, said *schema.Kept) *holder {
	i := slices.IndexFunc(k.plan, func(h holder) bool { return h.member() == from })
	if i < 0 || said.Run != k.config.RunID || said.Series != k.series {
		return nil
	}
	return &k.plan[i]
}

// heard takes what a holder says that it has.
func (k *replicas) heard(now time.Time, h *holder, said *schema.Kept) (tell bool, note string) {
	h.said, h.at = *said, now
	k.pace(now, said.Begun)
	all := func(is func(*schema.Kept) bool) bool {
		return !slices.ContainsFunc(k.plan, func(h holder) bool { return !is(&h.said) })
	}
	held := func(is func(*schema.Kept) bool) bool {
		return !slices.ContainsFunc(k.plan, func(h holder) bool { return len(h.from) > 0 && !is(&h.said) })
	}
	switch {
	case !all(func(s *schema.Kept) bool { return s.Ready && s.Failure == "" }):
		return false, ""
	case k.at == 0:
		return k.nameVersion(now), ""
	case k.whole != k.at && !all(func(s *schema.Kept) bool { return s.Missed != k.at }):
		k.late++
		return k.nameVersion(now), ""
	case k.handedOver():
		return false, ""
	case k.whole == k.at && held(func(s *schema.Kept) bool { return s.Version == k.at }):
		k.late = 0
		return k.nameVersion(now), ""
	case k.whole != k.at && held(func(s *schema.Kept) bool { return s.Next == k.at || s.Version == k.at }):
		if k.whole == 0 {
			note = fmt.Sprintf("replicas of all shards complete: the job would continue at version %d", k.at)
		}
		k.whole, k.wholeAt = k.at, now
		return true, note
	}
	return false, ""
}

// handOver has the job continue elsewhere, from the version that is sent next. One that is not begun yet makes way for
// an earlier one.
func (k *replicas) handOver(now time.Time) (tell bool) {
	if k.ending {
		return false
	}
	k.ending = true
	return k.handedOver() || k.at > schema.Version(k.begun) && k.nameVersion(now)
}

// handedOver reports whether that version is whole.
func (k *replicas) handedOver() bool { return k.ending && k.whole > 0 && k.whole == k.at }

// pace notes how far shards are.
func (k *replicas) pace(now time.Time, begun schema.Batch) {
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

// ahead returns the batch that is under way after a time.
func (k *replicas) ahead(after time.Duration) schema.Version {
	return schema.Version(k.begun) + schema.Version(math.Ceil(min(k.rate*after.Seconds(), 1e6))) + 1
}

// nameVersion names the version that is sent next. It is reached when it is time for another one.
func (k *replicas) nameVersion(now time.Time) (tell bool) {
	within := max(replicateEvery, replicateShare*k.took())
	if k.whole == 0 || k.late > 0 || k.ending { // the sooner the better
		within = nameAhead << min(k.late, 6)
	}
	k.at, k.since, k.due = max(k.ahead(within), k.whole+1), k.whole, now.Add(within)
	return true
}

// tick chooses others in place of a holder that is missing or has failed, and says everything again. A version that is
// far off, since batches take longer than they did, is given up for an earlier one.
func (k *replicas) tick(now, started time.Time) (tell bool, note string) {
	failed := func(h holder) bool { return h.said.Failure != "" }
	switch {
	case len(k.plan) == 0:
		return k.begin(now, started)
	case slices.ContainsFunc(k.plan, func(h holder) bool { return k.isMissing(&h, now) }),
		slices.ContainsFunc(k.plan, failed) && now.Sub(k.planned) >= replicateRetry:
		return k.choose(now)
	}
	if now.Sub(k.begunAt) > TickEvery {
		k.rate /= 2
	}
	left := max(k.due.Sub(now), nameAhead)
	if k.at > k.whole && k.at > k.ahead(left+2*TickEvery)+1 { // due stays, or it would never be reached
		k.at = max(k.ahead(left), k.whole+1)
	}
	return true, ""
}

// excuse moves deadlines by a time in which no holder could be heard.
func (k *replicas) excuse(pause time.Duration) {
	for i := range k.plan {
		k.plan[i].at = k.plan[i].at.Add(pause)
	}
}

// ReplicaReport is the state of a job's replicas at other ps.
type ReplicaReport struct {
	Off     string          // why there is no replica; empty: there may be one
	Missing string          // which ps are not there, so that there is none; empty: they are
	Failure string          // of a holder
	Members []schema.Member // that hold replicas, or send them
	Ready   bool            // all shards are at two ps, with one version, from which the job could continue
	Version schema.Version  // that all have; 0: none
	At      time.Time       // when it became that
	Kept    []schema.KeptReport
	Bytes   uint64        // that were sent
	Took    time.Duration // sending the last version
}

// report returns what other ps have of the shards.
func (k *replicas) report(now time.Time, running bool) ReplicaReport {
	failure := k.failure(now)
	r := ReplicaReport{Off: k.off, Failure: failure, Ready: k.whole > 0 && failure == "", Version: k.whole, At: k.wholeAt,
		Bytes: k.sent(), Took: k.took()}
	for i := range k.plan {
		h := &k.plan[i]
		r.Members = append(r.Members, h.member())
		if len(h.from) == 0 || i >= schema.TelemetryKeptMax {
			continue
		}
		kept := schema.KeptReport{Server: h.is.ID, Ready: h.said.Ready, Version: max(h.said.Version, h.said.Next),
			Failure: h.said.Failure}
		for _, d := range h.from {
			kept.Of = append(kept.Of, d.ID)
		}
		r.Kept = append(r.Kept, kept)
	}
	switch {
	case r.Off != "":
	case !running:
		r.Off = "it has not started"
	case len(k.plan) == 0:
		r.Missing = k.tooFew()
	}
	return r
}

// failure says which holder has failed or is silent, and why; empty: none.
func (k *replicas) failure(now time.Time) string {
	for i := range k.plan {
		h := &k.plan[i]
		if h.said.Failure != "" {
			return schema.ClipFailure(fmt.Sprintf("ps %s: %s", h.is.ID, h.said.Failure))
		}
		if silent := now.Sub(h.at); silent > holderSilentMax {
			return fmt.Sprintf("ps %s has not said for %v what it keeps", h.is.ID, silent.Round(time.Second))
		}
	}
	return ""
}

// sent returns how many bytes were sent to holders.
func (k *replicas) sent() uint64 {
	n := k.bytes
	for i := range k.plan {
		n += k.plan[i].said.Bytes
	}
	return n
}

// took returns how long sending the last version took.
func (k *replicas) took() (took time.Duration) {
	for i := range k.plan {
		took = max(took, time.Duration(k.plan[i].said.TookMS)*time.Millisecond)
	}
	return took
}
