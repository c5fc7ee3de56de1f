// Package saving is the flags of where and how often versions of jobs are written down, which a ps and a trainer have.
//
// The package knows flags and checkpoint.Policy, and nothing of who writes. A newcomer may add a flag here if both
// programs are to have it.
package saving

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"gradbus/checkpoint"
	"gradbus/internal/config"
)

// Names are the names of the flags.
var Names = []string{"checkpoint-dir", "checkpoint-every", "checkpoint-keep"}

// Flags are the flags, and what they say.
type Flags struct {
	policy checkpoint.Policy
	every  string
}

// Add adds the flags. who says whose versions are written.
func (f *Flags) Add(set *pflag.FlagSet, who string) {
	set.StringVar(&f.policy.Dir, "checkpoint-dir", "", "`folder` that "+who)
	set.StringVar(&f.every, "checkpoint-every", "10s",
		"`interval` between two versions that are written: a time, as 10s, or a number of batches, as 500")
	set.IntVar(&f.policy.Keep, "checkpoint-keep", checkpoint.KeepMin,
		"`number` of checkpoints of a job that stay, two at least; older ones are removed")
}

// Idle are the flags that say nothing without the folder.
func (f *Flags) Idle() config.Idle {
	return config.Idle{When: f.policy.Dir == "", Flags: Names[1:],
		Why: "nothing is written: want --checkpoint-dir with it"}
}

// Policy is what the flags say.
func (f *Flags) Policy() (checkpoint.Policy, error) {
	p := f.policy
	if err := p.SetInterval(f.every); err != nil {
		return p, fmt.Errorf("checkpoint-every %w", err)
	}
	return p, nil
}

// Dir is the folder.
func (f *Flags) Dir() string { return f.policy.Dir }

// Args are the flags as another process of the same program is given them; none without a folder.
func (f *Flags) Args() []string {
	if f.policy.Dir == "" {
		return nil
	}
	return []string{"--checkpoint-dir", f.policy.Dir, "--checkpoint-every", f.every, "--checkpoint-keep",
		strconv.Itoa(f.policy.Keep)}
}
