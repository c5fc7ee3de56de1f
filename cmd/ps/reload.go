package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"gradbus/internal/config"
	"gradbus/ps"
	"gradbus/ps/members"
	"gradbus/ps/ops"
	"gradbus/ps/ops/display"
)

// serve waits until the server has ended, or is to end, and reloads at each hangup. It reports whether the server is to
// end and has not.
func (f *flags) serve(ctx context.Context, set *pflag.FlagSet, hangups <-chan os.Signal, server *ps.Server,
	shown *display.Display, log *slog.Logger) bool {
	for {
		select {
		case <-ctx.Done():
			return true
		case <-server.Asked():
			return true
		case <-server.Done():
			return false
		case <-hangups:
			f.reload(set, server, shown, log)
		}
	}
}

// reload gives a running server what the file of --config, the files of tokens and members and the certificates hold by now, as far
// as that can change without a restart. A part that is wrong stays as it was, whole.
func (f *flags) reload(set *pflag.FlagSet, server *ps.Server, shown *display.Display, log *slog.Logger) {
	ignored, err := config.ReloadFile(set, []string{"log-level", "token-file", "control-token-file", "members", "tls-cert", "tls-key",
		"tls-ca", "nats-ca", "http-token-file", "metrics-token-file", "http-tls-cert", "http-tls-key"})
	if err != nil {
		log.Error("configuration not reloaded", "err", err)
		return
	}
	var all []string
	for _, part := range []func() ([]string, error){
		f.reloadLog,
		func() ([]string, error) { return f.reloadTokens(server, log) },
		func() ([]string, error) { return f.reloadMembers(server, log) },
		func() ([]string, error) { return f.reloadCertificates(server) },
		func() ([]string, error) { return f.reloadPage(shown) },
	} {
		changed, err := part()
		if err != nil {
			log.Error("part of the configuration not reloaded", "err", err)
		}
		all = append(all, changed...)
	}
	if len(ignored) > 0 {
		log.Warn("settings changed that need a restart", "settings", ignored)
	}
	log.Info("configuration reloaded", "changed", all)
}

func (f *flags) reloadLog() (changed []string, err error) {
	if other, err := f.log.Reload(); err != nil || !other {
		return nil, err
	}
	return []string{"log-level"}, nil
}

// reloadTokens changes what trainers and other ps show.
func (f *flags) reloadTokens(server *ps.Server, log *slog.Logger) (changed []string, err error) {
	secrets, err := f.readSecrets(log)
	if err != nil {
		return nil, err
	}
	f.secrets = secrets
	c := f.server
	c.Token, c.ControlToken = secrets.token, secrets.control
	if err := server.Reload(c); err != nil {
		return nil, err
	}
	if c.Token != f.server.Token {
		changed = append(changed, "token-file")
	}
	if c.ControlToken != f.server.ControlToken {
		changed = append(changed, "control-token-file")
	}
	f.server = c
	return changed, nil
}

// reloadMembers changes who may connect, and closes the connections of those that may not any more.
func (f *flags) reloadMembers(server *ps.Server, log *slog.Logger) (changed []string, err error) {
	if f.members == "" {
		return nil, nil
	}
	c, before := f.server, f.server.Members
	if c.Members, err = members.Read(f.members); err != nil {
		return nil, err
	}
	if err := server.Reload(c); err != nil {
		return nil, err
	}
	f.server = c
	if c.Members.Equal(before) {
		return nil, nil
	}
	log.Info("members changed", "members", c.Members.Names())
	return []string{"members"}, nil
}

// reloadCertificates changes what the server shows, and whom it believes.
func (f *flags) reloadCertificates(server *ps.Server) (changed []string, err error) {
	own, err := config.RootCAs(f.natsCA)
	if err != nil {
		return nil, err
	}
	dial, changed, err := f.tls.Reload()
	if err != nil {
		return nil, err
	}
	c := f.server
	f.dialWith(&c, dial, own)
	if f.natsCA != "" && !rootsOf(c.NATSTLS).Equal(rootsOf(f.server.NATSTLS)) {
		changed = append(changed, "nats-ca")
	}
	if err := server.Reload(c); err != nil {
		return nil, err
	}
	f.server = c
	return changed, nil
}

// reloadPage changes what who looks shows, and the page's certificate.
func (f *flags) reloadPage(shown *display.Display) (changed []string, err error) {
	return shown.Reload(ops.Config{Token: f.secrets.page, MetricsToken: f.secrets.metrics, CertFile: f.page.certFile,
		KeyFile: f.page.keyFile})
}

// rootsOf are the authorities that a way to dial trusts; nil are the system's.
func rootsOf(dial *tls.Config) *x509.CertPool {
	if dial == nil {
		return nil
	}
	return dial.RootCAs
}
