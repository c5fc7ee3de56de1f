// Package nn provides layers and losses over a cuda.Backend, with forward and backward passes written out. NewNet runs
// a module, and NewLinear, NewEmbeddingBag and NewCrossEntropy are single operations.
//
// A single operation computes when it is called, on tensors that the caller passes.
//
// A Module is a function made of layers, as configuration, written in Go or as JSON (Build): LinearLayer, BagLayer,
// Conv2d, MaxPool2d, ReLU, Dropout, Dropout2d, Flatten, Softmax, logSoftmax, and Sequential. A Net is a module with the
// memory of one pass. It runs forward and backward, and reports when each parameter's gradient is final, so that it can
// be sent while the rest is computed. A library (cuda.Dense) computes its products and convolutions, and determines
// their bits; images have the layout in which the library is fastest (net.go).
//
// Neither has parameters: those belong to the session or to the server, and are passed in. Gradients are sums over the
// samples, never divided; the caller that knows the weight of the whole batch divides once. Initial values have
// PyTorch's default bounds and are counter-based (package philox), and so is dropout. Sums of single operations run in
// the canonical order of package cuda, so the same samples produce the same bits on every backend.
//
// The package knows shapes and derivatives. It must not know jobs, batches, lanes, the keys of tables or optimizers. A
// newcomer may add a layer: a type in layers.go, a comment with every shape, an entry in kinds (net.go), a naive
// version and a case in the tests against finite differences, and golden values made with PyTorch by
// testdata/layers.py. Layers and Nets are not safe for concurrent use; Modules are.
//
// There is no graph with automatic differentiation, on purpose: a sequence of layers with explicit backward passes is
// enough for the programs here, and shows when a gradient is final.
package nn
