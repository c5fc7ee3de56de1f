package ops

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// certificate is the page's, read again when its files change: it may be good for a day, and a job takes longer.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	now               func() time.Time

	mu      sync.Mutex // guards the rest; files are read under it, once in certificateEvery
	pair    *tls.Certificate
	names   []string // that it vouches for
	changed time.Time
	looked  time.Time
}

// certificateEvery is how often the files are looked at, at most.
const certificateEvery = 10 * time.Second

// loadCertificate returns nil where none is named.
func loadCertificate(c Config, log *slog.Logger) (*certificate, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	all := &certificate{certFile: c.CertFile, keyFile: c.KeyFile, log: log, now: time.Now}
	all.looked = all.now()
	if err := all.read(); err != nil {
		return nil, err
	}
	return all, nil
}

// tls is how to serve with it.
func (c *certificate) tls() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, _ := c.latest()
			return pair, nil
		},
	}
}

// latest is the certificate as the files have it, or had it when they last were whole, and its names.
func (c *certificate) latest() (*tls.Certificate, []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.looked) >= certificateEvery {
		c.looked = now
		if at, err := c.modified(); err != nil || !at.Equal(c.changed) {
			if err = cmp.Or(err, c.read()); err != nil {
				c.log.Warn("the page's certificate cannot be read again; the one before stays", "err", err)
			} else {
				c.log.Info("the page's certificate has been read again", "until", c.pair.Leaf.NotAfter)
			}
		}
	}
	return c.pair, c.names
}

// modified is when the later of the two files was written.
func (c *certificate) modified() (at time.Time, err error) {
	for _, file := range []string{c.certFile, c.keyFile} {
		info, statErr := os.Stat(file)
		if statErr != nil {
			err = errors.Join(err, statErr)
		} else if info.ModTime().After(at) {
			at = info.ModTime()
		}
	}
	return at, err
}

func (c *certificate) read() error {
	at, err := c.modified() // before they are read: what is written meanwhile is read again
	if err != nil {
		return fmt.Errorf("http-tls-cert, http-tls-key: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("http-tls-cert %s, http-tls-key %s: %w", c.certFile, c.keyFile, err)
	}
	c.pair, c.changed, c.names = &pair, at, nil
	for _, name := range pair.Leaf.DNSNames {
		if !strings.Contains(name, "*") { // that stands for names which may be anybody's
			c.names = append(c.names, hostName(name))
		}
	}
	return nil
}
