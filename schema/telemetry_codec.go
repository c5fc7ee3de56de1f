package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// EncodeTelemetry returns a report as JSON, for a heartbeat. It fails if a reader would refuse the report, or if it is
// larger than bodyBytesMax.
//
//	report, err := EncodeTelemetry(&Telemetry{Serial: 1, EveryMS: 1000, Trainer: &TrainerReport{...}})
func EncodeTelemetry(p *Telemetry) ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	report, err := json.Marshal(p)
	if err == nil && len(report) > bodyBytesMax {
		err = fmt.Errorf("%d bytes of JSON: want at most %d", len(report), bodyBytesMax)
	}
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return report, nil
}

// EncodeHeartbeat returns the sealed frame of a heartbeat. h is the head of the sender's frames, empty for a ps, which
// is in no run. report is the result of EncodeTelemetry, or nil if none is due. Without a report there is no error.
//
//	frame, err := EncodeHeartbeat(Head{Job: run, Generation: 1, Batch: 7}, report)
func EncodeHeartbeat(h Head, report []byte) ([]byte, error) {
	return bodyFrame(KindHeartbeat, h, report)
}

// DecodeTelemetry reads the report of a verified heartbeat that has a body. Known numbers, texts, names and lists are
// within their bounds; unknown names are skipped, so that a newer member stays visible. The sender is not in the report
// but in the subject; CheckFrom compares the two.
func DecodeTelemetry(v *View) (*Telemetry, error) {
	if v.head.Kind != KindHeartbeat {
		return nil, Refuse(ReasonUnknownKind, "%v frame: want a heartbeat", v.head.Kind)
	}
	p := &Telemetry{FrameBytes: len(v.Bytes())}
	err := decodeNewerJSON(v.Body(), p)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return nil, Refuse(ReasonMalformed, "report: %v", err)
	}
	return p, nil
}

// CheckFrom returns an error unless a member may send the report under a job's name: a trainer its own, and a ps the
// one with its id, under TelemetryJob.
func (p *Telemetry) CheckFrom(job JobName, from Member) error {
	if p.Trainer != nil {
		if !isTrainer(from) {
			return Refuse(ReasonWrongSender, "report of a trainer from %s of job %s", from, job)
		}
		return nil
	}
	if job != TelemetryJob || from != ServerMember(p.Server.ID) {
		return Refuse(ReasonWrongSender, "report of ps %s from %s of job %s: want it from %s of %s", p.Server.ID, from, job,
			ServerMember(p.Server.ID), TelemetryJob)
	}
	return nil
}

// isTrainer reports whether a member's name is that of a trainer.
func isTrainer(m Member) bool {
	digits, found := strings.CutPrefix(string(m), "t")
	return found && digits != "" && len(digits) <= 4 && strings.Trim(digits, "0123456789") == ""
}

// check checks a report by itself, with the same rules for writers and readers.
func (p *Telemetry) check() error {
	if (p.Trainer == nil) == (p.Server == nil) {
		return errors.New("of a trainer and of a ps: want exactly one")
	}
	if p.EveryMS < 1 || p.EveryMS > TelemetryEveryMax {
		return fmt.Errorf("every_ms %d: want 1 to %d", p.EveryMS, TelemetryEveryMax)
	}
	if t := p.Trainer; t != nil {
		if t.AwaitedShard != nil && *t.AwaitedShard >= ShardsMax {
			return fmt.Errorf("awaited_shard %d: want less than %d", *t.AwaitedShard, ShardsMax)
		}
		if !t.Doing.Known() {
			return fmt.Errorf("doing %q: want one of %v", Clip(string(t.Doing)), doings)
		}
	}
	if s := p.Server; s != nil {
		if err := CheckName("id", s.ID); err != nil || len(s.ID) > ServerIDBytesMax {
			return fmt.Errorf("id %q: want 1 to %d of a-z, 0-9 and -", Clip(s.ID), ServerIDBytesMax)
		}
	}
	return telemetryBounds("", reflect.ValueOf(p).Elem())
}

