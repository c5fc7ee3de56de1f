// Package page is the operators' page: what the browser gets at /.
//
// It is plain HTML, CSS and ES modules, served as they stand here: there is no build step, and nothing is fetched from
// anywhere else. index.html is at the root, all else below assets/; addresses inside are relative, so that the page
// works below any path. It asks api/v1/series and api/v1/events once and follows api/v1/stream; package status has the
// types.
//
// The page is served with a policy that refuses scripts and styles inside HTML, so there are none. Names of hosts, jobs
// and members come from any client of the server: assets/dom.js is the one way from data into the document, as text.
// Charts are uPlot, a copy of its release with its licence, below assets/vendor; files_test.go holds its version and
// hashes.
//
// A newcomer may add a column in assets/tables.js or a chart in assets/charts.js. Package e2e/page tests it in a
// browser.
package page

import "embed"

// Files is index.html and assets/. Nothing in it is secret: it is served without a token.
//
//go:embed index.html assets
var Files embed.FS
