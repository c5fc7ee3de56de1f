// Package ops is the HTTP side of a ps: the page, the API, the stream of updates, probes, metrics and profiles.
//
// # What is where
//
//   - Hub (hub.go) owns the status: one goroutine takes reports out of a bounded queue and makes a view of all jobs
//     once a
//     second, or at once when what is first on the page has changed. view.go is one view and its forms,
//     clock.go the time that they are of.
//   - Server (server.go) is the listeners; connections.go bounds what is open, guard.go and token.go say who may ask.
//   - api.go answers below /api/v1/, stream.go sends updates, health.go is /healthz and /readyz, files.go the page.
//   - sides.go is Go's pprof and what NATS says of its server, each on a listener of its own.
//
// # What looking costs
//
// A view is made once a second whether or not anybody looks, since it keeps the curves. Everything else happens when
// asked for: the JSON of an update and its compressed form are made by the first client that wants them, and shared by
// all. A client that is slow gets the newest update when it has taken the last one, and is cut off when it does not
// take it; it holds a goroutine, some 28 KiB and what the kernel buffers. Nothing here is ever waited for by a shard,
// the control loop or the status.
//
// # What clients may do
//
// Look. Every path is read-only but one, which resets figures of buckets, of which no job hears. Requests under foreign
// names, from pages of other sites, with other methods, bodies, or large or slow headers are refused, and counted.
// Beyond this machine a token and TLS are asked for. Connections and streams are bounded. The newest connection is
// always taken: the one that has waited longest for its client makes room.
//
// # Faults
//
// Whatever goes wrong here is logged and counted, and training goes on: an error of the listener, a panic of a handler
// or of the status. Only what cannot be had at the start is an error, as its user is there to read it.
//
// # What it must not know
//
// NATS, shards and coordinators, NVML: reports and functions come in by Config and Hub.Take, and cmd/ps ties them. It
// must not call anything that may block: what Config names answers from memory.
//
// # For a newcomer
//
// A path of the API is easily added: to api.go, to the table of its test, and to docs. What is sent is for package
// status to say.
package ops
