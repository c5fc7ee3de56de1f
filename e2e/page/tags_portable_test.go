//go:build !native

package page

// buildFlags make the commands of the same build as this test.
var buildFlags []string
