package status_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

// TestScripts runs the scripts of testdata: what happens to a job, and the exact words that are said of it. go test
// -rewrite writes them anew.
//
//	cluster [trainers= servers= shards= hosts= control= consistency= ahead= apply= batch=seconds at=ps hosted gpus gathering no-job]
//	play seconds=        what the page says at the end: the sentence, what to do, and all problems
//	set t1 ... | ps=0    what happens to trainers or a ps: stopped, gone, dropped-out, left, away, stuck, slow=3, loss=nan, norm=1e9, digest=7, well,
//	                     after=0.9; of ps: idle, unready, control-lost, refuses=damaged:9,
//	                     free=bytes, use=, promised=bytes, mismatches=1; of all: hung, deaf
//	gpu t1 state= [code= reason= action= xid= throttled= injected]
//	end [failed=t3 text= how=stopped back]
//	drain by=1 [unheard] the ps that coordinates the job is asked to end, and another one goes on with the job
//	durable [every=seconds batches= failure=word_word off=word_word]
//	replica [server=b | peers server=a,b,c] [failure=word_word off=word_word stuck]
//	restart ps=0 | t1
//	events               what has happened since they were asked for last
//	rows                 trainers and shards: state, level, what they do
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.d = t, d
			return s.run()
		})
	})
}

type script struct {
	t       *testing.T
	d       *datadriven.TestData
	c       *statustest.Cluster
	tracker *status.Tracker
	update  status.Update
	told    uint64
}

func (s *script) run() string {
	switch s.d.Cmd {
	case "cluster":
		s.c = statustest.NewCluster(statustest.Options{Trainers: s.number("trainers"), Servers: s.number("servers"),
			Shards: s.number("shards"),
			Hosts:  s.number("hosts"), Control: s.text("control"), Consistency: s.text("consistency"), Apply: s.text("apply"),
			Ahead: s.number("ahead"), BatchSeconds: s.real("batch"), Hosted: s.d.HasArg("hosted"), GPUs: s.d.HasArg("gpus")})
		s.c.NoJob = s.d.HasArg("no-job")
		if s.d.HasArg("gathering") {
			s.c.Phase = schema.PhaseGathering
		}
		s.tracker, s.told = s.c.NewTrackerOf(s.number("at")), 0
	case "play":
		s.update = s.c.Play(s.tracker, s.number("seconds"))
		return s.said()
	case "set":
		s.set()
	case "gpu":
		s.gpu()
	case "disk":
		s.disk()
	case "refuse":
		s.refuse()
	case "durable":
		d := &s.c.Durable
		d.Every, d.Batches = s.number("every"), schema.Batch(s.number("batches"))
		d.Off, d.Failure = strings.ReplaceAll(s.text("off"), "_", " "), strings.ReplaceAll(s.text("failure"), "_", " ")
	case "replica":
		b := &s.c.Replica
		b.Server, b.Stuck, b.Peers = s.text("server"), s.d.HasArg("stuck"), s.d.HasArg("peers")
		b.Off, b.Failure = strings.ReplaceAll(s.text("off"), "_", " "), strings.ReplaceAll(s.text("failure"), "_", " ")
	case "restart":
		s.restart()
	case "end":
		var failed *schema.Ended
		if who := s.text("failed"); who != "" {
			failed = &schema.Ended{Member: schema.Member(who), End: schema.End(s.text("how")), Back: s.d.HasArg("back"),
				Text: strings.NewReplacer("__", "_", "_", " ").Replace(s.text("text"))}
		}
		s.c.End(failed)
	case "drain":
		s.c.Drain(s.number("by"), !s.d.HasArg("unheard"))
	case "events":
		return s.events()
	case "rows":
		return s.rows()
	default:
		s.t.Fatalf("%s: no such command", s.d.Cmd)
	}
	return ""
}

func (s *script) said() string {
	var b strings.Builder
	st := &s.update.Status
	fmt.Fprintf(&b, "%s: %s\n", st.Why.Level, st.Why.Text)
	if st.Why.Action != "" {
		fmt.Fprintf(&b, "do: %s\n", st.Why.Action)
	}
	for _, p := range st.Problems {
		fmt.Fprintf(&b, "- %s %s, since %s ago: %s\n", p.Level, p.Code, since(st.NowMS-p.SinceMS), p.Text)
	}
	return b.String()
}

