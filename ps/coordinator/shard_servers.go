package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/schema"
)

// shardServer is a ps with shards of a job, and what it has reported.
type shardServer struct {
	ShardServer
	liveness.Peer                  // heard of by reports
	heard         bool             // it has reported
	ready         bool             // version 0 is in place on its shards
	serial        int              // of the last assignment that it has carried out
	waiting       []schema.Waiting // the rounds that its shards waited for when it last reported
	writing       bool             // a shard was writing a version then

	generation schema.Generation // that its shards go by; 0: the first
	done       schema.Version    // batches that were complete on them when they began to
}

// name names a ps and its shards in messages.
func (s *shardServer) name() string {
	names := make([]string, len(s.Server.Shards))
	for n, shard := range s.Server.Shards {
		names[n] = string(schema.ShardMember(shard))
	}
	at := ""
	if s.Server.URL != "" {
		at = " at " + s.Server.URL
	}
	return fmt.Sprintf("ps %s%s with shards %s", s.Server.ID, at, strings.Join(names, " "))
}

// shardServers are all ps with shards of a job, each shard once.
type shardServers []shardServer

// find returns the index of a ps; -1: it has no shards of the job.
func (all shardServers) find(member schema.Member) int {
	return slices.IndexFunc(all, func(s shardServer) bool { return s.Member == member })
}

// unheard returns the index of the first ps that has not reported; -1: all have.
func (all shardServers) unheard() int {
	return slices.IndexFunc(all, func(s shardServer) bool { return !s.heard })
}

// isWriting reports whether any shard is writing a version.
func (all shardServers) isWriting() bool {
	return slices.ContainsFunc(all, func(s shardServer) bool { return s.writing })
}

// waiting returns the rounds that all shards, and trainers that reduce, waited for when they last reported.
func (all shardServers) waiting(members slots) (waiting []schema.Waiting) {
	for i := range members {
		waiting = append(waiting, members[i].waiting...)
	}
	for i := range all {
		waiting = append(waiting, all[i].waiting...)
	}
	return waiting
}

// carriedOut reports whether every ps has carried out the assignment of a serial.
func (all shardServers) carriedOut(serial int) bool {
	return !slices.ContainsFunc(all, func(s shardServer) bool { return s.serial != serial })
}

// ready reports whether every shard is, and every ps has carried out the assignment of a serial.
func (all shardServers) ready(serial int) bool {
	return all.carriedOut(serial) && !slices.ContainsFunc(all, func(s shardServer) bool { return !s.ready })
}

// risen reports whether the shards of every ps go by a generation.
func (all shardServers) risen(g schema.Generation) bool {
	return !slices.ContainsFunc(all, func(s shardServer) bool { return s.generation < g })
}

// done returns how many batches are complete at least, in a run that has begun with a version.
func (all shardServers) done(first schema.Version) schema.Version {
	done := all[0].done
	for i := range all {
		done = min(done, all[i].done)
	}
	done = max(done, first)
	if planted.Is(planted.SkipBatchUnderWay) {
		done++
	}
	return done
}

// dataServers returns where a trainer finds the shards: nil if all of them are on the server that carries control, or
// if the trainer reaches all of them through that.
func (all shardServers) dataServers(cluster bool) (servers []schema.DataServer) {
	if cluster || len(all) == 1 && all[0].Server.URL == "" {
		return nil
	}
	for i := range all {
		servers = append(servers, all[i].Server)
	}
	return servers
}

// lost returns the first ps that was silent for too long, and why it counts as lost; -1: none was.
func (all shardServers) lost(now time.Time, deadline time.Duration) (int, string) {
	for i := range all {
		s := &all[i]
		if why, lost := s.Lost(now, deadline); lost {
			return i, fmt.Sprintf("was last heard %s ago%s", liveness.Rounded(s.For(now)), why)
		}
	}
	return -1, ""
}
