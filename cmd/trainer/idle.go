package main

import (
	"slices"

	"github.com/spf13/pflag"

	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/internal/gpu"
	"gradbus/schema"
)

// aside is what a workload's command does in place of training, and the flags that this takes.
type aside struct {
	on    func() bool
	takes []string
	why   string // what the others are, and what would be right
}

// always are the flags that mean the same whatever a command does. A kernel library is among them, since it comes from
// the environment to programs that compute nothing, too.
var always = []string{"help", "version", "events", config.FileFlag, "log-format", "log-level", "kernel-library"}

// asking is that a saved model is asked; more are the flags that this workload's takes besides.
func (o *common) asking(more ...string) aside {
	return aside{o.asks, append(more, "load", "predict", "json"),
		"it is of training, and --predict asks a model that is there: give one of the two"}
}

// dumping is that the data is written to a file, which these flags say.
func dumping(file *string, more ...string) aside {
	return aside{func() bool { return *file != "" }, append(more, "dump"),
		"it is of training, and --dump writes the data and trains nothing: give one of the two"}
}

// idle are the flags that change nothing as they are.
func (o *common) idle(set *pflag.FlagSet) (rules []config.Idle) {
	for _, a := range o.asides {
		rule := config.Idle{When: a.on(), Why: a.why}
		set.VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(a.takes, f.Name) && !slices.Contains(always, f.Name) {
				rule.Flags = append(rule.Flags, f.Name)
			}
		})
		rules = append(rules, rule)
	}
	if o.own != nil {
		rules = append(rules, o.own()...)
	}
	watched := o.gpu.Takes(o.backend) || o.gpu.Mode == string(gpu.Require)
	shardsAlone := !o.shared.Manifest("").Plan().Reduces(schema.ByTrainers)
	return append(append(rules, o.local.idle()...),
		config.Idle{When: shardsAlone, Flags: connect.Between,
			Why: "trainers that send to shards alone listen nowhere: want --reduce trainers with it"},
		config.Idle{When: shardsAlone, Flags: []string{"save-every"},
			Why: "a ps saves versions of the job: give it --checkpoint-dir, or want --reduce trainers with it"},
		config.Idle{When: o.save == "", Flags: []string{"save-every"}, Why: "nothing is saved: want --save with it"},
		config.Idle{When: !watched, Flags: []string{"gpu-expected", "gpu-state", "gpu-library"},
			Why: "no GPU is used here: want --gpu-use with it, or --backend cuda"})
}
