// Package fabric carries bytes between the members of a job over NATS.
package fabric
