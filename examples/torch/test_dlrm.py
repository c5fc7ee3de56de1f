"""dlrm.py: its models against their formulas, and that it learns."""
import json
import pathlib
import subprocess
import sys

import pytest
import torch

import dlrm

FOLDER = pathlib.Path(dlrm.__file__).resolve().parent
SAMPLE = FOLDER / "testdata" / "criteo.tsv"


def run(*arguments):
    """What dlrm.py prints, with tables of 1000 rows and one thread."""
    command = [sys.executable, FOLDER / "dlrm.py", SAMPLE, "--table-rows", "1000", "--batch", "64", "--threads", "1"]
    return json.loads(subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE).stdout)


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
