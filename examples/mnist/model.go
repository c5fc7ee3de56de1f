package mnist

import (
	"fmt"

	"gradbus/nn"
)

// Config is the model as configuration: two convolutions, two linear layers, 1,199,882 parameters, log-probabilities
// out.
//
// Source: pytorch/examples, mnist and distributed/rpc/parameter_server: the same layers with the same probabilities.
const Config = `[{"conv2d":{"in":1,"out":32,"kernel":3}},{"relu":{}},{"conv2d":{"in":32,"out":64,"kernel":3}},` +
	`{"max_pool2d":{"kernel":2}},{"dropout2d":{"p":0.25}},{"flatten":{}},{"linear":{"in":9216,"out":128}},{"relu":{}},` +
	`{"dropout":{"p":0.5}},{"linear":{"in":128,"out":10}},{"log_softmax":{}}]`

// Model is the module of Config; samples are Input().
func Model() nn.Module {
	m, err := nn.Build([]byte(Config))
	if err != nil {
		panic(fmt.Sprintf("mnist: %v", err)) // a constant
	}
	return m
}

// Input is the shape of a sample.
func Input() []int { return []int{1, Side, Side} }

// checkModel refuses a module that does not take images and give scores of classes.
func checkModel(m nn.Module) error {
	out, err := m.OutShape(Input())
	if err != nil {
		return err
	}
	if len(out) != 1 || out[0] != Classes {
		return fmt.Errorf("%w: the model gives %v for an image, want [%d]", nn.ErrShape, out, Classes)
	}
	return nil
}
