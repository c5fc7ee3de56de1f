//go:build !cgo

package main

import "testing"

func TestSession(t *testing.T) { t.Skip("built without cgo, as a library for C cannot be") }
