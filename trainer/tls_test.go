package trainer

import (
	"crypto/tls"
	"testing"

	"gradbus/fabric"
	"gradbus/internal/certificate/certtest"
	"gradbus/ps"
	"gradbus/schema"
)

// Over TLS with certificates on both sides, a job has the bits that it has without: on two ps, one of which is the
// control server of the other, and where trainers reduce and serve each other. Who has no certificate, or one of
// others, is told so, by a ps and by a trainer.
func TestTLSSameWeights(t *testing.T) {
	const batches, trainers, lanes = 5, 2, 4
	ours, foreign := certtest.NewAuthority(t), certtest.NewAuthority(t)
	both := func(pair certtest.Pair) (serve, dial *tls.Config) {
		own := []tls.Certificate{pair.TLS}
		return &tls.Config{Certificates: own, ClientCAs: ours.Pool, ClientAuth: tls.RequireAndVerifyClientCert},
			&tls.Config{Certificates: own, RootCAs: ours.Pool}
	}
	serve, dial := both(ours.Issue(t, "127.0.0.1"))
	of := ps.Config{ID: "a", Shards: 1, Token: "secret-of-sixteen", ControlToken: "the-token-of-peers", TLS: serve}
	first := startServerWith(t, of)
	of.ID, of.Shards, of.NATS, of.NATSTLS = "b", 2, first.URL(), dial
	startServerWith(t, of)
	c := controlConfig(t, first.URL())
	c.Token, c.TLS, c.DataTLS = "secret-of-sixteen", dial, serve
	for name, job := range map[string]*schema.Job{
		"shards":   toyJob("tls-shards", trainers, lanes, schema.ApplyUpdate),
		"trainers": routeJob("tls-trainers", 4, trainers, lanes),
	} {
		want := digestOnOne(t, 3, job, batches)
		for i, o := range trainAll(t, c, job, batches) {
			if o.err != nil || o.digest != want {
				t.Errorf("%s, trainer %d: %v, weights %x, want %x", name, i, o.err, o.digest[:6], want[:6])
			}
		}
	}
	join := func(dial *tls.Config) error {
		c := c
		c.TLS = dial
		_, err := Join(testContext(t), c, toyJob("tls-refused", 1, 1, schema.ApplyUpdate))
		return err
	}
	checkError(t, join(&tls.Config{RootCAs: ours.Pool}), fabric.ErrRefused, "none was given", "--tls-cert")
	_, stranger := both(foreign.Issue(t, "127.0.0.1"))
	checkError(t, join(stranger), fabric.ErrRefused, "turns the certificate down")
	checkError(t, join(nil), fabric.ErrRefused, "--tls-ca")

	// The way between trainers is as closed as the one to the ps.
	far := c
	far.DataHost, far.DataTLS = "0.0.0.0", nil
	_, err := Join(testContext(t), far, routeJob("tls-far", 4, trainers, lanes))
	checkError(t, err, ErrConfig, "data host 0.0.0.0", "--tls-cert and --tls-key")
	own, err := startPeerServer(testContext(t), c, routeJob("tls-own", 4, trainers, lanes), "")
	if err != nil {
		t.Fatal(err)
	}
	defer own.close()
	_, err = fabric.Dial(testContext(t), fabric.Config{URL: own.url, Name: "tls-own/t1", Token: c.Token,
		TLS: &tls.Config{RootCAs: ours.Pool}})
	checkError(t, err, fabric.ErrRefused, "none was given")
}
