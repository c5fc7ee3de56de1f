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

// What the embedded NATS server says of itself has the page's guard.
func TestNATSMonitorHasTheGuardOfThePage(t *testing.T) {
	s := &served{t: t}
	s.start("--nats-monitor", "127.0.0.1:0")
	defer s.stop()
	_, line, _ := strings.Cut(s.log.String(), `msg="NATS monitoring"`)
	_, at, _ := strings.Cut(line, "url=")
	at, _, _ = strings.Cut(at, "\n")
	for host, want := range map[string]int{"localhost": http.StatusOK, "evil.example": http.StatusForbidden} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", strings.Replace(at, "/varz", "/connz?subs=1", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != want || strings.Contains(string(text), "gradbus.v1.") != (want == 200) ||
			answer.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("host %s: %v, status %d, headers %v: %s", host, err, answer.StatusCode, answer.Header, text)
		}
	}
}
