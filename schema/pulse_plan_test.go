package schema

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// The plain form of a small pulse, letter by letter, both ways.
func TestPlanLiteral(t *testing.T) {
	t.Parallel()
	p := &Pulse{Serial: 7, NowMS: -1, EveryMS: 1000, Host: `a<b`, Trainer: &TrainerPulse{RunID: math.MaxUint64, Doing: DoingKeys,
		Loss: TrainLoss{Sum: 1e21, Last: Real(math.Inf(-1))}, GradientNorm: real(0.25), Links: []LinkPulse{{Shard: 3}}}}
	const head = `{"serial":7,"started_ms":0,"now_ms":-1,"every_ms":1000,"host":"a\u003cb","pid":0,"trainer":{"run_id":"18446744073709551615","batch":0,` +
		`"batches":0,"planned":0,"samples":0,"behind":0,"doing":"keys","doing_ms":0,"loss":{"sum":1e+21,"samples":0,"last":"-Inf","bad":0},"gradient_norm":0.25,`
	b, err := pulsePlan.write(nil, reflect.ValueOf(p).Elem())
	check(t, err)
	if !strings.HasPrefix(string(b), head) {
		t.Fatalf("written as\n%s, want it to begin with\n%s", b, head)
	}
	if _, quick := readQuickly(b); quick {
		t.Error("an escaped text was read quickly")
	}
	plain := bytes.Replace(b, []byte(`\u003c`), []byte("<"), 1)
	got, quick := readQuickly(plain)
	if !quick || !reflect.DeepEqual(got, p) {
		t.Errorf("read as %+v, %v, want %+v", got, quick, p)
	}
}

func readQuickly(b []byte) (*Pulse, bool) {
	p, s := new(Pulse), scanner{b: b}
	return p, pulsePlan.read(&s, reflect.ValueOf(p).Elem()) && s.at == len(b)
}

// agreeOnPulse holds the quick reader to encoding/json: what the one takes the other takes for the same.
func agreeOnPulse(t *testing.T, b []byte) (quick bool) {
	t.Helper()
	got, quick := readQuickly(b)
	if !quick {
		return false
	}
	want := new(Pulse)
	if err := decodeNewerJSON(b, want); err != nil {
		t.Fatalf("%s\nwas read quickly, and is refused: %v", b, err)
	}
	a, err := json.Marshal(got)
	check(t, err)
	c, err := json.Marshal(want)
	check(t, err)
	if !bytes.Equal(a, c) || !bytes.Contains(c, []byte(`"NaN"`)) && !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\nwas read as\n%s, want\n%s", b, a, c)
	}
	return true
}

// What all pulses can hold is written as encoding/json writes it, to the byte, and read without its help unless a text needs it.
func TestPlanAgrees(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		p := new(Pulse)
		odd := i%4 == 0
		fillRandomly(r, reflect.ValueOf(p).Elem(), odd)
		want, err := json.Marshal(p)
		check(t, err)
		got, err := pulsePlan.write(nil, reflect.ValueOf(p).Elem())
		check(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("written as\n%s, want\n%s", got, want)
		}
		if quick := agreeOnPulse(t, got); !quick && !odd {
			t.Fatalf("%s\nwas not read quickly", got)
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
		all := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -r.Float64(), r.NormFloat64() * 1e-30, 1e300, float64(r.IntN(1000)), math.Copysign(0, -1)}
		v.SetFloat(all[r.IntN(len(all))])
	default:
		panic("a pulse with a " + v.Type().String())
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

// The quick reader is no laxer than encoding/json: each of these is left to it, though all but the changed letters are plain.
func TestPlanLeavesToJSON(t *testing.T) {
	t.Parallel()
	b, err := pulsePlan.write(nil, reflect.ValueOf(testTrainerPulse()).Elem())
	check(t, err)
	if !agreeOnPulse(t, b) {
		t.Fatal("the sample is not read quickly")
	}
	for _, change := range [][2]string{
		{`{"serial":12`, `{ "serial":12`}, {`"serial":12`, `"serial":012`}, {`"serial":12`, `"serial":-12`}, {`"serial":12`, `"serial":12.0`}, {`"serial":12`, `"serial":1e1`},
		{`"serial":12`, `"Serial":12`}, {`"serial":12`, `"serial":18446744073709551616`}, {`"serial":12,`, `"serial":12,"serial":12,`}, {`"serial":12,`, ``},
		{`"serial":12,`, `"later":1,"serial":12,`}, {`"serial":12,`, `"serial":null,`}, {`"serial":12,`, `"serial":"12",`}, {`"serial":12,`, `"serial":,`}, {`"serial":12,`, `"serial":12,,`},
		{`"host":"box"`, `"host":"b\u006fx"`}, {`"host":"box"`, "\"host\":\"b\nx\""}, {`"host":"box"`, "\"host\":\"b\xffx\""}, {`"host":"box"`, `"host":"box`},
		{`"sum":288.5`, `"sum":288.`}, {`"sum":288.5`, `"sum":.5`}, {`"sum":288.5`, `"sum":0288.5`}, {`"sum":288.5`, `"sum":288.5e`}, {`"sum":288.5`, `"sum":1e999`},
		{`"sum":288.5`, `"sum":"nan"`}, {`"sum":288.5`, `"sum":-`}, {`"sum":288.5`, `"sum":NaN`}, {`"sum":288.5`, `"sum":0x1p4`}, {`"sum":288.5`, `"sum":2_8`},
		{`"connected":true`, `"connected":1`}, {`"connected":true`, `"connected":True`}, {`"63":1`, `"63":1,"63":1`}, {`"63":1`, `"63":1,"62":1`}, {`"63":1`, `"63":-1`}, {`"63":1`, `"63":1,`},
		{`["hw_slowdown"]`, `["hw_slowdown",]`}, {`["hw_slowdown"]`, `["hw_slowdown"`}, {`["hw_slowdown"]`, `[,"hw_slowdown"]`}, {`"digest":3808858755`, `"digest":4294967296`},
	} {
		changed := strings.Replace(string(b), change[0], change[1], 1)
		if changed == string(b) {
			t.Fatalf("the sample has no %s", change[0])
		}
		if agreeOnPulse(t, []byte(changed)) {
			t.Errorf("with %s it is read quickly", change[1])
		}
	}
	for n := range len(b) {
		if agreeOnPulse(t, b[:n]) {
			t.Errorf("%d bytes of it are read quickly", n)
		}
	}
	if agreeOnPulse(t, append(b, '}')) {
		t.Error("with something after it it is read quickly")
	}
}

// FuzzPlan: what is read quickly is what encoding/json reads.
func FuzzPlan(f *testing.F) {
	for _, p := range []*Pulse{testTrainerPulse(), testServerPulse()} {
		b, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { agreeOnPulse(t, b) })
}
