package schema

import "reflect"

// sizes tells how many bytes a value of one type refers to, beside its own. Like bounds they are made once from the
// types.
type sizes func(v reflect.Value) int

var telemetryType = reflect.TypeFor[Telemetry]()

// telemetrySizes are those of Telemetry.
var telemetrySizes = sizesOf(telemetryType)

// mapEntryBytes is what an entry of a map takes beside key and value, about.
const mapEntryBytes = 16

// MemoryBytes is what the report takes in memory, about: a report that was decoded may take a dozen times its frame.
func (p *Telemetry) MemoryBytes() int {
	if p == nil {
		return 0
	}
	return int(telemetryType.Size()) + telemetrySizes(reflect.ValueOf(p).Elem())
}

// sizesOf is nil where a value refers to nothing.
func sizesOf(t reflect.Type) sizes {
	switch t.Kind() {
	case reflect.String:
		return func(v reflect.Value) int { return v.Len() }
	case reflect.Pointer:
		return sizesOfPointer(t)
	case reflect.Slice:
		return sizesOfSlice(t)
	case reflect.Map:
		return sizesOfMap(t)
	case reflect.Struct:
		return sizesOfStruct(t)
	}
	return nil
}

func sizesOfPointer(t reflect.Type) sizes {
	own, to := int(t.Elem().Size()), sizesOf(t.Elem())
	return func(v reflect.Value) int {
		switch {
		case v.IsNil():
			return 0
		case to == nil:
			return own
		}
		return own + to(v.Elem())
	}
}

func sizesOfSlice(t reflect.Type) sizes {
	each, of := int(t.Elem().Size()), sizesOf(t.Elem())
	return func(v reflect.Value) int {
		n := v.Cap() * each
		for i := 0; of != nil && i < v.Len(); i++ {
			n += of(v.Index(i))
		}
		return n
	}
}

func sizesOfMap(t reflect.Type) sizes {
	each := int(t.Key().Size()+t.Elem().Size()) + mapEntryBytes
	return func(v reflect.Value) int {
		n := v.Len() * each
		for at := v.MapRange(); at.Next(); {
			n += at.Key().Len() // of names, to numbers
		}
		return n
	}
}

func sizesOfStruct(t reflect.Type) sizes {
	type field struct {
		index int
		size  sizes
	}
	var fields []field
	for i := range t.NumField() {
		if size := sizesOf(t.Field(i).Type); size != nil {
			fields = append(fields, field{i, size})
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return func(v reflect.Value) (n int) {
		for _, f := range fields {
			n += f.size(v.Field(f.index))
		}
		return n
	}
}