func since(ms int64) string { return fmt.Sprintf("%gs", float64(ms)/1000) }

func (s *script) events() string {
	var b strings.Builder
	for _, e := range s.tracker.Events(s.told) {
		fmt.Fprintf(&b, "%s ago %s %s: %s\n", since(s.update.Status.NowMS-e.AtMS), e.Level, e.Code, e.Text)
		s.told = e.Serial
	}
	return b.String()
}

func (s *script) rows() string {
	var b strings.Builder
	for _, j := range s.update.Status.Jobs {
		fmt.Fprintf(&b, "%s %s, batch %d, missing %d: %s\n", j.Name, j.Phase, j.Batch, j.Missing, j.Why.Text)
		if d := j.Durability; d != nil {
			fmt.Fprintf(&b, "durable %d age %s, %d bytes in %s, failed %d %q, late %s, off %q\n", d.Version, since(d.AgeMS),
				d.Bytes, since(int64(1000*d.TookSeconds)), d.Failures, d.Failure, since(d.LateMS), d.Off)
		}
		if d := j.Replica; d != nil {
			fmt.Fprintf(&b, "replica %q at %q, ready %v, version %d age %s, %d bytes, the last in %s, unready %s, late %s, "+
				"failure %q, off %q\n", d.Server, d.URL, d.Ready, d.Version, since(d.AgeMS), d.Bytes, since(int64(1000*d.TookSeconds)),
				since(d.UnreadyMS), since(d.LateMS), d.Failure, d.Off)
			for _, k := range d.Kept {
				fmt.Fprintf(&b, "%s keeps %v, ready %v, version %d, failure %q\n", k.Server, k.Of, k.Ready, k.Version, k.Failure)
			}
		}
		for _, t := range j.Trainers {
			fmt.Fprintf(&b, "%s %s %s %s, batch %d held %s, %.0f samples/s\n", t.Member, t.Host, t.State, t.Level,
				t.Batch, since(t.HeldMS), float64(t.SamplesPerSecond))
		}
		for _, h := range j.Shards {
			fmt.Fprintf(&b, "%s of %q %s, version %d, load %.2f, waits for %v\n", h.Member, h.Server, h.Level, h.Version,
				float64(h.Load), h.WaitsFor)
		}
	}
	for _, g := range s.update.Status.GPUs {
		fmt.Fprintf(&b, "GPU %s/%d %s %s, used by %v\n", g.Host, g.Index, g.State, g.Level, g.Users)
	}
	for _, v := range s.update.Status.Servers {
		fmt.Fprintf(&b, "%s %s, age %s\n", v.ID, v.Level, since(v.AgeMS))
	}
	return b.String()
}

// trainers are those that a command names.
func (s *script) trainers() (all []*statustest.Trainer) {
	for _, arg := range s.d.CmdArgs {
		if n, ok := strings.CutPrefix(arg.Key, "t"); ok && len(arg.Vals) == 0 {
			if i, err := strconv.Atoi(n); err == nil {
				all = append(all, s.c.Trainers[i])
			}
		}
	}
	return all
}

func (s *script) set() {
	for _, t := range s.trainers() {
		if s.d.HasArg("well") {
			t.Stopped, t.Gone, t.Stuck, t.Away, t.Slow, t.Loss, t.Norm = false, false, false, false, 0, 0, 0
		}
		t.Stopped, t.Gone, t.Left = t.Stopped || s.d.HasArg("stopped"), t.Gone || s.d.HasArg("gone"), t.Left ||
			s.d.HasArg("left")
		t.Stuck, t.Away = t.Stuck || s.d.HasArg("stuck"), t.Away || s.d.HasArg("away")
		t.Slow = max(t.Slow, s.real("slow"))
		t.After, t.Dropped = s.real("after"), s.d.HasArg("dropped-out")
		t.Wrong = uint64(s.number("mismatches"))
		if s.d.HasArg("loss") {
			t.Loss = s.real("loss")
		}
		if s.d.HasArg("norm") {
			t.Norm = s.real("norm")
		}
	}
	if s.d.HasArg("digest") {
		s.c.Digests = map[string]uint32{}
		for _, arg := range s.d.CmdArgs {
			s.c.Digests[arg.Key] = uint32(s.number("digest"))
		}
	}
	s.c.Hung, s.c.Deaf = s.d.HasArg("hung"), s.d.HasArg("deaf")
	if s.d.HasArg("ps") {
		s.setServer(s.c.Servers[s.number("ps")])
	}
}

