#!/usr/bin/python3
"""Microseconds a step that the Python package costs, of a model so small that nothing else counts.

    python/bench/layer.py
    python/bench/layer.py --tables 26 --collection

A step of a job within the process has three parts: PyTorch's own forward and backward pass; the calls of the C library,
in which everything of the session happens, timed one by one; and the Python package, which is the rest. PyTorch's part
is measured with the same model and tables that are ordinary modules. Each figure is that of the median step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))  # behind a gradbus that is installed

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gradbus  # noqa: E402

DIM, ROWS, BATCH = 4, 64, 4


class Model(nn.Module):
    def __init__(self, tables: List[nn.Module]) -> None:
        super().__init__()
        self.tables, self.dense = nn.ModuleList(tables), nn.Linear(DIM * len(tables), 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(torch.cat([table(ids) for table in self.tables], 1))


class Collected(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.names = [f"t{i}" for i in range(n)]
        self.bags = gradbus.EmbeddingBagCollection(
            {name: gradbus.EmbeddingBag(ROWS, DIM, mode="sum") for name in self.names}
        )
        self.dense = nn.Linear(DIM * n, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.bags({name: ids for name in self.names}).values())


def steps(count: int, step: Callable[[], Any]) -> List[float]:
    """Microseconds of each of so many steps."""
    out = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        out.append((time.perf_counter() - begin) * 1e6)
    return out


class Timed:
    """The library's calls, with the seconds that each has taken."""

    CALLS = ("begin", "distinct", "lookup", "bag_gradient", "check_offsets", "commit", "finish", "resume", "patience")

    def __init__(self, library: Any) -> None:
        self.seconds = 0.0
        for name in self.CALLS:
            setattr(library, name, self.timed(getattr(library, name)))

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.perf_counter() - begin

        return made


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tables", type=int, default=1)
    p.add_argument("--collection", action="store_true", help="an EmbeddingBagCollection in place of a module a table")
    p.add_argument("--steps", type=int, default=2000)
    o = p.parse_args()
    torch.set_num_threads(1)
    ids = torch.randint(0, ROWS, (BATCH, 3))

    plain = Model([nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in range(o.tables)])

    def passes() -> None:
        plain.zero_grad()
        plain(ids).sum().backward()

    session = gradbus.local("layer")
    model = (
        Collected(o.tables)
        if o.collection
        else Model([gradbus.EmbeddingBag(ROWS, DIM, mode="sum", name=f"t{i}") for i in range(o.tables)])
    )
    optimizer = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.01), dense=gradbus.SGD(0.01))
    calls = Timed(session.native)
    library: List[float] = []

    def trained() -> None:
        calls.seconds = 0.0
        optimizer.zero_grad()
        model(ids).sum().backward()
        optimizer.step()
        library.append(calls.seconds * 1e6)

    found: Dict[str, float] = {}
    steps(200, passes), steps(200, trained)
    library.clear()
    found["PyTorch's passes"] = statistics.median(steps(o.steps, passes))
    whole = steps(o.steps, trained)
    found["the library's calls"] = statistics.median(library)
    found["a step"] = statistics.median(whole)
    found["the package"] = statistics.median([w - c for w, c in zip(whole, library)]) - found["PyTorch's passes"]
    print(
        f"torch {torch.__version__}, {o.tables} table(s){' in a collection' if o.collection else ''}, {o.steps} steps; "
        "microseconds of the median step"
    )
    for name, value in found.items():
        print(f"{name:20} {value:8.1f}")
    session.close()


if __name__ == "__main__":
    main()
