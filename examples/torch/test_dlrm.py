"""dlrm.py: its models against their formulas, and that it learns."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import criteo
import dlrm
from batches import Batches

FOLDER = pathlib.Path(dlrm.__file__).resolve().parent
SAMPLE = FOLDER / "testdata" / "criteo.tsv"


def run(*arguments):
    """What dlrm.py prints, with tables of 1000 rows and one thread."""
    flags = [str(SAMPLE), "--table-rows", "1000", "--batch", "64", "--threads", "1", *arguments]
    return dlrm.run(dlrm.flags().parse_args(flags))


def test_dlrm_dots_every_pair_once():
    model = dlrm.DLRM(dense=3, features=2, dim=4, bottom=(), top=())
    dense, embedded = torch.randn(5, 3), torch.randn(5, 2, 4)
    x = torch.relu(model.bottom[0](dense))
    a, b = embedded.unbind(1)
    dots = [(p * q).sum(1, keepdim=True) for p, q in ((a, x), (b, x), (b, a))]
    want = model.top[0](torch.cat([x, *dots], 1)).squeeze(1)
    torch.testing.assert_close(model(dense, embedded), want)


def test_dcnv2_crosses_with_its_input():
    model = dlrm.DCNv2(dense=3, features=2, dim=4, crosses=2, top=())
    dense, embedded = torch.randn(5, 3), torch.randn(5, 2, 4)
    x0 = torch.cat([dense, embedded[:, 0], embedded[:, 1]], 1)
    x1 = x0 * (x0 @ model.crosses[0].weight.T + model.crosses[0].bias) + x0
    x2 = x0 * (x1 @ model.crosses[1].weight.T + model.crosses[1].bias) + x1
    torch.testing.assert_close(model(dense, embedded), model.top[0](x2).squeeze(1))


@pytest.mark.parametrize("model", ["dlrm", "dcnv2"])
def test_it_learns(model):
    few, more = (run("--model", model, "--epochs", epochs) for epochs in ("1", "3"))
    assert 0 < few["test_rows"] == 142 and few["rows"] == 858 and more["rows"] == 3 * 858
    assert more["train_loss"] < few["train_loss"] < 0.75


def test_a_missing_file_is_one_line():
    done = subprocess.run([sys.executable, FOLDER / "dlrm.py", "/nowhere.tsv"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "/nowhere.tsv" in done.stderr


def one_line(data, *arguments):
    """What dlrm.py says of a file or folder that it cannot take."""
    done = subprocess.run([sys.executable, FOLDER / "dlrm.py", data, *arguments], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("lines", [0, 1, 6])
def test_a_file_of_too_few_lines_is_named(tmp_path, lines):
    file = tmp_path / "few.tsv"
    file.write_text("".join(SAMPLE.read_text().splitlines(keepends=True)[:lines]))
    assert f"{file}: {lines} lines: want 7 or more" in one_line(file)
    folder = tmp_path / "columns"
    if lines:
        criteo.prepare(file, folder)
        assert f"{folder}: {lines} lines: want 7 or more" in one_line(folder)


def test_a_damaged_folder_is_named(tmp_path):
    folder = tmp_path / "columns"
    criteo.prepare(SAMPLE, folder)
    cut = folder / "labels.bin"
    cut.write_bytes(cut.read_bytes()[:5])
    assert str(cut) in one_line(folder)
    for index in ("{", "[]", '{"arrays": {}}', '{"arrays": {}, "notes": {"criteo": true}}'):
        (folder / "columns.json").write_text(index)
        assert str(folder) in one_line(folder)


def test_one_label_has_no_auc(tmp_path):
    file = tmp_path / "ones.tsv"
    lines = SAMPLE.read_text().splitlines(keepends=True)[:14]
    file.write_text("".join("1" + line[1:] for line in lines))
    command = [sys.executable, FOLDER / "dlrm.py", file, "--table-rows", "10", "--threads", "1", "--log", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["auc"] is None and found["log_loss"] > 0 and found["test_rows"] == 2


def said(*arguments, **environment):
    """(status, standard output, standard error) of dlrm.py on the sample, as a process of its own."""
    command = [sys.executable, FOLDER / "dlrm.py", SAMPLE, "--table-rows", "1000", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch", "0"], "argument --batch: 0: want at least 1"),
        (["--layers", "local", "--lanes", "2", "--embeddings", "gradbus"], "want one trainer and one lane"),
        (["--server", "nats://127.0.0.1:1"], "--server is for --embeddings gradbus"),
        (["--server", "", "--embeddings", "gradbus"], "server '': want an address such as nats://127.0.0.1:4222"),
        (["--server", "nats://127.0.0.1:1", "--embeddings", "gradbus"], "no gradbus server at 127.0.0.1:1"),
    ],
)
def test_a_wrong_flag_is_no_traceback(arguments, words):
    status, out, err = said(*arguments)
    assert status != 0 and out == "" and words in err and "Traceback" not in err


def test_a_folder_of_something_else_is_named(tmp_path):
    with pytest.raises(ValueError, match="no columns.json there: want a folder that debfiles.py or criteo.py wrote"):
        dlrm.opened(dlrm.flags().parse_args([str(tmp_path)]))


@pytest.mark.parametrize(
    ("model", "layers", "lr", "environment"),
    [
        ("dlrm", "adagrad", "0.0078125", {"ATEN_CPU_CAPABILITY": "default"}),
        ("dcnv2", "local", "0.001", {}),
    ],
)
def test_weights_have_the_bits_of_plain_pytorch(model, layers, lr, environment):
    """After three epochs of torch.optim's stock optimizers, by servers and without, every layer and every row.

    Products of rates that are powers of two are exact, so that it does not matter whether a product and a sum are
    rounded once or twice. The square in the sums of a layer is such a product, too: PyTorch's instructions for any
    processor round it.
    """
    flags = ["--model", model, "--batch", "64", "--epochs", "3", "--threads", "1", "--layers", layers]
    flags += ["--lr", lr, "--table-lr", "0.03125"]
    both = []
    for embeddings in ("torch", "gradbus"):
        status, out, err = said(*flags, "--embeddings", embeddings, **environment)
        assert status == 0, err
        assert "858 rows to train on and 142 to test; 14 batches an epoch; 26 tables with 26000 rows in all" in err
        both.append(json.loads(out))
    plain, ours = both
    assert ours["weights"] == plain["weights"] and len(plain["weights"]) == 64
    assert (ours["auc"], ours["log_loss"]) == (plain["auc"], plain["log_loss"]) and plain["auc"] > 0.6
    assert plain["train_loss"] < 0.5


def test_a_sparse_gradient_is_added_up_in_the_order_of_its_ids():
    ids, values = torch.tensor([[3, 1, 3, 3]]), torch.tensor([[2.0**24], [5.0], [1.0], [1.0]])
    got = dlrm.coalesced(torch.sparse_coo_tensor(ids, values, (5, 1)))
    assert got.is_coalesced() and got.indices().tolist() == [[1, 3]]
    assert got.values().tolist() == [[5.0], [2.0**24]]  # each 1 is lost; added to each other first, they are not
    none = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), torch.empty((0, 1)), (5, 1))
    assert dlrm.coalesced(none) is None


def trained(a, data, make):
    """The model that `make` gives tables, after an epoch, and the mean loss of that."""
    torch.manual_seed(1)
    above = dlrm.MODELS[a.model](data.dense, len(data.features), a.dim)
    with make(a) as holder:
        model = dlrm.Recommender(holder.tables(data.features, a.dim), above)
        optimizer = holder.optimizer(model)
        yield model, holder
        batches = Batches(data.train, a.batch, seed=1)
        yield dlrm.train(model, optimizer, dlrm.loader(batches, a, holder.order(len(batches))), 0)[2]
        yield dlrm.evaluate(model, dlrm.loader(Batches(data.test, a.batch), a))


def test_an_error_reaches_the_job(monkeypatch):
    said = []
    monkeypatch.setattr("gradbus.Session.abort", lambda session, reason: (said.append(reason), session.close()))
    monkeypatch.setattr(dlrm, "trained", lambda *_: (_ for _ in ()).throw(ValueError("no rows")))
    with pytest.raises(ValueError, match="no rows"):
        dlrm.run(dlrm.flags().parse_args([str(SAMPLE), "--embeddings", "gradbus"]))
    assert said == ["ValueError: no rows"]


def test_gradbus_trains_as_plain_pytorch_does():
    """From the same rows, on the same batches, by the same optimizers: what differs is the order of sums.

    Measured: 3e-8 in rows, 1e-7 in parameters. With sums of Adagrad that begin at 0 it is 4e-5 in rows: the first step
    of a value then has the size of the rate, so that rounding decides where a gradient is nearly 0.
    """
    a = dlrm.flags().parse_args([str(SAMPLE), "--batch", "64", "--table-rows", "500", "--bound", "0.01"])
    data = dlrm.opened(a)
    theirs, ours = trained(a, data, dlrm.Torch), trained(a, data, dlrm.Gradbus)
    plain, (model, holder) = next(theirs)[0], next(ours)
    model.eval()
    for feature, bag in plain.tables.bags.items():
        rows = holder.session.lookup(feature, torch.arange(500))
        assert -0.01 <= rows.min() < -0.009 and 0.009 < rows.max() < 0.01
        bag.weight.data.copy_(rows)
    assert next(ours) == pytest.approx(next(theirs), rel=1e-6)
    for feature, bag in plain.tables.bags.items():
        torch.testing.assert_close(
            holder.session.lookup(feature, torch.arange(500)), bag.weight.data, atol=1e-6, rtol=0
        )
    assert next(ours) == pytest.approx(next(theirs), rel=1e-5)