func (s *script) setServer(v *statustest.Server) {
	v.Idle = s.d.HasArg("idle")
	v.Stopped, v.ControlLost, v.NotReady = s.d.HasArg("stopped"), s.d.HasArg("control-lost"), s.d.HasArg("unready")
	v.Promised = int64(s.number("promised"))
	v.Mismatches = uint64(s.number("mismatches"))
	if free := s.number("free"); free > 0 {
		v.Disk.FreeBytes = int64(free)
	}
	if s.d.HasArg("use") {
		v.Disk.Use = s.text("use")
	}
	v.Refused = map[string]uint64{}
	if reason, n, ok := strings.Cut(s.text("refuses"), ":"); ok {
		v.Refused[reason] = uint64(s.parse(n))
	}
}

func (s *script) gpu() {
	for _, t := range s.trainers() {
		g := &t.GPUs[0]
		g.State, g.Code = schema.GPUState(s.text("state")), s.text("code")
		g.Reason, g.Action = strings.ReplaceAll(s.text("reason"), "_", " "), strings.ReplaceAll(s.text("action"), "_", " ")
		g.Injected, g.Throttled = s.d.HasArg("injected"), nil
		if s.d.HasArg("throttled") {
			g.Throttled = []string{s.text("throttled")}
		}
		if s.d.HasArg("xid") {
			g.XIDs = map[string]uint64{s.text("xid"): g.XIDs[s.text("xid")] + 1}
		}
	}
}

// disk says where trainers write: what answered so many seconds ago has not answered since.
func (s *script) disk() {
	d := schema.DiskReport{Path: s.text("path"), Use: strings.ReplaceAll(s.text("use"), "_", " "),
		Device: s.text("device"), FreeBytes: int64(s.number("free")),
		TotalBytes: int64(s.number("total")), NeedBytes: int64(s.number("need"))}
	if ago := s.number("ago"); ago > 0 {
		d.SampleMS = s.c.Now.Add(-time.Duration(ago) * time.Second).UnixMilli()
	}
	for _, t := range s.trainers() {
		t.Disks = []schema.DiskReport{d}
	}
}

// refuse says that the first ps refuses a trainer of a job.
func (s *script) refuse() {
	v, now := s.c.Servers[0], s.c.Now.UnixMilli()
	if s.d.HasArg("forget") {
		v.Joins = nil
		return
	}
	one := schema.RefusedReport{Job: schema.JobName(s.text("job")), Reason: s.text("reason"), FirstMS: now}
	if i := slices.IndexFunc(v.Joins,
		func(r schema.RefusedReport) bool { return r.Job == one.Job && r.Reason == one.Reason }); i >= 0 {
		one = v.Joins[i]
		v.Joins = slices.Delete(v.Joins, i, i+1)
	}
	one.Host, one.Text, one.LastMS = "box-1 (pid 81)", strings.ReplaceAll(s.text("text"), "_", " "), now
	one.Count++
	v.Joins = append(v.Joins, one)
}

func (s *script) restart() {
	for _, t := range s.trainers() {
		t.Restart(s.c.Now)
	}
	if s.d.HasArg("ps") {
		s.c.Servers[s.number("ps")].Restart(s.c)
	}
}

func (s *script) text(key string) string {
	for _, arg := range s.d.CmdArgs {
		if arg.Key == key && len(arg.Vals) > 0 {
			return arg.Vals[0]
		}
	}
	return ""
}

func (s *script) number(key string) int { return int(s.real(key)) }

func (s *script) real(key string) float64 {
	text := s.text(key)
	if text == "" {
		return 0
	}
	return s.parse(text)
}

func (s *script) parse(text string) float64 {
	if text == "nan" {
		return math.NaN()
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		s.t.Fatalf("%s: %v", s.d.Pos, err)
	}
	return f
}
