package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// TestCoordinatorScripts runs the scripts of testdata, on a clock that stands still between the lines: at=
// says what it shows, as a duration since the job was registered.
//
//	job trainers= lanes= [policy=fail] [deadline=] [gather=] [consistency=async] [servers=a:2+b:1] [every=] [batches=] [resume=version]
//	    [returning=run] [here=] [places=] [start=batches]
//	places
//	join from= [at=] [wanted=] [host=] [lr=] [rows=] [key=] [cluster] [resume] [run=] [was=] [process=] [url=]
//	ready [ps=a] [serial=] [generation=] [done=]
//	unready ps= [serial=]
//	shard-failed ps= member= text=word-word
//	gone ps=
//	blind at=
//	heartbeat from= [at=] [batch=] [generation=] [complete]
//	died from= [at=] [generation=] [process=]
//	leave from= [generation=] [reason=word-word] [hand-over] [end=stopped]
//	connections name ...
//	tick at= [waiting=batch:t0+t1]
//	status
//	scale-lr from= [scale=] [batch=]
//	lr-taken from= begun= [serial=]
//	lr-recorded
//	checkpoint from= version=
//	written ps= version= shards=0+1 [serial=] [writing] [failure=word-word] [bytes=] [touched=]
//	completed version= asked= [bytes=] [failure=word-word]
//	durable [at=]
func TestCoordinatorScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &membership{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.d = t, d
			return s.run()
		})
	})
}

type membership struct {
	consistency string // of the job
	start       int    // batches that assign, of the job
	policyOfJob string // likewise; empty: as shardtest has it
	t           *testing.T
	d           *datadriven.TestData
	c           *Coordinator
	now         time.Time

	several bool // ps, who report by themselves

	written *Written // the newest version whose parts have all come; nil: none
}

// servers reads a:2+b:1: the ps and how many shards each keeps.
func (s *membership) servers() (all []ShardServer) {
	s.several = s.d.HasArg("servers")
	next := 0
	for part := range strings.SplitSeq(s.text("servers", "a:2"), "+") {
		id, count, _ := strings.Cut(part, ":")
		server := ShardServer{Member: schema.ServerMember(id), Server: schema.DataServer{ID: id}}
		if s.several {
			server.Server.URL = "nats://" + id + ":4222"
		}
		n, err := strconv.Atoi(count)
		must(s.t, err)
		for range n {
			server.Server.Shards = append(server.Server.Shards, next)
			next++
		}
		all = append(all, server)
	}
	return all
}

func (s *membership) server() schema.Member { return schema.ServerMember(s.text("ps", "a")) }

func (s *membership) report(r *schema.Report) []Decision {
	d, ok := s.c.Report(s.now, s.server(), r)
	if !ok {
		return []Decision{{Note: string(s.server()) + " has no shard"}}
	}
	return d
}

func (s *membership) tick() string {
	for i := range s.c.shardServers {
		if !s.d.HasArg("silent") && !s.several {
			s.c.shardServers[i].Begin(s.now)
			s.c.shardServers[i].waiting = s.waiting()
		}
	}
	return s.tell(s.c.Tick(s.now))
}

func (s *membership) text(name, otherwise string) string {
	s.d.MaybeScanArgs(s.t, name, &otherwise)
	return otherwise
}

func (s *membership) count(name string, otherwise int) int {
	s.d.MaybeScanArgs(s.t, name, &otherwise)
	return otherwise
}

func (s *membership) duration(name, otherwise string) time.Duration {
	d, err := time.ParseDuration(s.text(name, otherwise))
	must(s.t, err)
	return d
}

