package metrics

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// numbered fills every number of a value with one of its own, and remembers which field has which. Numbers are
// thousands, so that milliseconds as seconds are told apart from them.
type numbered struct {
	next  int
	field map[float64]string
}

func (n *numbered) fill(at string, v reflect.Value) {
	number := func() int {
		n.next++
		n.field[float64(1000*n.next)] = at
		n.field[float64(n.next)] = at + " / 1000"
		return 1000 * n.next
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(number()))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(number()))
	case reflect.Float64:
		v.SetFloat(float64(number()))
	case reflect.Pointer:
		if !v.IsNil() {
			n.fill(at, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			n.fill(at, v.Index(i))
		}
	case reflect.Map:
		for _, key := range slices.SortedFunc(maps.Keys(mapOf(v)), strings.Compare) {
			v.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(uint64(number())))
			n.field[float64(1000*n.next)] = at + "." + key
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			n.fill(strings.Trim(at+"."+name, "."), v.Field(i))
		}
	}
}

func mapOf(v reflect.Value) map[string]uint64 {
	m, _ := v.Interface().(map[string]uint64)
	return m
}

// Each figure is that of its field: testdata/figures.txt says of which. Whoever adds one reads there whether it is the
// right one.
func TestFigures(t *testing.T) {
	t.Parallel()
	c := everything(1, 1)
	n := &numbered{next: 10, field: map[float64]string{0: "0", 1: "1"}}
	server, report := c.own.Server, trainerReport(0, 1)
	j, m := server.Jobs[0], server.Jobs[0].Members[0]
	for r := schema.ReasonOK + 1; int(r) < schema.ReasonCount; r++ {
		server.Reasons[r.String()] = 0
	}
	n.fill("ps", reflect.ValueOf(server).Elem())
	n.fill("trainer", reflect.ValueOf(report.Trainer).Elem())
	s := status.Status{Jobs: c.status.Jobs}
	n.fill("shown.trainer", reflect.ValueOf(&s.Jobs[0].Trainers[0]).Elem())
	n.fill("shown.loss", reflect.ValueOf(s.Jobs[0].Loss))
	n.fill("shown.durability", reflect.ValueOf(s.Jobs[0].Durability))
	n.fill("shown.standby", reflect.ValueOf(s.Jobs[0].Replica))
	// What ties them together stays as it was.
	server.Jobs[0].RunID, server.Shards[0].Shard, report.Trainer.RunID, s.Jobs[0].RunID = j.RunID, 0, j.RunID,
		fmt.Sprint(uint64(j.RunID))
	server.Jobs[0].Members[0].Waited, server.Jobs[0].Members[0].Member = true, m.Member
	server.GPUs[0].Index, c.status = 0, &s
	e := c.exporter()
	c.heard(0, report)

	var b strings.Builder
	got := samples(t, e)
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if strings.HasPrefix(name, "gradbus_problem") || strings.HasPrefix(name, "gradbus_ops") ||
			strings.HasPrefix(name, "gradbus_build") {
			continue
		}
		field, known := n.field[got[name]]
		if !known {
			field = "computed"
		}
		fmt.Fprintf(&b, "%s %s\n", name, field)
	}
	golden(t, "testdata/figures.txt", b.String())
}
