package ps

import (
	"gradbus/fabric"
	"gradbus/ps/module"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// newModules makes what hosts the modules of the worker's shard.
func (w *worker) newModules() *module.Set {
	return module.New(module.Config{
		Shard: w.config, Dense: &w.server.dense, Log: w.log, Now: w.server.now, Fail: w.result,
		Send: func(to schema.Member, name string, frame []byte) {
			w.send(to, fabric.At(w.name, string(w.member), "", string(to)).OfModule(name), fabric.WithoutRoom(frame))
		},
		Note: func(from schema.Member, reason schema.Reason, text string) {
			w.server.counters.count(reason)
			if reason != schema.ReasonOK && reason != schema.ReasonDuplicate {
				w.server.logRefusal(w.name, string(from), reason, text)
			}
		},
	})
}

// deliverToModule takes a verified frame that was sent to a module.
func (w *worker) deliverToModule(it *item, name string) {
	if w.modules != nil {
		w.modules.Deliver(&module.Frame{From: it.from, View: it.view, Payload: it.payload}, name)
		return
	}
	h := it.view.Head()
	subject := fabric.At(w.name, string(it.from), "", "")
	w.server.refuse(w, w.config.Index, &subject, h,
		schema.Refuse(schema.ReasonUnknownModule, "job %s has no modules", w.name))
	round.Release(it.payload)
}

// modulesResumed is a version that gives modules here what it has of them, and the shard the rest.
func (w *worker) modulesResumed(from *shard.Resumed) *shard.Resumed {
	if from == nil {
		return nil
	}
	to := *from
	to.Read = func(tensor func(state.Tensor) error, rows func(state.Rows) error) error {
		return from.Read(func(t state.Tensor) error {
			if taken, err := w.modules.Restore(t); taken || err != nil {
				return err
			}
			return tensor(t)
		}, rows)
	}
	return &to
}
