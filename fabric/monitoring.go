package fabric

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
)

// MonitoringPages are the pages of NATS's own monitoring that Server.Monitoring gives, each with its parameters, which
// mean what they mean to nats-server. Left out are those that tell of the process rather than of NATS.
var MonitoringPages = map[string][]string{
	"varz": nil, "jsz": nil, "connz": {"subs", "offset", "limit", "sort", "state"}, "subsz": {"subs", "offset", "limit"},
}

// Monitoring is a page of NATS's own monitoring, as JSON. It costs as much as Clients, and more with subscriptions.
// Errors: a page or a value that is not known; a server on a Bus, which has none.
func (s *Server) Monitoring(page string, parameters url.Values) (text []byte, err error) {
	if s.bus != nil {
		return nil, errors.New("the server of this process is not NATS")
	}
	var offset, limit int
	var subs bool
	err = cmp.Or(number(parameters, "offset", &offset), number(parameters, "limit", &limit))
	detail := parameters.Get("subs") == "detail"
	if given := parameters.Get("subs"); given != "" && !detail && err == nil {
		if subs, err = strconv.ParseBool(given); err != nil {
			err = fmt.Errorf("subs %q: want 1, 0 or detail", clip(given))
		}
	}
	state, known := map[string]server.ConnState{"": server.ConnOpen, "open": server.ConnOpen, "closed": server.ConnClosed,
		"all": server.ConnAll}[parameters.Get("state")]
	if !known && err == nil {
		err = fmt.Errorf("state %q: want open, closed or all", clip(parameters.Get("state")))
	}
	if err != nil {
		return nil, err
	}
	var found any
	switch page {
	case "varz":
		found, err = s.serving().Varz(nil)
	case "jsz":
		found, err = s.serving().Jsz(nil)
	case "connz":
		found, err = s.connections(server.ConnzOptions{Subscriptions: subs, SubscriptionsDetail: detail, Offset: offset,
			Limit: limit, Sort: server.SortOpt(parameters.Get("sort")), State: state})
	case "subsz":
		found, err = s.serving().Subsz(&server.SubszOptions{Subscriptions: subs || detail, Offset: offset, Limit: limit})
	default:
		err = fmt.Errorf("no page %q of NATS's monitoring", clip(page))
	}
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(found, "", "  ")
}

// number reads a parameter that counts, if it is there.
func number(parameters url.Values, name string, to *int) (err error) {
	if text := parameters.Get(name); text != "" {
		if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
			return fmt.Errorf("%s %q: want a number, 0 or more", name, clip(text))
		}
	}
	return nil
}
