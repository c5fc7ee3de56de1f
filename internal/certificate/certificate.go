// Package certificate reads a certificate and its key from files, and reads them again when they change: a certificate
// may be good for a day, and a job takes longer.
//
// The package knows PEM files and crypto/tls. It must not know flags, addresses or who serves. A newcomer may add what
// a certificate says.
package certificate

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"gradbus/internal/regular"
)

// bytesMax bounds a file with a certificate and those above it, or with a key.
const bytesMax = 1 << 20

// lookEvery is the shortest interval between checks of the files.
const lookEvery = 10 * time.Second

// File is a certificate and its key as their files have them. It is safe for concurrent use.
type File struct {
	flag string
	log  *slog.Logger
	now  func() time.Time

	mu                sync.Mutex // guards the rest; files are read under it, once in lookEvery
	certFile, keyFile string
	pair              *tls.Certificate
	changed           time.Time
	looked            time.Time
}

// Load reads a certificate and its key. flag is what errors call them by: http-tls stands for http-tls-cert and
// http-tls-key. log is warned of a key that other users of the machine may read.
func Load(flag, certFile, keyFile string, log *slog.Logger) (*File, error) {
	f := &File{flag: flag, certFile: certFile, keyFile: keyFile, log: log, now: time.Now}
	f.looked = f.now()
	if err := f.read(); err != nil {
		return nil, err
	}
	regular.WarnExposed(keyFile, log)
	return f, nil
}

// Latest is the certificate as the files have it, or had it when they last were whole.
func (f *File) Latest() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.looked) >= lookEvery {
		f.looked = now
		if at, err := f.modified(); err != nil || !at.Equal(f.changed) {
			if err = cmp.Or(err, f.read()); err != nil {
				f.log.Warn("certificate not reloaded, the previous one stays", "path", f.certFile, "err", err)
			} else {
				f.log.Info("certificate reloaded", "path", f.certFile, "until", f.pair.Leaf.NotAfter)
			}
		}
	}
	return f.pair
}

// Reload reads the files at once, which may be others than before, and reports whether the certificate is another one.
// After an error everything stays as it was.
func (f *File) Reload(certFile, keyFile string) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wasCert, wasKey, was := f.certFile, f.keyFile, f.pair
	f.certFile, f.keyFile = certFile, keyFile
	if err = f.read(); err != nil {
		f.certFile, f.keyFile = wasCert, wasKey
		return false, err
	}
	f.looked = f.now()
	return !bytes.Equal(f.pair.Leaf.Raw, was.Leaf.Raw), nil
}

// Serve has a server show the certificate.
func (f *File) Serve(c *tls.Config) {
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.Latest(), nil }
}

// Show has a client show the certificate to servers that ask for one.
func (f *File) Show(c *tls.Config) {
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.Latest(), nil }
}

// modified is when the later of the two files was written.
func (f *File) modified() (at time.Time, err error) {
	for _, file := range []string{f.certFile, f.keyFile} {
		info, statErr := os.Stat(file)
		if statErr != nil {
			err = errors.Join(err, statErr)
		} else if info.ModTime().After(at) {
			at = info.ModTime()
		}
	}
	return at, err
}

func (f *File) read() error {
	at, err := f.modified() // before they are read: what is written meanwhile is read again
	if err != nil {
		return fmt.Errorf("%s-cert, %s-key: %w", f.flag, f.flag, err)
	}
	pair, err := load(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("%s-cert %s, %s-key %s: %w", f.flag, f.certFile, f.flag, f.keyFile, err)
	}
	f.pair, f.changed = &pair, at
	return nil
}

func load(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := regular.Read(certFile, bytesMax)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := regular.Read(keyFile, bytesMax)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
