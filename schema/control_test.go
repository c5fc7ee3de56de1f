package schema

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func testControls() []Control {
	return []Control{
		{Join: &Join{Job: testJob(), Wanted: "t1", Host: "box 17"}},
		{Joined: &Joined{Member: "t1", RunID: 1<<64 - 1, Generation: 1, FirstLane: 2, LaneCount: 2, Shards: 2, Missing: 1,
			DeadlineMS: 30000}},
		{Refused: &Refused{Reason: "job_differs", Field: "optimizer.lr", Have: "0.1", Want: "0.2", Text: "no"}},
		{Start: &Start{Replica: "nats://10.0.0.2:4222"}},
		{Leave: &Leave{Reason: "disk full"}},
		{Ended: &Ended{Member: "t1", Text: "trainer t1 was last seen 30 s ago at batch 17 (deadline 30s)"}},
		{Assign: &Assign{Job: testJob(), Serial: 2, Shards: 4, Own: []int{1, 2}, Cluster: []Member{"t1"},
			WindowBytes: 4 << 20}},
		{Report: &Report{Serial: 2, Ready: true,
			Waiting: []Waiting{{Batch: 17, Bucket: 3, Chunk: 1, Members: []Member{"t0", "t1"}, First: []Member{"t1"}}}}},
		{LR: &LR{Serial: 3, Changes: []LRChange{{From: 500, Scale: 0.1}, {From: 900, Scale: 0.01}}}},
		{LRTaken: &LRTaken{Serial: 3, Begun: 480}},
		{Checkpoint: &Checkpoint{Version: 18}},
		{Group: &Group{Update: 7, Member: "t1", Batch: 3, Parked: 2, Size: 3, AtNS: 1 << 60}},
		{Stalled: &Stalled{Member: "t1", Host: "box", Batch: 3, WaitedMS: 5000, LimitMS: 1800000}},
		{Keep: &Keep{Serial: 2, Series: 1, Shards: 2, To: []Member{"p-a", "p-b"}, At: 18, Since: 17, Whole: 17,
			From: []DataServer{{ID: "a", URL: "nats://10.0.0.2:4222", Shards: []int{1}}, {ID: "b", Shards: []int{0}}},
			Runs: []RunID{4}, LR: []LRChange{{From: 500, Scale: 0.1}}, Incarnation: 7, Voters: []Voter{{"t0", 5}}, Last: true}},
		{Kept: &Kept{Server: "b", Incarnation: 1<<64 - 1, Run: 5, Series: 1, Shards: 2, Own: []int{0, 1}, Ready: true,
			Version: 17, Next: 18, Missed: 16, Begun: 18, TookMS: 3, Bytes: 1 << 40}},
		{Query: &Query{Run: 5}},
		{Follow: &Follow{URL: "nats://10.0.0.2:4222", Incarnation: 1<<64 - 1, Host: "box 18",
			Over: []OverRun{{Job: "demo", Run: 4}}}},
		{Drain: &Drain{Server: "box-4222", Incarnation: 7}},
		{Jobs: &Jobs{Server: "box-4222", Incarnation: 7, Jobs: []JobProgress{{Job: "demo", Version: 19, Durable: 17,
			Kept: 18, To: "nats://10.0.0.2:4222"}}}},
	}
}

func TestControlSurvives(t *testing.T) {
	controls := testControls()
	if n := reflect.TypeFor[Control]().NumField(); len(controls) != n {
		t.Fatalf("%d messages of %d are tested", len(controls), n)
	}
	for _, c := range controls {
		frame, err := EncodeControl(Head{Job: 9, Generation: 1}, c)
		if err != nil {
			t.Fatal(err)
		}
		v, err := Verify(frame, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeControl(&v)
		if theirs, _ := envelope(v.Body()); greetings[c.Name()] != (theirs != nil && *theirs == ThisProgram()) {
			t.Errorf("%s is of %v", c.Name(), theirs)
		}
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%s became %+v, %v", c.Name(), got, err)
		}
		if h := v.Head(); h.Job != 9 || h.Kind != KindControl {
			t.Errorf("head %+v", h)
		}
	}
}

