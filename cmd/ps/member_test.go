package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/fabric"
	"gradbus/ps/members"
)

// A new member has a seed that its user alone may read, and a line that a ps takes. Nothing is written twice.
func TestNewMember(t *testing.T) {
	folder := t.TempDir()
	file, seed := filepath.Join(folder, "members"), filepath.Join(folder, "a.key")
	n := newMember{role: "trainer", jobs: []string{"films", "books"}, file: file, credentials: seed}
	if err := n.run("a", io.Discard); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(seed)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info, err)
	}
	key, err := fabric.ReadKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	list, err := members.Read(file)
	if err != nil || list.Grant(key.Public(), "books/t0") == nil {
		t.Errorf("%v, %v: want the member in it", list, err)
	}
	if err := n.run("b", io.Discard); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("the seed of another member: %v", err)
	}
	n.credentials = filepath.Join(folder, "b.key")
	if err := n.run("a", io.Discard); err == nil {
		t.Error("two members have one name")
	}
	if after, err := members.Read(file); err != nil || !after.Equal(list) {
		t.Errorf("%v, %v: want the members as they were", after, err)
	}
}
