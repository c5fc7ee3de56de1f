package trainer

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gradbus/fabric"
	"gradbus/ps"
	"gradbus/schema"
)

// lateTable is a table of lateJob whose rows take several chunks, in a lookup and in a scan.
const lateTable, lateRows, lateDim = 2, 16000, 3

// lateJob has every kind of thing to ask for: rows, pooled rows, tables cut by rows and by columns, results, a hosted
// module.
func lateJob(name string) *schema.Job {
	job := bagJob(name, "", 1, 2)
	job.Reduce, job.Apply = "", schema.ApplyUpdate
	job.Tables[1].Placement = schema.PlacementColumns
	job.Tables = append(job.Tables, schema.TableSpec{Name: "wide", Rows: lateRows, Dim: lateDim, Partitions: 3,
		Init: schema.Init{Kind: schema.InitNormal, Scale: 1}})
	job.Modules = moduleJob(name, 1, job.Consistency).Modules
	return job
}

// answers overhears what a trainer is told, to say it again later.
type answers struct {
	mu  sync.Mutex
	all []fabric.Message
}

func (a *answers) note(m fabric.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, fabric.NewMessage(m.Text(), slices.Clone(m.Data)))
}

// kinds counts what was overheard, by kind of subject, pooled rows apart.
func (a *answers) kinds(t *testing.T) map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := map[string]int{}
	for _, m := range a.all {
		subject, err := m.Parse()
		if err != nil {
			t.Fatal(err)
		}
		kind := subject.Kind
		if v, err := schema.Verify(m.Data, schema.Limits{}); err == nil && v.Head().Kind == schema.KindRows {
			switch {
			case v.Bags() != nil:
				kind = "pooled"
			case v.Head().Chunks == 0:
				kind = "scanned"
			}
		}
		count[kind]++
	}
	return count
}

// again tells a session everything once more.
func (a *answers) again(s *Session) {
	a.mu.Lock()
	all := slices.Clone(a.all)
	a.mu.Unlock()
	for _, m := range all {
		s.receiver.receive(m)
	}
}

