package exchange

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"gradbus/schema"
)

// TestScripts runs the scripts of testdata/scripts. A script begins with an exchange and then tells what happens to it,
// one event a paragraph; below each stands what is to be done. go test -rewrite writes the actions anew. Owners are
// s0, s1, ...; round r of an owner is chunk r of bucket 0, and the one over rows that of bucket 1.
//
//	exchange rounds=3+2 [rows=s0+s1] [open=] [alone] [anyweight] [ownrows] [modules=]     rounds of each owner
//	begin batch=
//	result of=s0 round= [batch=] [weight=] [part=i/n] [pulled] [version=] [byrows]   arrives and is placed
//	claim ...              the same, and is not placed yet
//	place ...              it is now
//	ask who= of=s0+s1 [at=] [parked]       requests to these owners
//	answer who= of=s0 number= [part=i/n] [wrong]
//	refuse who= number=
//	close who=
//	await who= [at=]       the answers, or results=: a version above
//	tick at=
//	back                   a connection is
//	stop                   the next wait for the same begins anew
//	expect trip=
//	lacking, outcome batch=, counts
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.d = t, d
			return s.run()
		})
	})
}

type script struct {
	t    *testing.T
	d    *datadriven.TestData
	x    *Exchange
	last Result
}

func (s *script) run() string {
	switch s.d.Cmd {
	case "exchange":
		s.x = New(s.config())
	case "begin":
		s.x.Begin(schema.Batch(s.number("batch")))
		return s.finish()
	case "result", "claim":
		s.last = s.result()
		fresh, err := s.x.Claim(s.last)
		if err != nil {
			return err.Error() + "\n"
		}
		if !fresh {
			return "ignored\n"
		}
		if s.d.Cmd == "claim" {
			return "to be placed\n"
		}
		return s.place()
	case "place":
		s.last = s.result()
		return s.place()
	default:
		return s.ask()
	}
	return "ok\n"
}

func (s *script) ask() string {
	who := Asker(s.number("who"))
	switch s.d.Cmd {
	case "ask":
		owners := s.owners("of")
		first := s.x.Number(len(owners))
		s.x.Ask(who, first, owners, s.duration("at"), !s.d.HasArg("parked"))
		return fmt.Sprintf("numbers from %d on\n", first)
	case "answer":
		part, of := s.part()
		i, fresh, err := s.x.ClaimAnswer(who, s.owners("of")[0], schema.Sequence(s.number("number")), part, of)
		switch {
		case err != nil:
			return err.Error() + "\n"
		case !fresh:
			return "ignored\n"
		}
		s.x.PlaceAnswer(who, i, part, !s.d.HasArg("wrong"))
		return fmt.Sprintf("of request %d, %d are open\n", i, s.x.Open(who))
	case "refuse":
		return fmt.Sprintf("open %v\n", s.x.Refuse(who, schema.Sequence(s.number("number"))))
	case "close":
		s.x.Close(who)
	case "await":
		if s.d.HasArg("results") {
			s.x.AwaitResults(schema.Version(s.number("results")), s.duration("usual"), s.duration("at"))
		} else {
			s.x.Await(who, s.duration("at"))
		}
		return s.tell(s.x.Tick(s.duration("at")))
	case "tick":
		return s.tell(s.x.Tick(s.duration("at")))
	case "back":
		s.x.Back()
		return fmt.Sprintf("wake up %v\n", s.x.Done())
	case "stop":
		s.x.Stop()
	case "expect":
		s.x.Expect(s.duration("trip"))
	case "lacking":
		first, n := s.x.Lacking()
		return fmt.Sprintf("%d, first s%d\n", n, first)
	case "outcome":
		weight, version := s.x.Outcome(schema.Batch(s.number("batch")))
		return fmt.Sprintf("version %d over %v samples\n", version, weight)
	case "counts":
		c := s.x.Counts()
		return fmt.Sprintf("%d taken, %d of them by rows, %d repeated\n", c.Taken, c.ByRows, c.Repeated)
	default:
		s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
	}
	return "ok\n"
}

