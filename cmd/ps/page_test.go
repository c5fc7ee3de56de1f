package main

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"gradbus/internal/process"
)

// The page answers to the names that the machine gives itself, and that flags give it, and to no other.
func TestPageAnswersToNamesOfTheMachine(t *testing.T) {
	t.Parallel()
	f := flags{listen: "10.1.2.3:4222", page: pageFlags{listen: "127.0.0.1:0"}}
	f.server.Advertise = "train.example.org:4222"
	shown, err := f.page.open(t.Context(), slog.New(slog.DiscardHandler), secrets{}, f.hosts())
	if err != nil {
		t.Fatal(err)
	}
	defer shown.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(host string) int {
		r, err := http.NewRequestWithContext(t.Context(), "GET", shown.URL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	names := append(process.HostNames(), "train.example.org", "10.1.2.3")
	if short, _, long := strings.Cut(process.Host(), "."); long {
		names = append(names, short)
	}
	for _, host := range names {
		if status := get(host); status != http.StatusOK {
			t.Errorf("host %s: status %d", host, status)
		}
	}
	if status := get(names[0] + ".evil.example"); status != http.StatusForbidden {
		t.Errorf("a foreign host: status %d", status)
	}
}
