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
const weights = "54cf1a7c77169772cd3c6be8ae0f52cca6b3b538e75c842ca7c2a3525dd4f98a"

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
