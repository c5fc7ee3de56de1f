package schema

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// A small report is written so, letter by letter, and read as it was.
func TestReportLiteral(t *testing.T) {
	t.Parallel()
	p := &Telemetry{Serial: 7, NowMS: 1, EveryMS: 1000, Host: `a<b`,
		Trainer: &TrainerReport{RunID: math.MaxUint64, Doing: DoingKeys,
			Loss: TrainLoss{Sum: 1e21, Last: Real(math.Inf(-1))}, GradientNorm: real(0.25), Links: []LinkReport{{Shard: 3}}}}
	const head = `{"serial":7,"started_ms":0,"now_ms":1,"every_ms":1000,"host":"a\u003cb","pid":0,"trainer":{"run_id":"18446744073709551615","batch":0,` +
		`"batches":0,"planned":0,"samples":0,"behind":0,"doing":"keys","doing_ms":0,"loss":{"sum":1e+21,"samples":0,"last":"-Inf","bad":0},"gradient_norm":0.25,`
	frame, err := encodeReport(Head{}, p)
	check(t, err)
	v, err := Verify(frame, Limits{})
	check(t, err)
	if !strings.HasPrefix(string(v.Body()), head) {
		t.Fatalf("written as\n%s, want it to begin with\n%s", v.Body(), head)
	}
	got, err := DecodeTelemetry(&v)
	check(t, err)
	if p.FrameBytes = len(frame); !reflect.DeepEqual(got, p) {
		t.Errorf("read as %+v, want %+v", got, p)
	}
}

// agreeOnReport holds the reader of reports to encoding/json: both take a text for the same, or both refuse it.
func agreeOnReport(t *testing.T, b []byte) (taken bool) {
	t.Helper()
	got, want := new(Telemetry), new(Telemetry)
	err := decodeNewerJSON(b, got)
	if len(b) > bodyBytesMax || !utf8.Valid(b) || checkNames(b) != nil {
		if err == nil {
			t.Fatalf("%s\nis read, and should not be looked at", b)
		}
		return false
	}
	if want := json.Unmarshal(b, want); (err == nil) != (want == nil) {
		t.Fatalf("%s\nis read with the error %v, by encoding/json with %v", b, err, want)
	}
	if err != nil {
		return false
	}
	first, err := json.Marshal(got)
	check(t, err)
	second, err := json.Marshal(want)
	check(t, err)
	if !bytes.Equal(first, second) || !bytes.Contains(second, []byte(`"NaN"`)) && !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\nis read as\n%s, want\n%s", b, first, second)
	}
	return true
}

// What all reports can hold is read as encoding/json reads it, and says the same when it is written again.
func TestReportReaderAgrees(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	rounds := 2000
	if testing.Short() {
		rounds = 300
	}
	for i := range rounds {
		p := new(Telemetry)
		fillRandomly(r, reflect.ValueOf(p).Elem(), i%4 == 0)
		b, err := json.Marshal(p)
		check(t, err)
		if !agreeOnReport(t, b) {
			t.Fatalf("%s\nis refused", b)
		}
		got := new(Telemetry)
		check(t, decodeNewerJSON(b, got))
		again, err := json.Marshal(got)
		check(t, err)
		if !bytes.Equal(again, b) {
			t.Fatalf("%s\nis read as\n%s", b, again)
		}
	}
}

// fillRandomly gives values to all fields, or leaves them out, and texts that need quoting where odd.
func fillRandomly(r *rand.Rand, v reflect.Value, odd bool) {
	if r.IntN(6) == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillRandomly(r, v.Field(i), odd)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillRandomly(r, v.Elem(), odd)
	case reflect.Slice:
		n := r.IntN(3)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fillRandomly(r, v.Index(i), odd)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(4) {
			n := reflect.New(v.Type().Elem()).Elem()
			fillRandomly(r, n, odd)
			v.SetMapIndex(reflect.ValueOf(randomText(r, false)).Convert(v.Type().Key()), n)
		}
	case reflect.String:
		v.SetString(randomText(r, odd))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(r.Uint64() >> r.IntN(64)))
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64() >> r.IntN(64) & (1<<(v.Type().Bits()-1)<<1 - 1))
	case reflect.Float64:
		all := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -r.Float64(), r.NormFloat64() * 1e-30, 1e300,
			float64(r.IntN(1000)), math.Copysign(0, -1)}
		v.SetFloat(all[r.IntN(len(all))])
	default:
		panic("a report with a " + v.Type().String())
	}
}

