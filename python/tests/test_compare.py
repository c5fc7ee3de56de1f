"""The comparison of python/bench runs, in small: every way that needs no server trains the same model."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"


def test_ways_train_one_model() -> None:
    pytest.importorskip("numpy")
    small = "--rounds 1 --steps 3 --warmup 2 --distinct 5 --batch 64 --smaller 1000 --ways ddp,plain,local --json"
    made = subprocess.run(
        [sys.executable, str(BENCH / "compare.py"), *small.split()], capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr
    (found,) = json.loads(made.stdout)["rounds"]
    assert set(found) == {"ddp", "plain", "local"}
    for way, figures in found.items():
        assert figures["samples_per_second"] > 0, way
        assert 0.3 < figures["loss"] < 0.9, (way, figures)
    # Rows begin at random numbers of their own within 0.01, which at a rate of 0.01 moves the loss by less.
    assert abs(found["plain"]["loss"] - found["local"]["loss"]) < 0.02