func overhear(t *testing.T, server *ps.Server) *answers {
	t.Helper()
	a := new(answers)
	conn, err := fabric.Dial(testContext(t), fabric.Config{URL: server.URL(), Bus: busOf(server.URL()), Name: "overhears"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for _, to := range []schema.Member{"t0", schema.All} {
		for _, kind := range []string{fabric.KindRows, fabric.KindMean, fabric.KindModule, fabric.KindAck} {
			deep := kind != fabric.KindAck
			if err := conn.Subscribe(fabric.Pattern(fabric.Any, fabric.Any, kind, string(to), deep), a.note); err != nil {
				t.Fatal(err)
			}
		}
	}
	return a
}

// readAll asks for something of every kind, and gives the rows of the wide table as a lookup and, where it is among the
// tables that are scanned, as a scan has them.
func readAll(t *testing.T, s *Session, tables ...int) (looked, scanned []float32) {
	t.Helper()
	keys := make([]uint64, lateRows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	got, err := s.Lookup(testContext(t), []Query{{Table: lateTable, Keys: keys}, {Table: 1, Keys: []uint64{3, 30, 7}}, {Table: 0, Keys: []uint64{5}}})
	if err != nil {
		t.Fatal(err)
	}
	scanned = make([]float32, lateRows*lateDim)
	for _, table := range tables {
		err := s.Table(testContext(t), schema.Table(table), func(_ schema.Partition, keys []uint64, rows []float32) error {
			for i, key := range keys {
				if table == lateTable {
					copy(scanned[key*lateDim:][:lateDim], rows[i*lateDim:])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := s.Module("net")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Evaluate(testContext(t), make([]float32, 600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Weights(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return got[0], scanned
}

// Every kind of answer comes again, twice, while a request of each other kind is open and none of its own answers is
// there: nothing of it is taken, and what is read afterwards is right.
func TestNoAnswerIsTakenForAnother(t *testing.T) {
	server := startServer(t, 2)
	late := overhear(t, server)
	s := joinAll(t, testConfig(t, server), lateJob("late"))[0]
	if err := s.Run(testContext(t), &bagToy{toy: newToy(t, s.job)}, 2, nil); err != nil {
		t.Fatal(err)
	}
	// fewer pieces than the lookup has, so that their numbers within each cannot tell them apart
	want, _ := readAll(t, s, 0, 1)
	poll(t, "answers of every kind", func() bool {
		count := late.kinds(t)
		for _, kind := range []string{fabric.KindRows, "pooled", "scanned", fabric.KindMean, fabric.KindModule,
			fabric.KindAck} {
			if count[kind] == 0 {
				return false
			}
		}
		return count[fabric.KindRows] > count["scanned"]
	})
	for name, open := range openRequests(t, s) {
		t.Run(name, func(t *testing.T) {
			still := open()
			late.again(s)
			late.again(s)
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}
			if !still() {
				t.Error("a late answer to something else was taken")
			}
		})
	}
	if looked, scanned := readAll(t, s, 0, 1, lateTable); !sameBits(looked, want) || !sameBits(scanned, want) {
		t.Error("other rows after the late answers")
	}
}

// openRequests are what a session may wait for. Each opens a request that is not sent, and gives whether nothing has
// answered it.
func openRequests(t *testing.T, s *Session) map[string]func() (still func() bool) {
	lookup := func(table int, keys ...uint64) func() func() bool {
		return func() func() bool {
			l := s.reader.eval.lookups
			rows := make([]float32, len(keys)*s.job.Tables[table].Dim)
			s.reader.eval.forget()
			s.reader.eval.add([]Query{{Table: schema.Table(table), Keys: keys, Rows: rows}}, new(place))
			if err := l.build(s.head(s.Version())); err != nil {
				t.Fatal(err)
			}
			l.begin(0, true)
			asked := s.exchange.x.Open(rowsAsked)
			return func() bool { return s.exchange.x.Open(rowsAsked) == asked && asked > 0 }
		}
	}
	scanOf := func(table schema.Table, p schema.Partition) func() func() bool {
		return func() func() bool {
			scan, err := newScan(s.head(s.Version()), table, &s.job.Tables[table], s.job.ChunkBytes/4)
			if err != nil {
				t.Fatal(err)
			}
			scan.section.Dim = uint32(s.reader.piecesOf(table, p)[0].count)
			number := s.exchange.number(1)
			scan.ask(0, p, 0, number)
			s.exchange.ask(rowsScanned, scan, number, []int{0}, 0, true)
			return func() bool { defer s.exchange.close(rowsScanned); return s.exchange.x.Open(rowsScanned) == 1 }
		}
	}
	return map[string]func() func() bool{
		"lookup": lookup(lateTable, 1, 2, 3), "lookup of pooled rows": lookup(1, 3, 30, 7),
		"scan": scanOf(lateTable, 0), "scan of columns": scanOf(1, 0), "scan of the first lookup's table": scanOf(0, 0),
		"module": func() func() bool {
			m := s.modules.all[1]
			m.number = s.exchange.number(1)
			m.answer.weights.Store(false)
			m.answer.begun = false
			s.exchange.ask(m.asker(), m, m.number, []int{s.place.ShardOfModule(m.index)}, 0, true)
			return func() bool {
				defer s.exchange.close(m.asker())
				return s.exchange.x.Open(m.asker()) == 1 && !m.answer.begun
			}
		},
	}
}

// emptyPiece is an answer to request number i+1, for partition i of table 0, that has no rows and says that none
// follow.
func emptyPiece(t *testing.T, s *Session, i int) fabric.Message {
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindRows, Sections: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := s.head(s.Version())
	h.Bucket, h.Sequence = schema.Bucket(i), schema.Sequence(i+1)
	f.SetHead(h)
	f.SetSection(0, schema.Section{Table: 0, Dim: toyWordDim})
	from := schema.ShardMember(s.place.OwnerOfPartition(0, schema.Partition(i)))
	return fabric.NewMessage(fabric.At(string(s.job.Name), string(from), fabric.KindRows,
		"t0").WithBatch(uint64(s.Version())).String(), f.Seal())
}

// A table of which rows are missing is an error, also where each answer by itself could be right.
func TestTableMissesRows(t *testing.T) {
	server := startTCP(t, 2)
	p := startProxy(t, server.URL())
	c := testConfig(t, server)
	c.Server = p.url()
	s := joinAll(t, c, toyJob("missing", 1, 1, schema.ApplyUpdate))[0]
	p.cut(true) // the shards' own answers do not come
	defer p.cut(false)
	var wrong answers
	for i := range s.job.Tables[0].Partitions {
		wrong.all = append(wrong.all, emptyPiece(t, s, i))
	}
	over := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				wrong.again(s)
			}
		}
	})
	err := s.Table(testContext(t), 0, func(schema.Partition, []uint64, []float32) error { return nil })
	close(over)
	all.Wait()
	if err == nil || !strings.Contains(err.Error(), "0 rows came of its 97") {
		t.Errorf("a scan without rows: %v", err)
	}
}

// Answers that no correct shard gives to a request for at most 3 rows of partition 2, from key 5 on.
func TestScanRefuses(t *testing.T) {
	spec := schema.TableSpec{Name: "t", Rows: 100, Dim: 2, Partitions: 4}
	var of [4][]uint64
	for key := range spec.Rows {
		p := schema.PartitionOf(key, spec.Partitions)
		of[p] = append(of[p], key)
	}
	mine, other := of[2], of[1]
	head := schema.Head{Job: 1, Batch: 5, Lanes: 1}
	answer := schema.Head{Job: 1, Batch: 5, Bucket: 2, Sequence: 9}
	elsewhere, old := answer, answer
	elsewhere.Bucket, old.Batch = 1, 4
	for _, c := range []struct {
		what  string
		head  schema.Head
		keys  []uint64
		wrong string
	}{
		{"right", answer, mine[4:6], ""},
		{"nothing left", answer, nil, ""},
		{"other partition's keys", answer, other[4:6], "want keys of that partition"},
		{"keys before the first", answer, mine[3:5], "from " + strconv.FormatUint(mine[4], 10)},
		{"keys beyond the table", answer, []uint64{mine[4], 1 << 40}, "want keys of that partition"},
		{"more than asked for", answer, mine[4:8], "at most 3 rows"},
		{"another partition", elsewhere, mine[4:6], "partition 2"},
		{"another version", old, mine[4:6], "version 5"},
	} {
		scan, err := newScan(head, 0, &spec, 6)
		if err != nil {
			t.Fatal(err)
		}
		scan.ask(0, 2, mine[4], 9)
		kept, err := scan.take(0, rowsOf(t, c.head, 0, c.keys...))
		if kept != (c.wrong == "") || (err == nil) != (c.wrong == "") ||
			err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: kept %v, %v: want %q", c.what, kept, err, c.wrong)
		}
	}
}
