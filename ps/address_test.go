package ps

import (
	"cmp"
	"net/url"
	"testing"

	"gradbus/schema"
)

// A ps that listens at all addresses is to be joined at one that other hosts reach; --advertise says which, where the
// routes of this machine do not.
func TestAnnouncedAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config Config
		want   string // host
	}{
		{Config{Host: "127.0.0.1", Shards: 1}, "127.0.0.1"},
		{Config{Host: "0.0.0.0", Shards: 1, Insecure: true}, cmp.Or(outgoingHost(), "127.0.0.1")},
		{Config{Host: "0.0.0.0", Shards: 1, Insecure: true, Advertise: "train.example.org:7000"}, "train.example.org"},
	} {
		s, l := startWatched(t, c.config)
		at, err := url.Parse(s.JoinURL())
		must(t, err)
		if at.Hostname() != c.want || c.config.Advertise != "" && at.Host != c.config.Advertise {
			t.Errorf("%+v: trainers join at %s, want %s", c.config, at, c.want)
		}
		said := l.own(s, "a report", func(*schema.ServerReport) bool { return true }).URL
		if said != s.JoinURL() {
			t.Errorf("the report says %s, want %s", said, s.JoinURL())
		}
	}
}