func randomText(r *rand.Rand, odd bool) string {
	letters := []rune("abcdefghijklmnopqrstuvwxyz0123456789 -_:/(),.")
	if odd {
		letters = append(letters, '"', '\\', '<', '&', '\n', 'é', '\u2028', 0x7f)
	}
	text := make([]rune, r.IntN(12))
	for i := range text {
		text[i] = letters[r.IntN(len(letters))]
	}
	return string(text)
}

// Near misses of a report: the reader is no laxer and no stricter than encoding/json.
func TestReportReaderAgreesOnNearMisses(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(testTrainerReport())
	check(t, err)
	if !agreeOnReport(t, b) {
		t.Fatal("the sample is refused")
	}
	for _, change := range [][2]string{
		{`{"serial":12`, `{ "serial":12`}, {`"serial":12`, `"serial":012`}, {`"serial":12`, `"serial":-12`},
		{`"serial":12`, `"serial":12.0`}, {`"serial":12`, `"serial":1e1`},
		{`"serial":12`, `"Serial":12`}, {`"serial":12`, `"serial":18446744073709551616`},
		{`"serial":12,`, `"serial":12,"serial":12,`}, {`"serial":12,`, ``},
		{`"serial":12,`, `"later":1,"serial":12,`}, {`"serial":12,`, `"serial":null,`}, {`"serial":12,`, `"serial":"12",`},
		{`"serial":12,`, `"serial":,`}, {`"serial":12,`, `"serial":12,,`},
		{`"host":"box"`, `"host":"b\u006fx"`}, {`"host":"box"`, "\"host\":\"b\nx\""}, {`"host":"box"`, "\"host\":\"b\xffx\""},
		{`"host":"box"`, `"host":"box`},
		{`"sum":288.5`, `"sum":288.`}, {`"sum":288.5`, `"sum":.5`}, {`"sum":288.5`, `"sum":0288.5`},
		{`"sum":288.5`, `"sum":288.5e`}, {`"sum":288.5`, `"sum":1e999`},
		{`"sum":288.5`, `"sum":"nan"`}, {`"sum":288.5`, `"sum":-`}, {`"sum":288.5`, `"sum":NaN`},
		{`"sum":288.5`, `"sum":0x1p4`}, {`"sum":288.5`, `"sum":2_8`},
		{`"connected":true`, `"connected":1`}, {`"connected":true`, `"connected":True`}, {`"63":1`, `"63":1,"63":1`},
		{`"63":1`, `"63":1,"62":1`}, {`"63":1`, `"63":-1`}, {`"63":1`, `"A3":1`}, {`"63":1`, `"63":1,`},
		{`["hw_slowdown"]`, `["hw_slowdown",]`}, {`["hw_slowdown"]`, `["hw_slowdown"`},
		{`["hw_slowdown"]`, `[,"hw_slowdown"]`}, {`"digest":3808858755`, `"digest":4294967296`},
	} {
		changed := strings.Replace(string(b), change[0], change[1], 1)
		if changed == string(b) {
			t.Fatalf("the sample has no %s", change[0])
		}
		agreeOnReport(t, []byte(changed))
	}
	for n := range len(b) {
		if agreeOnReport(t, b[:n]) {
			t.Errorf("%d bytes of it are taken", n)
		}
	}
	if agreeOnReport(t, append(b, '}')) {
		t.Error("with something after it it is taken")
	}
}

// FuzzReportReader: reports are read as encoding/json reads them.
func FuzzReportReader(f *testing.F) {
	for _, p := range []*Telemetry{testTrainerReport(), testServerReport()} {
		b, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { agreeOnReport(t, b) })
}
