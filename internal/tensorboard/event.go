package tensorboard

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"gradbus/schema/crc32c"
)

// fileVersion is the first event of every file.
const fileVersion = "brain.Event:2"

// Numbers of fields, as the .proto files of TensorBoard have them.
const (
	eventWallTime = 1 // double, seconds since 1970
	eventStep     = 2 // int64
	eventVersion  = 3 // string
	eventSummary  = 5
	eventSource   = 10
	sourceWriter  = 1 // string

	summaryValue = 1

	valueTag      = 1 // string
	valueSimple   = 2 // float
	valueTensor   = 8
	valueMetadata = 9

	metadataPlugin = 1
	metadataClass  = 4 // enum DataClass
	pluginName     = 1 // string
	pluginContent  = 2 // bytes

	tensorType   = 1 // enum DataType
	tensorShape  = 2
	tensorFloats = 5 // packed
	tensorString = 8 // bytes
	shapeDim     = 2
	dimSize      = 1 // int64

	hparamsStart = 3
	hparamsEnd   = 4
	startParams  = 1 // map from name to google.protobuf.Value
	startTime    = 5 // double
	endStatus    = 1 // enum Status
	endTime      = 2 // double

	structNumber = 2 // of google.protobuf.Value
	structString = 3
	structBool   = 4
)

// Values of enumerations.
const (
	classTensor   = 2
	typeFloat     = 1
	typeString    = 7
	statusSuccess = 1
	statusFailure = 2
)

// appendRecord frames data as TensorFlow's record files do: its length as uint64, the masked sum of these eight bytes,
// data, the masked sum of data; all little-endian.
func appendRecord(to, data []byte) []byte {
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(len(data)))
	to = append(to, head[:]...)
	to = binary.LittleEndian.AppendUint32(to, masked(head[:]))
	to = append(to, data...)
	return binary.LittleEndian.AppendUint32(to, masked(data))
}

// masked is the CRC-32C of data, rotated right by 15 bits and moved, so that sums of data that holds sums differ.
func masked(data []byte) uint32 {
	sum := crc32c.Update(0, data)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// event begins an Event.
func event(wall float64, step uint64) []byte {
	b := appendDouble(nil, eventWallTime, wall)
	if step != 0 {
		b = appendVarint(b, eventStep, step)
	}
	return b
}

// versionEvent is the first of a file.
func versionEvent(wall float64) []byte {
	b := appendText(event(wall, 0), eventVersion, fileVersion)
	return appendBytes(b, eventSource, appendText(nil, sourceWriter, "gradbus"))
}

// Scalar is one value of a curve.
type Scalar struct {
	Tag   string
	Value float64 // is written as float32; may be NaN or infinite
}

// scalarsEvent is a point of several curves at one step.
func scalarsEvent(wall float64, step uint64, scalars []Scalar) []byte {
	var summary []byte
	for _, s := range scalars {
		v := appendText(nil, valueTag, s.Tag)
		v = protowire.AppendTag(v, valueSimple, protowire.Fixed32Type)
		v = protowire.AppendFixed32(v, math.Float32bits(float32(s.Value)))
		summary = appendBytes(summary, summaryValue, v)
	}
	return appendBytes(event(wall, step), eventSummary, summary)
}

// textEvent is a text, which is shown as Markdown.
func textEvent(wall float64, step uint64, tag, text string) []byte {
	tensor := appendVarint(nil, tensorType, typeString)
	tensor = appendBytes(tensor, tensorShape, nil) // of no dimensions: one value
	tensor = appendText(tensor, tensorString, text)
	return tensorEvent(wall, step, tag, appendText(nil, pluginName, "text"), tensor)
}

// tensorEvent is one value for a plugin.
func tensorEvent(wall float64, step uint64, tag string, plugin, tensor []byte) []byte {
	metadata := appendVarint(appendBytes(nil, metadataPlugin, plugin), metadataClass, classTensor)
	value := appendText(nil, valueTag, tag)
	value = appendBytes(value, valueMetadata, metadata)
	value = appendBytes(value, valueTensor, tensor)
	return appendBytes(event(wall, step), eventSummary, appendBytes(nil, summaryValue, value))
}

// hparamsEvent is data of the plugin that compares runs by their settings.
func hparamsEvent(wall float64, tag string, data []byte) []byte {
	plugin := appendText(nil, pluginName, "hparams")
	plugin = appendBytes(plugin, pluginContent, data)
	tensor := appendVarint(nil, tensorType, typeFloat) // the plugin wants one, whatever is in it
	tensor = appendBytes(tensor, tensorShape, appendBytes(nil, shapeDim, appendVarint(nil, dimSize, 1)))
	tensor = appendBytes(tensor, tensorFloats, make([]byte, 4))
	return tensorEvent(wall, 0, tag, plugin, tensor)
}

// startEvent names the settings of a run: strings, booleans and numbers.
func startEvent(wall float64, settings map[string]any) []byte {
	var start []byte
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		var value []byte
		switch x := settings[name].(type) {
		case string:
			value = appendText(nil, structString, x)
		case bool:
			value = appendVarint(nil, structBool, protowire.EncodeBool(x))
		case float64:
			value = appendDouble(nil, structNumber, x)
		default:
			continue // nothing else has a form there
		}
		start = appendBytes(start, startParams, appendBytes(appendText(nil, 1, name), 2, value))
	}
	start = appendDouble(start, startTime, wall)
	return hparamsEvent(wall, "_hparams_/session_start_info", appendBytes(nil, hparamsStart, start))
}

// endEvent says how a run ended.
func endEvent(wall float64, status uint64) []byte {
	end := appendDouble(appendVarint(nil, endStatus, status), endTime, wall)
	return hparamsEvent(wall, "_hparams_/session_end_info", appendBytes(nil, hparamsEnd, end))
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

func appendBytes(b []byte, field protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), data)
}

func appendVarint(b []byte, field protowire.Number, x uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), x)
}

func appendDouble(b []byte, field protowire.Number, x float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), math.Float64bits(x))
}
