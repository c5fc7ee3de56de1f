// Package tensorboard writes training runs as event files that TensorBoard reads.
//
//   - event.go is the format: records with masked CRC-32C sums around Event messages, as TensorFlow's RecordWriter and
//     event.proto, summary.proto and plugin_data.proto have them.
//   - Writer (writer.go) is one file: what is to be written waits in memory, a goroutine writes it every two seconds. A
//     disk that
//     fails delays nobody and costs one warning; what does not fit in memory by then is counted and lost.
//   - Run (run.go) says what of a training run is worth a curve.
//
// It is handed numbers and knows nothing of sessions. One process writes one file, in a directory of its own: two files
// of one moment in one directory would be taken for one run that was started again.
package tensorboard
