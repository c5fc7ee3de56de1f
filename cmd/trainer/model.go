package main

import (
	"encoding/json"
	"fmt"

	"gradbus/cuda"
	"gradbus/examples/packages"
	"gradbus/schema"
)

// sectionsShown is how many sections a prediction lists for people.
const sectionsShown = 5

// suspectNote is what is said of a model that was saved as suspect.
const suspectNote = "note: this model may be wrong, and should be trained again: %s\n"

// ask answers --predict with a saved model; no server is needed.
func (o *options) ask() error {
	model, err := packages.LoadModel(o.load)
	if err != nil {
		return err
	}
	backend, err := cuda.Open(cuda.Options{Name: o.backend, ISA: o.isa, Threads: o.threads})
	if err != nil {
		return err
	}
	defer backend.Close()
	predictions, err := model.Predict(backend, o.predict, "")
	if err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(o.out).Encode(map[string]any{"text": o.predict, "synthetic": model.Synthetic,
			"predictions": predictions})
	}
	if model.Suspect != "" {
		fmt.Fprintf(o.errOut, suspectNote, schema.Printable(model.Suspect))
	}
	if model.Synthetic {
		fmt.Fprintln(o.errOut,
			"note: this model was trained on the synthetic corpus; its answers say nothing about real packages")
	}
	for _, p := range predictions[:min(sectionsShown, len(predictions))] {
		if _, err := fmt.Fprintf(o.out, "%-16s %.4f\n", schema.Printable(p.Section), p.Probability); err != nil {
			return err
		}
	}
	return nil
}
