// Package prometheus tests what deploy/ has for Prometheus and Grafana with a Prometheus of this machine: its
// configuration, alerts and the dashboard's expressions by promtool, and all of them on a job that really runs, up to
// an alert about a trainer that is stopped.
//
// The tests run with -need-prometheus only, which `make test-all` gives, and then fail where there is none:
// scripts/deps.sh metrics installs it. They end what they start, leave no service and no data behind, and use free
// ports of loopback. That expressions name metrics that exist is tested everywhere, by ps/ops/metrics.
package prometheus