func (s *membership) manifest() *schema.Job {
	j := shardtest.SmallJob("script", s.count("trainers", 2), s.count("lanes", 4))
	if s.text("consistency", s.consistency) == schema.ConsistencyAsync {
		s.consistency = schema.ConsistencyAsync
		j.Consistency, j.Apply = schema.ConsistencyAsync, schema.ApplyUpdate
	}
	if s.text("consistency", s.consistency) == schema.ConsistencyBounded {
		s.consistency = schema.ConsistencyBounded
		j.Consistency, j.Ahead = s.consistency, 1
	}
	if s.text("consistency", s.consistency) == schema.ConsistencyGrouped {
		s.consistency = schema.ConsistencyGrouped
		j.Consistency, j.Apply, j.Group, j.Tables = schema.ConsistencyGrouped, schema.ApplyUpdate, 1, nil
	}
	if s.start = s.count("start", s.start); s.start > 0 {
		j.Start = &schema.StartModel{Digest: strings.Repeat("ab", 32), Batches: s.start}
	}
	if s.policyOfJob = s.text("policy", s.policyOfJob); s.policyOfJob != "" {
		j.Policy = s.policyOfJob
	}
	if s.d.HasArg("lr") {
		j.Optimizer.LR = 0.5
	}
	if s.d.HasArg("rows") {
		j.Tables[1].Rows = uint64(s.count("rows", 0))
	}
	return j
}

// begin begins a job.
func (s *membership) begin() string {
	s.now, s.consistency, s.policyOfJob, s.start = time.Unix(1000, 0), "", "", 0
	job := s.manifest()
	must(s.t, job.Validate())
	servers := []ShardServer(nil)
	if job.NeedsShards() {
		servers = s.servers()
	}
	parked := int64(0)
	if len(job.Tables) > 0 {
		parked = 13840
	}
	s.c = New(Config{Job: job, RunID: 5, Generation: 1, ShardServers: servers,
		Deadline: s.duration("deadline", "30s"), StallTimeout: s.duration("stall", s.text("deadline", "30s")),
		StartTimeout: s.duration("gather", "0s"), ParkedBytes: parked, Checkpoints: s.policy(),
		Resume: s.resumed(), Rejoining: s.returning(), SlotsMax: s.count("places", 0),
		TrainersBefore: s.count("here", 0)})
	if servers == nil {
		return ""
	}
	assigned := s.c.Assign(s.now)
	if s.d.HasArg("servers") {
		return s.tell(assigned)
	}
	s.report(&schema.Report{Serial: 1})
	return ""
}

func (s *membership) run() string {
	epoch := time.Unix(1000, 0)
	if s.d.HasArg("at") {
		s.now = epoch.Add(s.duration("at", ""))
	}
	from := schema.Member(s.text("from", ""))
	switch s.d.Cmd {
	case "job":
		return s.begin()
	case "places":
		return fmt.Sprintf("of the next run: %d\n", s.c.Outcome().NextTrainers)
	case "join":
		return s.join(from)
	case "ready", "unready":
		return s.tell(s.report(&schema.Report{Serial: s.count("serial", s.c.serial), Ready: s.d.Cmd == "ready",
			Generation: schema.Generation(s.count("generation", 0)), Done: schema.Version(s.count("done", 0))}))
	case "shard-failed":
		d, ok := s.c.ShardServerFailed(s.server(),
			&schema.Ended{Member: schema.Member(s.text("member", "")), Text: s.words("text"), Back: s.d.HasArg("back")})
		if !ok {
			return "has no shard\n"
		}
		return s.tell(d)
	case "gone":
		return s.tell(s.c.ShardServerGone(s.c.shardServers.find(s.server()), "has ended"))
	case "blind":
		return s.tell(s.c.Blind(s.now, "nats:4222"))
	case "heartbeat":
		return s.heartbeat(from)
	case "died":
		return s.tell(s.c.Died(s.now, from, s.generation(from)))
	case "leaving":
		return s.tell(s.c.Leaving(from))
	case "leave":
		return s.tell(s.c.Leave(s.now, from, s.generation(from), &schema.Leave{Reason: s.words("reason"),
			HandOver: s.d.HasArg("hand-over"), End: schema.End(s.text("end", ""))}))
	case "connections":
		s.connections()
		return ""
	case "tick":
		return s.tick()
	case "beats":
		return s.beats()
	case "status":
		return s.status()
	case "written":
		return s.tell(s.report(&schema.Report{Serial: s.count("serial", s.c.serial), Ready: true, Parts: s.parts(),
			Writing: s.d.HasArg("writing")}))
	case "checkpoint":
		return s.tell(s.c.Checkpoint(s.now, from, &schema.Checkpoint{Version: schema.Version(s.count("version", 0))}, nil))
	case "completed", "durable":
		return s.durable()
	case "scale-lr", "lr-taken", "lr-recorded":
		return s.learningRates(from)
	}
	s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
	return ""
}

