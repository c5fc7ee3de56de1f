package trainer

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"gradbus/fabric"
	"gradbus/schema"
)

// outsider asks a job's coordinator something for somebody who is no member of the job, under a name of its own. It has
// its own connection, because the name of a connection, by which the server knows when a member is gone, is fixed.
type outsider struct {
	conn    *fabric.Control
	subject string
}

// dialOutside dials the server. receive gets what is said to the outsider, its frames unread, and releases them.
func (c *Config) dialOutside(ctx context.Context, job *schema.Job, receive func(fabric.Message)) (o outsider,
	err error) {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	name, coordinator := "j-"+hex.EncodeToString(random[:]), string(schema.Coordinator)
	o.subject = fabric.At(string(job.Name), name, fabric.KindCtl, coordinator).String()
	if o.conn, err = fabric.DialControl(ctx, c.fabricConfig(job, name, nil)); err != nil {
		return o, err
	}
	heard := fabric.Pattern(string(job.Name), coordinator, fabric.KindCtl, name, false)
	if err = o.conn.Subscribe(heard, receive); err != nil {
		o.conn.Close()
	}
	return o, err
}

// answerOf reads what a coordinator says to an outsider. One that does not read what this program says, or says what
// this program does not read, gives a Refused that names both versions. ok is false of what is no answer.
func answerOf(data []byte) (c schema.Control, ok bool) {
	v, err := schema.Verify(data, schema.Limits{})
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

// publish sends a frame to the coordinator.
func (o *outsider) publish(frame []byte) error { return o.conn.Publish(o.subject, frame) }
