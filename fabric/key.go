package fabric

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"gradbus/internal/regular"
)

// Key is the credential of a member: an nkey, with which a connection signs what the server asks it to. A server knows
// its public half only.
type Key struct {
	pair   nkeys.KeyPair
	public string
}

// keyBytesMax bounds a file with a seed, which has some 60 bytes.
const keyBytesMax = 4 << 10

// NewKey draws a key.
func NewKey() (*Key, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	return keyOf(pair)
}

// ReadKey reads the seed of a key from a file.
func ReadKey(path string) (*Key, error) {
	text, err := regular.Read(path, keyBytesMax)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	k, err := parseSeed(bytes.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("credentials %s: no seed of a member's key (%w): ps member new writes one", path, err)
	}
	return k, nil
}

func parseSeed(text []byte) (*Key, error) {
	pair, err := nkeys.FromSeed(text)
	if err != nil {
		return nil, err
	}
	k, err := keyOf(pair)
	if err == nil && !nkeys.IsValidPublicUserKey(k.public) {
		err = errors.New("a key of something else")
	}
	return k, err
}

func keyOf(pair nkeys.KeyPair) (*Key, error) {
	public, err := pair.PublicKey()
	return &Key{pair, public}, err
}

// Public returns the public half, which begins with U.
func (k *Key) Public() string { return k.public }

// Seed returns the secret half, which begins with SU.
func (k *Key) Seed() (string, error) {
	seed, err := k.pair.Seed()
	return string(seed), err
}

// CheckPublicKey returns an error if a text is no public half of a member's key.
func CheckPublicKey(text string) error {
	if !nkeys.IsValidPublicUserKey(text) {
		return errors.New("key: want the public half of a key, which begins with U") // it may be a seed
	}
	return nil
}

// option authenticates a connection of nats.go by the key.
func (k *Key) option() nats.Option { return nats.Nkey(k.public, k.pair.Sign) }

// signed reports whether a signature of a nonce, as a client sends it, is of a public key.
func signed(public, nonce, signature string) bool {
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || nonce == "" {
		return false
	}
	key, err := nkeys.FromPublicKey(public)
	return err == nil && nkeys.IsValidPublicUserKey(public) && key.Verify([]byte(nonce), sig) == nil
}
