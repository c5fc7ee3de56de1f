// Package mnist is the workload of small images: the digits of MNIST, or the clothes of Fashion-MNIST, by a
// convolutional model of 1,199,882 parameters.
//
// # The files
//
// data.go reads the data sets' files, or generates one that needs none, and gives the samples of a lane (package
// shuffle), for this workload and for any other that feeds these images. model.go is the model as configuration, so
// that it may be hosted by a ps just as well, what a person may choose and the manifest that follows. It pulls
// parameters, computes a lane here and pushes gradients; a trained model is loaded from the
// file that a session saved, and asked. picture.go makes a model's input of a PNG.
//
// The package knows the session and the layers. It must not know frames, shards or flags. A newcomer may add a setting
// (with a line in Validate, and in Job if trainers must agree on it), another model (it is configuration) or another
// data set of 28 x 28 images in ten classes.
package mnist