func (s *membership) heartbeat(from schema.Member) string {
	h := schema.Head{Batch: schema.Batch(s.count("batch", 0)),
		Flags: map[bool]uint32{true: schema.FlagComplete}[s.d.HasArg("complete")]}
	h.Generation = s.generation(from)
	d, ok := s.c.Heartbeat(s.now, from, &h)
	if !ok {
		return "not a member\n"
	}
	if d == nil {
		return ""
	}
	return s.tell(d)
}

func (s *membership) connections() {
	var names []string
	for _, a := range s.d.CmdArgs {
		names = append(names, "script/"+a.Key)
	}
	s.c.Connections(names)
}

func (s *membership) join(from schema.Member) string {
	job := s.manifest()
	job.Trainers, job.Lanes = s.c.admission.places(), s.c.config.Job.Lanes
	return s.tell(s.c.Join(s.now, from, &schema.Join{Job: job, Wanted: schema.Member(s.text("wanted", "")),
		Host: s.text("host", "host"), Data: map[bool]string{true: schema.DataCluster}[s.d.HasArg("cluster")],
		Resume: s.d.HasArg("resume"), Key: uint64(s.count("key", 0)), Run: schema.RunID(s.count("run", 0)),
		Process: s.text("process", ""),
		URL:     s.text("url", "")}))
}

// policy reads how often versions are written.
func (s *membership) policy() *CheckpointPolicy {
	if !s.d.HasArg("every") && !s.d.HasArg("batches") {
		return nil
	}
	return &CheckpointPolicy{Epoch: 1, Every: s.duration("every", "0s"), Batches: schema.Version(s.count("batches", 0))}
}

func (s *membership) resumed() *ResumeFrom {
	if !s.d.HasArg("resume") {
		return nil
	}
	return &ResumeFrom{ID: "id", Version: schema.Version(s.count("resume", 0)),
		LR: []schema.LRChange{{From: 7, Scale: 0.5}}, Bytes: 500, Durable: time.Unix(700, 0)}
}

// returning is the run that was lost.
func (s *membership) returning() []schema.RunID {
	if !s.d.HasArg("returning") {
		return nil
	}
	return []schema.RunID{schema.RunID(s.count("returning", 0))}
}

// parts are what shards have written of a version.
func (s *membership) parts() (all []schema.CheckpointPart) {
	for shard := range strings.SplitSeq(s.text("shards", "0"), "+") {
		n, err := strconv.Atoi(shard)
		must(s.t, err)
		all = append(all, schema.CheckpointPart{Version: schema.Version(s.count("version", 0)), Shard: n,
			Bytes: int64(s.count("bytes", 100)), Touched: int64(s.count("touched", 0)), Failure: s.words("failure")})
	}
	return all
}

// durable says what is told of checkpoints, after one was completed or could not be.
func (s *membership) durable() (told string) {
	if s.d.Cmd == "completed" {
		w := &Written{Version: schema.Version(s.count("version", 0)), bytes: int64(s.count("bytes", 200)),
			asked: time.Unix(1000, 0).Add(s.duration("asked", "0s"))}
		if s.written != nil && w.Version == s.written.Version {
			w.growth = s.written.growth
		}
		err := error(nil)
		if failure := s.words("failure"); failure != "" {
			err = errors.New(failure)
		}
		told = s.tell(s.c.Completed(s.now, w, err))
	}
	text, err := json.Marshal(s.c.Telemetry(s.now).Durability)
	must(s.t, err)
	return told + string(text) + "\n"
}

