package schema

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// EncodePulse gives the sealed frame of a pulse. h is that of the sender's frames; of a ps, which is in no run, it is empty. An
// error says which part of the pulse no reader would take, or that it is larger than BodyBytesMax.
//
//	frame, err := EncodePulse(Head{Job: run, Generation: 1, Batch: 7}, &Pulse{Serial: 1, EveryMS: 1000, Trainer: &TrainerPulse{...}})
func EncodePulse(h Head, p *Pulse) ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("encode pulse: %w", err)
	}
	return encodeBody(KindPulse, h, p)
}

// DecodePulse reads the body of a verified pulse frame: every number, text, name and list that is known within its bounds, and whatever
// is not known passed over, since a newer member may say more and is not to vanish from sight for it. Who sent it is not in it, and is
// the subject's sender alone; CheckFrom compares the two.
func DecodePulse(v *View) (*Pulse, error) {
	if v.head.Kind != KindPulse {
		return nil, Refuse(ReasonUnknownKind, "%v frame: want a pulse", v.head.Kind)
	}
	p := new(Pulse)
	err := decodeNewerJSON(v.Body(), p)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return nil, Refuse(ReasonMalformed, "pulse: %v", err)
	}
	return p, nil
}

// CheckFrom says whether a member may have sent the pulse under a job's name: a trainer its own, and a ps the one of its id, under
// PulseJob.
func (p *Pulse) CheckFrom(job JobName, from Member) error {
	if p.Trainer != nil {
		if !isTrainer(from) {
			return Refuse(ReasonWrongSender, "pulse of a trainer from %s of job %s", from, job)
		}
		return nil
	}
	if job != PulseJob || from != ServerMember(p.Server.ID) {
		return Refuse(ReasonWrongSender, "pulse of ps %s from %s of job %s: want it from %s of %s", p.Server.ID, from, job, ServerMember(p.Server.ID), PulseJob)
	}
	return nil
}

// isTrainer reports whether a member's name is that of a trainer.
func isTrainer(m Member) bool {
	digits, found := strings.CutPrefix(string(m), "t")
	return found && digits != "" && len(digits) <= 4 && strings.Trim(digits, "0123456789") == ""
}

// check checks what a pulse must hold by itself. It is as strict for who writes it as for who reads it.
func (p *Pulse) check() error {
	if (p.Trainer == nil) == (p.Server == nil) {
		return errors.New("of a trainer and of a ps: want exactly one")
	}
	if p.EveryMS < 1 || p.EveryMS > PulseEveryMax {
		return fmt.Errorf("every_ms %d: want 1 to %d", p.EveryMS, PulseEveryMax)
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
	return pulseBounds("", reflect.ValueOf(p).Elem())
}

var doings = [...]Doing{DoingJoining, DoingKeys, DoingLookup, DoingCompute, DoingSend, DoingResult, DoingOther}

// Known says that it is one of those there are, as every pulse that was decoded has.
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

// boundOf is how many elements a list in a pulse may have, by what they are.
func boundOf(element reflect.Type) int {
	switch element {
	case reflect.TypeFor[LinkPulse]():
		return LinksMax
	case reflect.TypeFor[ReplicaDigest]():
		return ReplicasMax
	case reflect.TypeFor[GPUPulse]():
		return PulseGPUsMax
	case reflect.TypeFor[DiskPulse]():
		return PulseDisksMax
	case reflect.TypeFor[JobPulse]():
		return PulseJobsMax
	case reflect.TypeFor[RefusedPulse]():
		return PulseRefusedMax
	case reflect.TypeFor[ShardPulse]():
		return PulseShardsMax
	}
	return PulseNamesMax
}

// checkWord checks a text, or what names something.
func checkWord(at string, v reflect.Value) error {
	text := v.String()
	switch v.Type() {
	case reflect.TypeFor[JobName](), reflect.TypeFor[Member]():
		return CheckName(at, text)
	case reflect.TypeFor[GPUState]():
		if !GPUState(text).known() {
			return fmt.Errorf("%s %q: want one of %v", at, Clip(text), gpuStates)
		}
	}
	switch {
	case at == "phase" && text != PhaseGathering && text != PhaseRunning && text != PhaseEnded:
		return fmt.Errorf("%s %q: want %s, %s or %s", at, Clip(text), PhaseGathering, PhaseRunning, PhaseEnded)
	case (at == "code" || at == "throttled") && text != "" && !labelForm.MatchString(text):
		return fmt.Errorf("%s %q: want 1 to 63 of a-z, 0-9, _ and -", at, Clip(text))
	case len(text) > TextBytesMax:
		return fmt.Errorf("%s of %d bytes: want at most %d", at, len(text), TextBytesMax)
	}
	return nil
}

// checkCounts checks a map of counts, whose names become labels of metrics.
func checkCounts(at string, v reflect.Value) error {
	if v.Len() > PulseCountsMax {
		return fmt.Errorf("%s of %d: want at most %d", at, v.Len(), PulseCountsMax)
	}
	for _, key := range v.MapKeys() {
		if !labelForm.MatchString(key.String()) {
			return fmt.Errorf("%s %q: want 1 to 63 of a-z, 0-9, _ and -", at, Clip(key.String()))
		}
	}
	return nil
}
