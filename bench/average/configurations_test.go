package average

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestDefaultConfigurations(t *testing.T) {
	m, err := loadModel("")
	if want := (modelConfig{1024, 1024, 1024, 1024, 8, false}); err != nil || m != want {
		t.Errorf("model %+v, %v: want %+v", m, err, want)
	}
	d, err := loadData("")
	if want := (dataConfig{1024, 1024, 1024, 20}); err != nil || d != want || d.ids() != 819 {
		t.Errorf("data %+v with %d ids, %v: want %+v with 819", d, d.ids(), err, want)
	}
	values := 0
	parameters, tables := m.tensors()
	for _, p := range parameters {
		values += p.Elements()
	}
	if values != 9445376 || len(tables) != 0 {
		t.Errorf("%d values in parameters, %d tables: want 9445376 and none", values, len(tables))
	}
	for _, where := range []string{"DummyModelSparse", "configurations/model_configurations.json:DummyModelSparse"} {
		if m, err = loadModel(where); err != nil || !m.Sparse || m.NumEmbeddings != 1024 {
			t.Errorf("%s: sparse model %+v, %v", where, m, err)
		}
	}
	if small, err := loadData("Small"); err != nil || small.MaxVal != 64 {
		t.Errorf("small data %+v, %v", small, err)
	}
	parameters, tables = m.tensors()
	if p := parameters[0]; p.Name != "dense.0.weight" || len(tables) != 1 || tables[0].Name != embeddingName ||
		!tables[0].Replicated {
		t.Errorf("first parameter %+v, tables %+v", p, tables)
	}
}

func TestConfigurationFiles(t *testing.T) {
	const fields = `{"max_val": 8, "sample_count": 4, "sample_length": 2, "sparsity_percentage": 0}`
	const entry = `{"data_class": "DummyData", "configurations": ` + fields + `}`
	for _, c := range []struct{ text, id, want string }{
		{fields, "", ""},
		{entry, "", ""},
		{`{"mine": ` + entry + `}`, "", ""},
		{`{"a": ` + entry + `, "DummyData": ` + entry + `}`, "", ""},
		{`{"a": ` + entry + `, "b": ` + entry + `}`, ":b", ""},
		{`{"a": ` + entry + `, "b": ` + entry + `}`, "", "want one of its 2 configurations"},
		{`{"a": ` + entry + `, "b": ` + entry + `}`, ":c", `data "c": want one of a, b`},
		{fields, ":a", `data "a": want no id`},
		{`[1]`, "", "[1]: want an object of JSON"},
		{``, "", "line 1: "},
		{"{\n\"max_val\": 8,,}", "", "line 2: "},
		{`{"max_val": 8}`, "", "sample_count is missing: want a whole number, 1 to 16777216"},
		{strings.Replace(fields, "8", `"8"`, 1), "", `max_val "8": want a whole number`},
		{strings.Replace(fields, "8", `8.5`, 1), "", `max_val 8.5: want a whole number`},
		{strings.Replace(fields, "8", `0`, 1), "", `max_val 0: want a whole number, 1 to`},
		{strings.Replace(fields, "8", `1e99`, 1), "", `max_val 1e99: want a whole number`},
		{strings.Replace(fields, "max_val", "max_value", 1), "", "max_value: no such field: want max_val, sample_count"},
		{strings.Replace(fields, ": 0}", ": 100}", 1), "", "sparsity_percentage 100: want a whole number, 0 to 99"},
		{strings.Replace(fields, ": 0}", ": 99}", 1), "", "sparsity_percentage 99: want less: of 8 ids none is left"},
		{strings.Replace(fields, "4", "16777216", 1) + " ", "", ""},
		{strings.Replace(strings.Replace(fields, "4", "16777216", 1), "2", "1024", 1), "", "sample_count"},
		{`{"data_class": "Other", "configurations": {}}`, "", `data_class "Other": want "DummyData"`},
		{`{"data_class": "DummyData"}`, "", "configurations: missing"},
		{`{"data_class": "DummyData", "configurations": 3}`, "", "3: want an object"},
		{`{"data_class": "DummyData", "configurations": ` + fields + `, "more": 1}`, "",
			"more: want data_class and configurations alone"},
	} {
		_, err := loadData(file(t, "data.json", c.text) + c.id)
		checkError(t, c.text+c.id, err, c.want)
	}
	_, err := loadData("/nowhere/data.json")
	checkError(t, "no file", err,
		`data "/nowhere/data.json": want DummyData, Small, or a file of configurations, or FILE:ID: no such file or directory`)
	_, err = loadModel(t.TempDir())
	checkError(t, "folder", err, "is a directory")
	_, err = loadModel(
		file(t, "m.json",
			`{"num_embeddings": 8, "embedding_dim": 4, "dense_input_size": 8, "dense_output_size": 8, "dense_layers_count": 2, "sparse": false}`))
	checkError(t, "dims", err, "embedding_dim 4: want dense_input_size, 8")
	_, err = loadModel(
		file(t, "m.json",
			`{"num_embeddings": 8, "embedding_dim": 8, "dense_input_size": 8, "dense_output_size": 4, "dense_layers_count": 2, "sparse": false}`))
	checkError(t, "layers", err, "dense_output_size 4: want dense_input_size, 8: the next of 2 layers takes it")
	_, err = loadModel(
		file(t, "m.json",
			`{"num_embeddings": 8, "embedding_dim": 8, "dense_input_size": 8, "dense_output_size": 8, "dense_layers_count": 2, "sparse": 1}`))
	checkError(t, "sparse", err, "sparse 1: want true or false")
}

