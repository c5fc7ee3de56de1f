package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRootCAs(t *testing.T) {
	if c, err := RootCAs(""); c != nil || err != nil {
		t.Errorf("%v, %v, want nothing", c, err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if _, err := RootCAs(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v, want the name of the file", err)
	}
	if err := os.WriteFile(path, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := RootCAs(path); err == nil || !strings.Contains(err.Error(), "BEGIN CERTIFICATE") {
		t.Errorf("%v, want what would be right", err)
	}
	// A certificate of a test authority, of elliptic curve P-256, that has run out: it is parsed, not checked.
	const pem = `-----BEGIN CERTIFICATE-----
MIIBUjCB+aADAgECAgEBMAoGCCqGSM49BAMCMA8xDTALBgNVBAMTBHRlc3QwHhcN
-----END CERTIFICATE-----`
	if err := os.WriteFile(path, []byte(pem), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := RootCAs(path); err == nil {
		t.Error("a certificate that is cut off was taken")
	}
}
