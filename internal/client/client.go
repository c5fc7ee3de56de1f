// Package client asks a ps for something on behalf of a process that is no member of a job: the command of an operator,
// or a trainer that is not admitted yet.
//
//	o := client.Operator{Server: fabric.Config{URL: "nats://10.0.0.1:4222"}, AnswerWithin: 10 * time.Second}
//	from, err := o.ScaleLR(ctx, "clicks", 0, 0.1, false)
//
// It knows subjects and control messages. It must not know sessions, batches or shards.
package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"gradbus/fabric"
	"gradbus/schema"
)

// Client is a connection to the coordinator of a job under a random name. Each client has a connection of its own,
// because the server knows a member by the name of its connection, which cannot change.
type Client struct {
	conn    *fabric.Control
	subject string
}

// Dial connects to the server at c.URL; c.Name and c.Direct are set here. receive gets each frame that the coordinator
// sends to the client, and releases it. The errors are those of fabric.DialControl.
func Dial(ctx context.Context, c fabric.Config, job schema.JobName, receive func(fabric.Message)) (*Client, error) {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	name, coordinator := "j-"+hex.EncodeToString(random[:]), string(schema.Coordinator)
	c.Name, c.Direct = string(job)+"/"+name, true
	conn, err := fabric.DialControl(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := conn.Subscribe(fabric.Pattern(string(job), coordinator, fabric.KindCtl, name, false), receive); err != nil {
		conn.Close()
		return nil, err
	}
	return &Client{conn, fabric.At(string(job), name, fabric.KindCtl, coordinator).String()}, nil
}

// Publish sends a frame to the coordinator.
func (c *Client) Publish(frame []byte) error { return c.conn.Publish(c.subject, frame) }

// Control is the connection, for a client that reads buckets.
func (c *Client) Control() *fabric.Control { return c.conn }

// Close ends the connection.
func (c *Client) Close() { c.conn.Close() }

// Answer decodes a frame of a coordinator. ok is false for a frame that is no answer. If the coordinator or this program
// does not understand the other, the answer is a Refused that names both versions.
func Answer(frame []byte) (c schema.Control, ok bool) {
	v, err := schema.Verify(frame, schema.Limits{})
	switch {
	case err == nil && v.Head().Kind == schema.KindRefusal:
		c.Refused = schema.RefusedByOlder(&v)
		return c, c.Refused != nil
	case err == nil:
		c, err = schema.DecodeControl(&v)
	}
	if reason := schema.ReasonOf(err); reason == schema.ReasonUnknownVersion {
		return schema.Control{Refused: &schema.Refused{Reason: reason.String(), Text: schema.Refusing(err).Detail}}, true
	}
	return c, err == nil
}
