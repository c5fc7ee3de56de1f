package machine

import (
	"runtime"
	"testing"
)

func TestThis(t *testing.T) {
	m := This()
	if m.CPU == "" || m.Cores != runtime.NumCPU() || m.Kernel == "" || m.Go != runtime.Version() {
		t.Errorf("%+v", m)
	}
}
