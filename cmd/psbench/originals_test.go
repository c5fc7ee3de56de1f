package main

import (
	"io"
	"strings"
	"testing"
)

// Flags and values of the original programs are answered by those that stand for them here.
func TestNamesOfTheOriginals(t *testing.T) {
	for line, want := range map[string]string{
		"average --ntrainer 2":                              "did you mean --trainers?",
		"average --nserver 1":                               "did you mean --servers?",
		"average --ncudatrainer 1":                          "did you mean --backend?",
		"average --ncudaserver 1":                           "did you mean --server-backend?",
		"average --ddp_hook rpc_hook":                       "did you mean --hook?",
		"average --hook rpc_hook":                           "did you mean --hook rpc?",
		"average --hook allreduce_hook":                     "did you mean --hook allreduce?",
		"average --hook hybrid_hook":                        "did you mean --hook hybrid?",
		"average --hook sparse_rpc":                         "did you mean --hook sparse-rpc?",
		"average --hook sparse_rpc_hook":                    "did you mean --hook sparse-rpc?",
		"average --server AverageParameterServer":           "did you mean --server-kind average?",
		"average --server AverageBatchParameterServer":      "did you mean --server-kind average-batch?",
		"average --server-kind AverageParameterServer":      "did you mean --server-kind average?",
		"average --server-kind AverageBatchParameterServer": "did you mean --server-kind average-batch?",
		"average --torch_seed 0":                            "did you mean --seed?",
		"average --cuda_seed 0":                             "did you mean --seed?",
		"average --batch_size 10":                           "did you mean --trainer-batch?",
		"average --rpc_timeout 30":                          "did you mean --rpc-timeout?",
		"average --preprocess_data preprocess_dummy_data":   "did you mean --preprocess?",
		"average --create_criterion cel":                    "did you mean --criterion?",
		"average --iteration_step basic_iteration_step":     "did you mean --iteration-step?",
		"average --data DummyData":                          "did you mean --input",
		"average --data_config_path data.json":              "did you mean --input?",
		"average --model_config_path model.json":            "did you mean --model?",
		"average --master_addr localhost":                   "did you mean --server?",
		"hybrid --number-trainers 8":                        "did you mean --trainers?",
		"hybrid --number-ps 8":                              "did you mean --servers?",
		"hybrid --number-embeddings 300":                    "did you mean --embeddings?",
		"hybrid --embedding-dim 64":                         "did you mean --dim?",
		"hybrid --warmup-cycles 5":                          "did you mean --warmup?",
		"fabric --dtype float16":                            "--dtype is gone: its measures are of float32 alone",
		"hosted --world_size 3":                             "did you mean --trainers?",
		"hosted --rank 1":                                   "did you mean --here?",
		"hosted --num_gpus 1":                               "did you mean --gpus?",
		"hosted --master_port 29500":                        "did you mean --server?",
	} {
		c := command()
		c.SetArgs(strings.Fields(line))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