// controlView is a frame with a body. Greetings are this program's.
func controlView(t *testing.T, kind Kind, body string) *View {
	t.Helper()
	if _, message := envelope([]byte(body)); kind == KindControl && greetings[message] {
		this := ThisProgram()
		body = fmt.Sprintf(`{"speaks":{"version":%q,"fingerprint":%q},`, this.Version, this.Fingerprint) + body[1:]
	}
	return bodyView(t, kind, body)
}

func bodyView(t *testing.T, kind Kind, body string) *View {
	t.Helper()
	f, err := NewFrame(Layout{Kind: kind, Body: len(body)})
	if err != nil {
		t.Fatal(err)
	}
	copy(f.Body(), body)
	v, err := Verify(f.Seal(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &v
}

func TestDecodeControlRefuses(t *testing.T) {
	for body, want := range map[string]string{
		`{"follow":{"url":"","host":"","incarnation":"1","over":[{"job":"../../x","run_id":"1"}]}}`: "follow.over[].job",
		`{"kept":{"server":"a","incarnation":"1","version":5,"shards":2,"own":[7]}}`:                "in series 0",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[0],"resume":"../000001-1-1"}}`:  "assign.resume",
		`{}`:                        "no message",
		`null`:                      "no message",
		`[]`:                        "cannot unmarshal",
		`{"start":{},"leave":null}`: "", // null is absent
		`{"start":{},"leave":{}}`:   "more than one",
		`{"start":{},"start":{}}`:   "twice",
		`{"group":{"update":1,"closed":true,"parked":1,"at_ns":"1"}}`:                             "want no request with it",
		`{"group":{"update":1,"member":"t0","parked":1,"at_ns":"1"}}`:                             "1 requests of 0",
		`{"group":{"update":1,"member":"T","parked":1,"size":1,"at_ns":"1"}}`:                     "member",
		`{"group":{"update":1,"closed":true,"at_ns":"1"}}`:                                        "",
		`{"assign":{"serial":1,"shards":2,"own":[0]}}`:                                            "no job",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[]}}`:                          "own shards",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[1,0]}}`:                       "own shards",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[1,1]}}`:                       "own shards",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[2]}}`:                         "own shards",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[-1]}}`:                        "assign.own[] -1: want 0 to 4095",
		`{"keep":{"serial":0,"series":1,"shards":2,"from":[{"id":"a","shards":[0]}]}}`:            "serial 0",
		`{"keep":{"serial":1,"series":1,"shards":2,"from":[]}}`:                                   "own shards",
		`{"keep":{"serial":1,"series":1,"shards":2,"from":[{"id":"a","shards":[2]}]}}`:            "own shards",
		`{"kept":{"server":"a","incarnation":"1","series":1,"shards":2,"own":[1,1]}}`:             "own shards",
		`{"kept":{"server":"a","incarnation":"1","series":1,"shards":99999,"own":[1]}}`:           "kept.shards 99999",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":5000000,"own":[0]}}`:                   "assign.shards 5000000: want 0 to 4096",
		`{"assign":{"job":{"name":"x"},"serial":0,"shards":2,"own":[0]}}`:                         "serial 0",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[0],"window_bytes":-1}}`:       "assign.window_bytes -1",
		`{"assign":{"job":{"name":"x"},"serial":1,"shards":2,"own":[0],"window_bytes":16777217}}`: "want at most",
		`{"start":{}}{}`:                       "exactly one",
		`{"start":{"x":1}}`:                    "unknown field",
		`{"Start":{}}`:                         "lower case",
		`{"join":{"host":"h"}}`:                "no job",
		`{"join":{"job":{"name":"x"},"x":""}}`: "unknown field",
		`{"join":{"job":{"name":"x"},"wanted":"T 1","host":""}}`:                            "1 to 63",
		`{"joined":{"member":"t0","run_id":"1","lane_count":0,"shards":1,"deadline_ms":1}}`: "0 lanes",
		`{"joined":{"member":"t0","run_id":1,"lane_count":1,"shards":1,"deadline_ms":1}}`: "cannot unmarshal " +
			"number into Go struct field signed.joined.run_id",
		`{"joined":{"member":"","run_id":"1","lane_count":1,"shards":1,"deadline_ms":1}}`:             "1 to 63",
		`{"ended":{"member":"t0","text":"` + strings.Repeat("x", TextBytesMax+1) + `"}}`:              "at most 4096",
		`{"refused":{"reason":"` + strings.Repeat("x", TextBytesMax+1) + `","text":""}}`:              "at most 4096",
		`{"join":{"job":{"settings":{"a":` + strings.Repeat("[", 9) + strings.Repeat("]", 9) + `}}}}`: "deeper",
	} {
		_, err := DecodeControl(controlView(t, KindControl, body))
		if want == "" && err == nil {
			continue
		}
		var e *FrameError
		if !errors.As(err, &e) || e.Reason != ReasonMalformed || want == "" || !strings.Contains(e.Detail, want) {
			t.Errorf("%.60s: %v, want %q", body, err, want)
		}
	}
	for _, kind := range []Kind{KindControl, KindHeartbeat} {
		f, err := NewFrame(Layout{Kind: kind, Body: len(`{"left":{}}`)})
		if err != nil {
			t.Fatal(err)
		}
		copy(f.Body(), `{"left":{}}`)
		f.SetHead(Head{Batch: 1<<64 - 1})
		if _, err := Verify(f.Seal(), Limits{}); ReasonOf(err) != ReasonMalformed {
			t.Errorf("a %v frame of the last batch that a number can be: %v", kind, err)
		}
	}
	if _, err := DecodeControl(controlView(t, KindHeartbeat, `{"left":{}}`)); ReasonOf(err) != ReasonUnknownKind {
		t.Errorf("a heartbeat decodes as control: %v", err)
	}
}

func TestEncodeControlRefuses(t *testing.T) {
	for name, c := range map[string]Control{"none": {}, "two": {Start: &Start{}, Leave: &Leave{}}} {
		if _, err := EncodeControl(Head{}, c); err == nil {
			t.Errorf("%s: encodes", name)
		}
	}
	large := testJob()
	large.Settings["x"] = strings.Repeat("x", bodyBytesMax)
	if _, err := EncodeControl(Head{}, Control{Join: &Join{Job: large}}); err == nil ||
		!strings.Contains(err.Error(), "1048576") {
		t.Errorf("a body above the limit: %v", err)
	}
}

func TestRefusalSurvives(t *testing.T) {
	refusedHead := Head{Job: 3, Batch: 7, Bucket: 1 << 31, Chunk: 9, Chunks: 2, Lanes: 65535, DType: 77,
		Flags: 1 << 31, Weight: -1}
	v, err := Verify(EncodeRefusal(refusedHead, ReasonStaleBatch, strings.Repeat("ä", TextBytesMax)), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := DecodeRefusal(&v)
	if err != nil || r.Reason != "stale_batch" || len(r.Text) > TextBytesMax || !utf8.ValidString(r.Text) ||
		!strings.HasSuffix(r.Text, "ä...") {
		t.Errorf("%s %d bytes of text, %v", r.Reason, len(r.Text), err)
	}
	want := refusedHead
	want.Kind, want.DType = KindRefusal, DTypeNone
	if v.Head() != want {
		t.Errorf("head %+v, want %+v", v.Head(), want)
	}
	for body, text := range map[string]string{
		`{"reason":"","text":"x"}`: "reason of 0", `{"reason":"x","texts":""}`: "unknown field", `{}`: "reason of 0",
	} {
		if _, err := DecodeRefusal(controlView(t, KindRefusal, body)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", body, err, text)
		}
	}
	if _, err := DecodeRefusal(controlView(t, KindControl, `{"reason":"x"}`)); ReasonOf(err) != ReasonUnknownKind {
		t.Errorf("a control frame decodes as refusal: %v", err)
	}
}

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reason(ReasonCount) {
		name := r.String()
		if seen[name] || name == "" {
			t.Errorf("reason %d is named %q: want a name of its own", r, name)
		}
		seen[name] = true
	}
	if Reason(200).String() != "reason 200" {
		t.Error("unknown reasons have names")
	}
}
