// Package certtest makes certificates for tests: an authority, and what it vouches for. Programs do not import it.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"gradbus/internal/atomicfile"
)

// Authority signs certificates.
type Authority struct {
	File string         // its own certificate, in PEM
	Pool *x509.CertPool // of it alone

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Pair is a certificate and its key, in PEM files and in memory.
type Pair struct {
	CertFile, KeyFile string
	TLS               tls.Certificate
}

// NewAuthority makes one that is good for an hour.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t), Pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der := create(t, template, template, &a.key.PublicKey, a.key)
	var err error
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.Pool.AddCert(a.certificate)
	a.File = write(t, t.TempDir(), "ca.pem", "CERTIFICATE", der)
	return a
}

// Issue makes a certificate for hosts, each a name or an IP address, that is good for an hour, as a server's and as a
// client's.
func (a *Authority) Issue(t testing.TB, hosts ...string) Pair {
	t.Helper()
	return a.IssueUntil(t, time.Now().Add(time.Hour), hosts...)
}

// IssueUntil is Issue with the end of the certificate's time.
func (a *Authority) IssueUntil(t testing.TB, until time.Time, hosts ...string) Pair {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: until.Add(-2 * time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der := create(t, template, a.certificate, &key.PublicKey, a.key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	p := Pair{CertFile: write(t, folder, "cert.pem", "CERTIFICATE", der),
		KeyFile: write(t, folder, "key.pem", "PRIVATE KEY", private)}
	if p.TLS, err = tls.LoadX509KeyPair(p.CertFile, p.KeyFile); err != nil {
		t.Fatal(err)
	}
	return p
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func create(t testing.TB, template, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) []byte {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func write(t testing.TB, folder, name, kind string, der []byte) string {
	path := filepath.Join(folder, name)
	err := atomicfile.Write(path, 0o600,
		func(w io.Writer) error { return pem.Encode(w, &pem.Block{Type: kind, Bytes: der}) })
	if err != nil {
		t.Fatal(err)
	}
	return path
}