// place places a result, and does what the exchange says.
func (s *script) place() string {
	whole, lost := s.x.Place(s.last)
	told := "placed a part\n"
	if whole {
		told = "placed\n"
	}
	return told + pulls(lost) + s.finish()
}

// finish ends batches that are full.
func (s *script) finish() string {
	var b strings.Builder
	for batch, weight, full := s.x.Full(); full; batch, weight, full = s.x.Full() {
		s.x.Finish()
		fmt.Fprintf(&b, "batch %d is complete, over %v samples\n", batch, weight)
	}
	if s.x.Done() {
		b.WriteString("wake up\n")
	}
	if b.Len() == 0 && s.d.Cmd == "begin" {
		return "ok\n"
	}
	return b.String()
}

func (s *script) tell(a Actions) string {
	if a.Done {
		return "done\n"
	}
	var b strings.Builder
	if len(a.Requests) > 0 {
		fmt.Fprintf(&b, "send requests %v of %d again\n", a.Requests, a.Asker)
	}
	return b.String() + pulls(a.Pulls) + fmt.Sprintf("next at %v\n", a.Next)
}

func pulls(all []Pull) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "pull batch %d bucket %d chunk %d from s%d\n", p.Batch, p.Bucket, p.Chunk, p.Owner)
	}
	return b.String()
}

func (s *script) config() Config {
	c := Config{Open: max(1, s.number("open")), Shared: !s.d.HasArg("alone"), AnyWeight: s.d.HasArg("anyweight"),
		OwnRows: s.d.HasArg("ownrows"), Askers: 2, Modules: s.number("modules"), RetryAfter: time.Second}
	for text := range strings.SplitSeq(s.text("rounds", "1"), "+") {
		n, err := strconv.Atoi(text)
		s.must(err)
		rounds := make([]Round, n)
		for i := range rounds {
			rounds[i].Chunk = schema.Chunk(i)
		}
		c.Rounds = append(c.Rounds, rounds)
	}
	c.HasRows = make([]bool, len(c.Rounds))
	if s.d.HasArg("rows") {
		for _, owner := range s.owners("rows") {
			c.HasRows[owner] = true
			c.Rounds[owner] = append(c.Rounds[owner], Round{Bucket: 1})
		}
	}
	return c
}

func (s *script) result() Result {
	r := Result{Owner: s.owners("of")[0], Round: s.number("round"), Batch: schema.Batch(s.number("batch")), Weight: 8,
		Pulled: s.d.HasArg("pulled"), ByRows: s.d.HasArg("byrows")}
	r.Version = r.Batch + 1
	if s.d.HasArg("version") {
		r.Version = schema.Version(s.number("version"))
	}
	if s.d.HasArg("weight") {
		r.Weight = float64(s.number("weight"))
	}
	r.Part, r.Parts = s.part()
	return r
}

func (s *script) part() (part, of int) {
	i, n, _ := strings.Cut(s.text("part", "0/1"), "/")
	part, err := strconv.Atoi(i)
	s.must(err)
	of, err = strconv.Atoi(n)
	s.must(err)
	return part, of
}

func (s *script) owners(name string) (all []int) {
	for text := range strings.SplitSeq(s.text(name, "s0"), "+") {
		n, err := strconv.Atoi(strings.TrimPrefix(text, "s"))
		s.must(err)
		all = append(all, n)
	}
	return all
}

func (s *script) text(name, otherwise string) string {
	s.d.MaybeScanArgs(s.t, name, &otherwise)
	return otherwise
}

func (s *script) number(name string) int {
	n := 0
	s.d.MaybeScanArgs(s.t, name, &n)
	return n
}

func (s *script) duration(name string) time.Duration {
	d, err := time.ParseDuration(s.text(name, "0s"))
	s.must(err)
	return d
}

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", s.d.Pos, err)
	}
}
