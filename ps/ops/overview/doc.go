// Package overview makes one view of all jobs from the pulses of their members: what is shown on the page, by the API and in
// the terminal, with the sentence that says why a job does not go on.
//
// It is pure: pulses and times in, statuses out. It knows no HTTP, no clock and no NATS.
package overview
