package fabric

import (
	"fmt"
	"slices"
	"time"
)

// busBucket is a bucket of a server on a Bus.
type busBucket struct {
	server   *busServer // its lock guards the fields below
	config   BucketConfig
	revision uint64
	bytes    int64
	values   map[string]busValue
	watches  []*Watch
}

type busValue struct {
	value    []byte
	revision uint64
	written  time.Time
}

// openBucket finds a bucket, or makes it.
func (s *busServer) openBucket(config BucketConfig) (*busBucket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return nil, fmt.Errorf("%w: %s", ErrLost, s.at)
	}
	if !s.config.Load().JetStream {
		return nil, fmt.Errorf("%w at %s", ErrNoJetStream, s.at)
	}
	b := s.buckets[config.Name]
	if b == nil {
		b = &busBucket{server: s, values: map[string]busValue{}}
		s.buckets[config.Name] = b
	}
	b.config = config
	return b, nil
}

// lookBucket returns a bucket; nil if there is none.
func (s *busServer) lookBucket(name string) (*busBucket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.up:
		return nil, fmt.Errorf("%w: %s", ErrLost, s.at)
	case s.config.Load().JetStream && s.buckets[name] != nil:
		return s.buckets[name], nil
	case !s.config.Load().JetStream:
		return nil, fmt.Errorf("%w at %s", ErrNoJetStream, s.at)
	}
	return nil, fmt.Errorf("%w at %s", ErrNoBucket, s.at)
}

// lock locks the server and removes expired keys. The caller unlocks the server, also after an error.
func (b *busBucket) lock() error {
	s := b.server
	s.mu.Lock()
	switch {
	case !s.up:
		return fmt.Errorf("%w: %s", ErrLost, s.at)
	case s.buckets[b.config.Name] != b: // the server was restarted
		return fmt.Errorf("%w at %s", ErrNoBucket, s.at)
	}
	if b.config.TTL == 0 {
		return nil
	}
	for key, v := range b.values {
		if time.Since(v.written) >= b.config.TTL {
			b.remove(key)
		}
	}
	return nil
}

func (b *busBucket) remove(key string) {
	b.bytes -= int64(len(key) + len(b.values[key].value))
	delete(b.values, key)
	b.tell(key, nil, false)
}

// tell assigns a revision to a change and applies it to all watches.
func (b *busBucket) tell(key string, value []byte, there bool) {
	b.revision++
	for _, w := range b.watches {
		w.apply(Entry{key, value, b.revision}, there)
	}
}

// anyRevision makes a write unconditional.
const anyRevision = ^uint64(0)

// write writes a value if the last write of the key had a revision; 0: if the key does not exist.
func (b *busBucket) write(key string, value []byte, last uint64) (uint64, error) {
	defer b.server.mu.Unlock()
	if err := b.lock(); err != nil {
		return 0, err
	}
	was, there := b.values[key]
	if last != anyRevision && was.revision != last {
		return 0, ErrKeyExists
	}
	more := int64(len(key) + len(value))
	if there {
		more -= int64(len(key) + len(was.value))
	}
	if b.config.BytesMax > 0 && b.bytes+more > b.config.BytesMax {
		return 0, fmt.Errorf("%w: the bucket has no room for %d bytes more", ErrLost, more)
	}
	b.bytes += more
	value = slices.Clone(value)
	b.tell(key, value, true)
	b.values[key] = busValue{value, b.revision, time.Now()}
	if b.config.TTL > 0 {
		time.AfterFunc(b.config.TTL, func() { _ = b.look() }) // removes the key and tells the watches
	}
	return b.revision, nil
}

func (b *busBucket) get(key string) (Entry, error) {
	defer b.server.mu.Unlock()
	if err := b.lock(); err != nil {
		return Entry{}, err
	}
	v, there := b.values[key]
	if !there {
		return Entry{}, ErrNoKey
	}
	return Entry{key, slices.Clone(v.value), v.revision}, nil
}

func (b *busBucket) delete(key string, last uint64) error {
	defer b.server.mu.Unlock()
	if err := b.lock(); err != nil {
		return err
	}
	if b.values[key].revision != last {
		return ErrKeyExists
	}
	b.remove(key)
	return nil
}

func (b *busBucket) look() error {
	defer b.server.mu.Unlock()
	return b.lock()
}

// watch copies all keys to a watch, and each later change.
func (b *busBucket) watch(w *Watch) error {
	s := b.server
	defer s.mu.Unlock()
	if err := b.lock(); err != nil {
		return err
	}
	for key, v := range b.values {
		w.entries[key] = Entry{key, v.value, v.revision}
	}
	w.revision = b.revision
	b.watches = append(b.watches, w)
	w.stop = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		b.watches = slices.DeleteFunc(b.watches, func(other *Watch) bool { return other == w })
	}
	return nil
}
