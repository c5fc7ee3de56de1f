package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"gradbus/ps"
)

var backend = flag.String("backend", "", "fail unless this backend does the arithmetic")

// weights are those after 100 batches, by any backend and any number of trainers.
const weights = "c72d2297c8edab642cad3271ec4a27f8026ed80f45d2342070e29446e0aee8c6"

func TestTrain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	server, err := ps.Start(ctx, ps.Config{Shards: 2}, ps.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, trainers := range []int{1, 2} {
		others := make(chan error, trainers)
		for range trainers - 1 {
			go func() {
				_, _, err := train(ctx, io.Discard, server.URL(), trainers, 100)
				others <- err
			}()
		}
		var out bytes.Buffer
		loss, digest, err := train(ctx, &out, server.URL(), trainers, 100)
		for range trainers - 1 {
			if other := <-others; err == nil {
				err = other
			}
		}
		if err != nil {
			t.Fatalf("%d trainers: %v", trainers, err)
		}
		if loss > 0.005 || hex.EncodeToString(digest[:]) != weights {
			t.Errorf("%d trainers: loss %.4f, weights %x, want at most 0.005 and %s", trainers, loss, digest, weights)
		}
		if !strings.HasSuffix(out.String(), " by "+*backend+"\n") && *backend != "" {
			t.Errorf("backend %s was asked for: %s", *backend, &out)
		}
	}
}
