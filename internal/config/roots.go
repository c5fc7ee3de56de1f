package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"gradbus/internal/regular"
)

// rootsBytesMax bounds a file of certificates; those of all public authorities take 220 KB.
const rootsBytesMax = 4 << 20

// RootCAs reads certificates, in PEM, that vouch for a server. An empty path gives nil: the system's are to do.
func RootCAs(path string) (*tls.Config, error) {
	if path == "" {
		return nil, nil
	}
	data, err := regular.Read(path, rootsBytesMax)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("certificates: %s holds none: want PEM, that begins with -----BEGIN CERTIFICATE-----", path)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