var doings = [...]Doing{DoingJoining, DoingKeys, DoingLookup, DoingCompute, DoingSend, DoingResult, DoingOther}

// Known reports whether d is a known value, as in every decoded report.
func (d Doing) Known() bool {
	for _, known := range doings {
		if d == known {
			return true
		}
	}
	return false
}

var gpuStates = [...]GPUState{GPUAbsent, GPUUnknown, GPUHealthy, GPUDegraded, GPUUnhealthy}

func (s GPUState) known() bool {
	for _, known := range gpuStates {
		if s == known {
			return true
		}
	}
	return false
}

// boundOf returns the largest number of elements of a list in a report, by their type.
func boundOf(element reflect.Type) int {
	switch element {
	case reflect.TypeFor[LinkReport]():
		return LinksMax
	case reflect.TypeFor[ReplicaDigest]():
		return ReplicasMax
	case reflect.TypeFor[GPUReport]():
		return telemetryGPUsMax
	case reflect.TypeFor[DiskReport]():
		return TelemetryDisksMax
	case reflect.TypeFor[JobReport](), reflect.TypeFor[HeldReport]():
		return TelemetryJobsMax
	case reflect.TypeFor[KeptReport]():
		return TelemetryKeptMax
	case reflect.TypeFor[RefusedReport]():
		return TelemetryRefusedMax
	case reflect.TypeFor[ShardReport](), reflect.TypeFor[EndedShard]():
		return TelemetryShardsMax
	case reflect.TypeFor[BucketReport]():
		return TelemetryBucketsMax
	case reflect.TypeFor[RunID]():
		return TelemetryFollowsMax
	}
	return telemetryNamesMax
}

// failures are the names of texts that describe an error of one of many jobs.
var failures = [...]string{"failure", "off", "lost"}

// checkWord checks a text or name.
func checkWord(at string, v reflect.Value) error {
	text := v.String()
	switch v.Type() {
	case reflect.TypeFor[JobName](), reflect.TypeFor[Member]():
		return CheckName(at, text)
	case reflect.TypeFor[GPUState]():
		if !GPUState(text).known() {
			return fmt.Errorf("%s %q: want one of %v", at, Clip(text), gpuStates)
		}
	case reflect.TypeFor[ServerState]():
		if s := ServerState(text); s != "" && s != ServerDraining && s != ServerEnded {
			return fmt.Errorf("%s %q: want none, %s or %s", at, Clip(text), ServerDraining, ServerEnded)
		}
	case reflect.TypeFor[End]():
		return End(text).check()
	}
	switch {
	case at == "phase" && text != PhaseGathering && text != PhaseRunning && text != PhaseEnded:
		return fmt.Errorf("%s %q: want %s, %s or %s", at, Clip(text), PhaseGathering, PhaseRunning, PhaseEnded)
	case (at == "code" || at == "throttled") && text != "" && !labelForm.MatchString(text):
		return fmt.Errorf("%s %q: want 1 to 63 of a-z, 0-9, _ and -", at, Clip(text))
	case slices.Contains(failures[:], at) && len(text) > FailureBytesMax:
		return fmt.Errorf("%s of %d bytes: want at most %d", at, len(text), FailureBytesMax)
	case len(text) > TextBytesMax:
		return fmt.Errorf("%s of %d bytes: want at most %d", at, len(text), TextBytesMax)
	}
	return nil
}

// checkCounts checks a map of counts, whose keys become labels of metrics.
func checkCounts(at string, v reflect.Value) error {
	if v.Len() > telemetryCountsMax {
		return fmt.Errorf("%s of %d: want at most %d", at, v.Len(), telemetryCountsMax)
	}
	for _, key := range v.MapKeys() {
		if !labelForm.MatchString(key.String()) {
			return fmt.Errorf("%s %q: want 1 to 63 of a-z, 0-9, _ and -", at, Clip(key.String()))
		}
	}
	return nil
}