// Every error is one line with field, value and what would be right.
func TestBadSettings(t *testing.T) {
	for _, c := range []struct {
		change func(c *Config)
		want   string
	}{
		{func(c *Config) { c.Trainers = 0 }, "trainers 0: want 1 to 256"},
		{func(c *Config) { c.Servers = 65 }, "servers 65: want 0 to 64"},
		{func(c *Config) { c.Servers = -1 }, "servers -1: want 0 to 64"},
		{func(c *Config) { c.Servers = 0 }, "servers 0: want 1 to 64 with hook rpc"},
		{func(c *Config) { c.Servers, c.Hook = 0, "sparse-rpc" }, "servers 0: want 1 to 64 with hook sparse-rpc"},
		{func(c *Config) { c.Mean = "trainers" }, `mean "trainers": want samples or lanes`},
		{func(c *Config) { c.Epochs = 0 }, "epochs 0: want 1 to"},
		{func(c *Config) { c.BatchSize = -1 }, "trainer-batch -1: want 1 to"},
		{func(c *Config) { c.Runs = 0 }, "runs 0: want"},
		{func(c *Config) { c.Server = "mean" }, `server-kind "mean": want average or average-batch`},
		{func(c *Config) { c.Hook = "nccl" }, `hook "nccl": want allreduce or hybrid or rpc or sparse-rpc`},
		{func(c *Config) { c.Criterion = "mse" }, `criterion "mse": want cel or nll`},
		{func(c *Config) { c.Preprocess = "x" }, `preprocess "x": want preprocess_dummy_data or sort_ids`},
		{func(c *Config) { c.IterationStep = "x" },
			`iteration-step "x": want basic_iteration_step or sequential_iteration_step`},
		{func(c *Config) { c.Device = "tpu" }, `backend "tpu": want cpu or cuda`},
		{func(c *Config) { c.ServerDevice = "tpu" }, `server-backend "tpu": want cpu or cuda`},
		{func(c *Config) { c.Timeout = time.Millisecond }, "rpc-timeout 1ms: want 1s to 1h0m0s"},
		{func(c *Config) { c.BucketBytes = 100 }, "bucket-bytes 100: want 4096 to 1073741824"},
		{func(c *Config) { c.LR = -1 }, "lr -1: want 0 to 3.4e38"},
		{func(c *Config) { c.Way.Server = "x" }, `server "x": want an address`},
		{func(c *Config) { c.Here = 1 }, "here 1: only with --server"},
		{func(c *Config) { c.Job = "A" }, "A"},
		{func(c *Config) { c.CSV = "/proc/x" }, `csv "/proc/x": want a folder that can be written`},
		{func(c *Config) { c.Trace = "/nowhere/x" }, `trace "/nowhere/x": want a file that can be written`},
		{func(c *Config) { c.DataFile = "" }, "data: max_val 1024: want at most num_embeddings of the model, 12"},
		{func(c *Config) { c.ModelFile = "/nowhere" }, `model "/nowhere": want DummyModel, DummyModelSparse, Small, or a file`},
	} {
		config := small(t, 2, "rpc", true)
		c.change(&config)
		_, err := Measure(testContext(t), config, io.Discard, io.Discard)
		checkError(t, c.want, err, c.want)
	}
}

// checkError wants an error of one line that holds a text; an empty text wants none.
func checkError(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "":
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case err == nil:
		t.Errorf("%s: no error, want %q", what, want)
	case !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n"):
		t.Errorf("%s: error %q, want one line with %q", what, err, want)
	}
}