// generation is that of a frame: by default what its sender's place has.
func (s *membership) generation(from schema.Member) schema.Generation {
	g := s.c.config.Generation
	if i, ok := s.c.members.find(from); ok {
		g = s.c.members[i].generation
	}
	return schema.Generation(s.count("generation", int(g)))
}

// words is an argument that has dashes in place of blanks.
func (s *membership) words(name string) string { return strings.ReplaceAll(s.text(name, ""), "-", " ") }

func (s *membership) learningRates(from schema.Member) string {
	switch s.d.Cmd {
	case "scale-lr":
		scale, err := strconv.ParseFloat(s.text("scale", "0.5"), 32)
		must(s.t, err)
		return s.tell(s.c.ScaleLR(from, &schema.LR{Changes: []schema.LRChange{{From: schema.Batch(s.count("batch", 0)), Scale: float32(scale)}},
			Force: s.d.HasArg("force")}))
	case "lr-taken":
		return s.tell(s.c.LRTaken(from, s.generation(from),
			&schema.LRTaken{Serial: s.count("serial", s.c.lr.serial), Begun: schema.Batch(s.count("begun", 0))}))
	}
	return s.tell(s.c.Recorded(s.now, []schema.LRChange{}, nil))
}

// waiting reads 17:t0+t1, once for each shard.
func (s *membership) waiting() []schema.Waiting {
	var all []schema.Waiting
	for _, a := range s.d.CmdArgs {
		if a.Key != "waiting" {
			continue
		}
		for _, v := range a.Vals {
			batch, names, _ := strings.Cut(v, ":")
			w := schema.Waiting{}
			_, err := fmt.Sscan(batch, &w.Batch)
			must(s.t, err)
			for name := range strings.SplitSeq(names, "+") {
				w.Members = append(w.Members, schema.Member(name))
			}
			if s.d.HasArg("first") {
				w.First = w.Members
			}
			all = append(all, w)
		}
	}
	return all
}

func (s *membership) tell(decisions []Decision) string {
	var b strings.Builder
	for _, d := range decisions {
		if d.To != "" {
			if assign := d.Control.Assign; assign != nil { // the manifest is the same everywhere
				short := *assign
				short.Job = nil
				d.Control.Assign = &short
			}
			text, err := json.Marshal(d.Control)
			must(s.t, err)
			fmt.Fprintf(&b, "to %s: %s\n", d.To, text)
		}
		if d.Written != nil {
			text, err := json.Marshal(d.Written.Parts)
			must(s.t, err)
			fmt.Fprintf(&b, "durable: %s\n", text)
			s.written = d.Written
		}
		if d.Record != nil {
			text, err := json.Marshal(d.Record)
			must(s.t, err)
			fmt.Fprintf(&b, "record: %s\n", text)
		}
		switch {
		case d.Note == "":
		case d.Who == "":
			fmt.Fprintf(&b, "log: %s\n", d.Note)
		default:
			fmt.Fprintf(&b, "log of %s: %s\n", d.Who, d.Note)
		}
	}
	if s.c.state.IsOver() {
		fmt.Fprintf(&b, "the job has ended\n")
	}
	return b.String()
}

func (s *membership) status() string {
	var b strings.Builder
	st := s.c.Status()
	fmt.Fprintln(&b, strings.TrimSpace(st.State+" "+string(s.c.ended)))
	for _, m := range st.Members {
		state := m.State
		if m.Host != "" {
			state = fmt.Sprintf("%s on %s, at batch %d", m.State, m.Host, m.Batch)
		}
		fmt.Fprintf(&b, "  %s: %s\n", m.Member, state)
	}
	return b.String()
}

// beats has the trainers beat, and the coordinator tick, each second until a time. It says when something was told.
func (s *membership) beats() string {
	var b strings.Builder
	epoch := time.Unix(1000, 0)
	for until := epoch.Add(s.duration("until", "0s")); !s.now.After(until); s.now = s.now.Add(time.Second) {
		for i := range s.c.members {
			s.heartbeat(schema.TrainerMember(i))
		}
		if told := s.tick(); told != "" {
			fmt.Fprintf(&b, "at %v: %s", s.now.Sub(epoch), told)
		}
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
