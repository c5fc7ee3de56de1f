"""The comparison of python/bench runs, in small: every way that needs no server trains the same model."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Dict

import pytest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"


def compared(*more: str) -> Dict[str, Dict[str, float]]:
    """The figures of one small round by way."""
    pytest.importorskip("numpy")
    small = "--rounds 1 --steps 3 --warmup 2 --distinct 5 --batch 64 --smaller 1000 --json"
    made = subprocess.run(
        [sys.executable, str(BENCH / "compare.py"), *small.split(), *more], capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr
    (found,) = json.loads(made.stdout)["rounds"]
    return dict(found)


def test_layers_on_a_device() -> None:
    """cpu:0 is the processor by another name: batches and pooled rows are brought to it as to a GPU. The module of
    gradbus's tables has another name there, on which the rows' first values depend; see below for what that moves."""
    here, there = (compared("--ways", "plain,local", "--device", device) for device in ("cpu", "cpu:0"))
    assert here["plain"]["loss"] == there["plain"]["loss"]
    assert abs(here["local"]["loss"] - there["local"]["loss"]) < 0.02


def test_ways_train_one_model() -> None:
    found = compared("--ways", "ddp,plain,local")
    assert set(found) == {"ddp", "plain", "local"}
    for way, figures in found.items():
        assert figures["samples_per_second"] > 0, way
        assert 0.3 < figures["loss"] < 0.9, (way, figures)
    # Rows begin at random numbers of their own within 0.01, which at a rate of 0.01 moves the loss by less.
    assert abs(found["plain"]["loss"] - found["local"]["loss"]) < 0.02


@pytest.mark.parametrize("workers", ["0", "1"])
def test_loaders(workers: str) -> None:
    found = compared("--ways", "dataloader,laneloader", "--workers", workers)
    assert all(found[way]["samples_per_second"] > 0 for way in ("dataloader", "laneloader"))
