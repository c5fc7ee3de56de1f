//go:build cgo

package main

import "testing"

// Tables that shards pool, as a program in C meets them.
func TestPooled(t *testing.T) {
	if out := run(t, program(t, "testdata/pooled_test.c")); out != "" && !t.Failed() {
		t.Errorf("printed %q", out)
	}
}
