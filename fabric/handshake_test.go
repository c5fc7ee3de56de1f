package fabric

import (
	"bufio"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// Who a data connection says it is, by all ways of saying it, at a server that is not ours.
func TestCredentialsInTheAddress(t *testing.T) {
	for name, options := range map[string]server.Options{
		"user:password": {Username: "user", Password: "password"},
		"token":         {Authorization: "token"},
	} {
		t.Run(name, func(t *testing.T) {
			options.Host, options.Port, options.NoSigs, options.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
			other, err := server.NewServer(&options)
			if err != nil {
				t.Fatal(err)
			}
			other.Start()
			t.Cleanup(func() {
				other.Shutdown()
				other.WaitForShutdown()
			})
			if !other.ReadyForConnections(readyTimeout) {
				t.Fatal("not ready")
			}
			at := other.Addr().String()
			conn := dial(t, Config{URL: "nats://" + name + "@" + at, Token: "another"})
			roundTrip(t, conn, conn)
			_, err = tryDial(t, Config{URL: "nats://wrong:" + "secret@" + at})
			wantError(t, err, ErrRefused, at)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

// Of several servers the first that answers is taken.
func TestDialAListOfServers(t *testing.T) {
	gone := startServer(t, ServerConfig{})
	server := startServer(t, ServerConfig{})
	gone.Close()
	conn := dial(t, Config{URL: gone.URL() + "," + server.URL()})
	roundTrip(t, conn, conn)
}

// A key made for this test, and its public half.
const (
	testSeed   = "SUADAMJSGM2DKNRXHA4WCYTDMRSWMMBRGIZTINJWG44DSYLCMNSGKZRF4M"
	testPublic = "23bc54912c1e6e92c4a86825c867e27ffdc555bffbd4244f17a26abfffee965d"
)

// A file of credentials: the token is shown, and the server's nonce signed.
func TestCredentialsFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "user.creds")
	text := fmt.Sprintf("-----BEGIN NATS USER JWT-----\nthe.user.token\n------END NATS USER JWT------\n\n"+
		"-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n", testSeed)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	said := make(chan connectOptions, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		fmt.Fprintf(far, "INFO {\"max_payload\":1000,\"nonce\":\"abc\"}\r\n")
		lines := bufio.NewReader(far)
		line, _ := lines.ReadString('\n')
		var o connectOptions
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "CONNECT ")), &o); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		said <- o
		_, _ = lines.ReadString('\n')
		fmt.Fprintf(far, "PONG\r\n")
	})
	config := Config{URL: "nats://there", CredsFile: file, Buffers: NewBuffers(0)}
	at, err := url.Parse(config.URL)
	if err != nil {
		t.Fatal(err)
	}
	session, err := greet(t.Context(), near, at, &config, &tlsWitness{})
	if err != nil || session.info.PayloadMax != 1000 {
		t.Fatalf("%+v, %v", session, err)
	}
	wg.Wait()
	o := <-said
	signature, err := base64.RawURLEncoding.DecodeString(o.Signature)
	public, _ := hex.DecodeString(testPublic)
	if err != nil || o.JWT != "the.user.token" || !ed25519.Verify(public, []byte("abc"), signature) {
		t.Errorf("%+v, %v", o, err)
	}
}

// What somebody on the way slips in before TLS is not taken for what the server says under it.
func TestNothingBeforeTLS(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer far.Close()
		fmt.Fprintf(far, "INFO {\"tls_required\":true}\r\nINFO {}\r\n")
	})
	config := Config{URL: "tls://there", Buffers: NewBuffers(0)}
	at, err := url.Parse(config.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = greet(guarded(t), near, at, &config, &tlsWitness{})
	wantError(t, err, errProtocol, "between INFO and TLS")
	wg.Wait()
}
