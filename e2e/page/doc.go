// Package page tests the operators' page in a browser: Debian's chromium, without a window, driven by its own protocol.
//
// Most tests look at a stage: the page served over jobs that package sample plays, so that hours of history and faults
// are there at once. They run with -need-browser only, which `make test-all` gives, and then fail where there is no
// chromium: scripts/deps.sh page installs it.
//
// `go test ./e2e/page -run Screenshots -write docs/images` makes the pictures of docs/operations.md again, and
// `go test ./e2e/page -run Stage -serve 127.0.0.1:8099 -scene waiting` shows a stage for work on the page.
package page
