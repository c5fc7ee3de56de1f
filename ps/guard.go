package ps

import (
	"strings"

	"gradbus/fabric"
	"gradbus/schema"
)

// guard says what whoever dials the embedded server may do. Trainers publish frames of their own, and tools ask for the
// services of ps: only ps write the registry, and only they speak as coordinators and shards, and as this ps.
func (s *Server) guard() *fabric.Guard {
	g := &fabric.Guard{
		PeerToken: s.config.ControlToken, Member: s.messageBytesOf,
		Publish: []string{fabric.All, fabric.AllServices, serviceName + ".>"},
		Deny:    []string{fabric.AllFrom(string(schema.Coordinator))},
	}
	g.Deny = append(g.Deny, fabric.Pattern(fabric.Any, fabric.Any, fabric.KindState, fabric.Any, true))
	for i := range shardsMax { // of more, only jobs over several ps have any
		g.Deny = append(g.Deny, fabric.AllFrom(string(schema.ShardMember(i))))
	}
	if s.config.ID != "" {
		g.Deny = append(g.Deny, fabric.AllFrom(string(schema.ServerMember(s.config.ID))))
	}
	return g
}

// messageBytesOf is the size of the largest message of a trainer of a job with shards here, by the name of its
// connections, {job}/t{n}; 0 where there is no such trainer.
func (s *Server) messageBytesOf(connection string) int {
	name, member, _ := strings.Cut(connection, "/")
	a := (*s.jobs.Load())[schema.JobName(name)]
	if a == nil || !a.manifest.HasTrainer(schema.Member(member)) {
		return 0
	}
	return s.config.messageBytes(a.manifest)
}

// messageBytes bounds the messages of a job's trainers. Bags and inputs of modules are not cut into chunks.
func (c *Config) messageBytes(job *schema.Job) int {
	whole := len(job.Modules) > 0
	for i := range job.Tables {
		whole = whole || job.Tables[i].Cut().PooledByShards()
	}
	if whole {
		return c.PayloadBytesMax
	}
	return max(job.MessageBytesMax(), fabric.GuestPayloadBytesMax)
}
