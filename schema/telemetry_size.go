package schema

import "reflect"

// sizes returns the number of bytes that a value of one type refers to, in addition to its own. Like bounds they are
// built once from the types.
type sizes func(v reflect.Value) int

var telemetryType = reflect.TypeFor[Telemetry]()

// telemetrySizes returns the size of a Telemetry.
var telemetrySizes = sizesOf(telemetryType)

// mapEntryBytes is the approximate memory of a map entry in addition to key and value.
const mapEntryBytes = 16

// MemoryBytes returns the approximate memory of the report. A decoded report may take a dozen times its frame.
func (p *Telemetry) MemoryBytes() int {
	if p == nil {
		return 0
	}
	return int(telemetryType.Size()) + telemetrySizes(reflect.ValueOf(p).Elem())
}

// sizesOf builds the function of a type; nil if its values refer to nothing.
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
			n += at.Key().Len() // keys are names, values numbers
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
