package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// RootCAs reads certificates, in PEM, that vouch for a server. An empty path gives nil: the system's are to do.
func RootCAs(path string) (*tls.Config, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("certificates: %s holds none: want PEM, that begins with -----BEGIN CERTIFICATE-----", path)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
