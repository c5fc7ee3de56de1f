#!/usr/bin/python3
"""The budget of a step of a job within the process, in microseconds, beside plain PyTorch.

    python/bench/layer.py                           # of a model so small that nothing but the package counts
    python/bench/layer.py --tables 26 --collection
    python/bench/layer.py --towers                  # two towers with three tables of dim 32, batches of 1024

A step has three parts: PyTorch's own forward and backward pass; the calls of the C library, in which everything of the
session happens, timed one by one; and the Python package, which is the rest. PyTorch's part is measured with the same
model and tables that are ordinary modules, and so is its optimizer's step, which the library does here. Each figure is
that of the median step, over rounds in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

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


class Towers(nn.Module):
    """A tower of users, one of films and their genres, and how well they fit, in the mean."""

    ROWS = {"users": 200_000, "films": 60_000, "genres": 1_000}

    def __init__(self, table: Callable[[str, int], nn.Module]) -> None:
        super().__init__()
        for name, rows in self.ROWS.items():
            setattr(self, name, table(name, rows))
        self.left = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64))
        self.right = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, ids: Tensor) -> Tensor:
        film = torch.cat([self.films(ids[1]), self.genres(ids[2])], 1)
        return (self.left(self.users(ids[0])) * self.right(film)).sum(1).sigmoid().mean(0, keepdim=True)


class Timed:
    """The library's calls, with the seconds that each has taken in a step."""

    CALLS = ("begin", "distinct", "lookup", "coalesce", "bag_gradient", "check_offsets", "commit", "finish", "dense")

    def __init__(self, library: Any) -> None:
        self.seconds: Dict[str, float] = {}
        self.found: Dict[str, List[float]] = {}
        self.last = ""  # which a resume goes on with
        for name in (*self.CALLS, "resume"):
            setattr(library, name, self.timed(name, getattr(library, name)))

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            if name != "resume":
                self.last = name
            begin = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds[self.last] = self.seconds.get(self.last, 0.0) + time.perf_counter() - begin

        return made

    def end_step(self) -> None:
        for name in self.CALLS:
            self.found.setdefault(name, []).append(self.seconds.pop(name, 0.0) * 1e6)


def models(o: argparse.Namespace) -> Tuple[nn.Module, nn.Module, Tensor]:
    """A model of plain PyTorch, the same with tables of gradbus, and a batch of ids."""
    if o.towers:
        rows = torch.tensor(list(Towers.ROWS.values())).unsqueeze(1)
        ids = (torch.rand(3, 1024) ** 2 * rows).long()
        plain: nn.Module = Towers(lambda name, rows: nn.Embedding(rows, 32, sparse=True))
        return plain, Towers(lambda name, rows: gradbus.Embedding(rows, 32, name=name)), ids
    ids = torch.randint(0, ROWS, (BATCH, 3))
    plain = Model([nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True) for _ in range(o.tables)])
    if o.collection:
        return plain, Collected(o.tables), ids
    return plain, Model([gradbus.EmbeddingBag(ROWS, DIM, mode="sum", name=f"t{i}") for i in range(o.tables)]), ids


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tables", type=int, default=1)
    p.add_argument("--collection", action="store_true", help="an EmbeddingBagCollection in place of a module a table")
    p.add_argument("--towers", action="store_true", help="two towers in place of a model that is nothing but tables")
    p.add_argument("--optimizer", choices=["sgd", "adagrad"], default="sgd")
    p.add_argument("--steps", type=int, default=400, help="of a round")
    p.add_argument("--rounds", type=int, default=5)
    o = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with gradbus.local("layer") as session:
        plain, model, ids = models(o)
        rule = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[o.optimizer](plain.parameters(), lr=0.01)
        own = {"sgd": gradbus.SGD, "adagrad": gradbus.Adagrad}[o.optimizer](0.01)
        optimizer = gradbus.Optimizer(model, session, embeddings=own, dense=own)
        calls = Timed(session.native)

        def passes() -> None:
            plain.zero_grad()
            plain(ids).sum().backward()

        def stepped() -> None:
            passes()
            rule.step()

        def trained() -> None:
            optimizer.zero_grad()
            model(ids).sum().backward()
            optimizer.step()
            calls.end_step()

        for step in passes, stepped, trained:
            steps(50, step)
        calls.found.clear()
        times: Dict[Callable[[], None], List[List[float]]] = {passes: [], stepped: [], trained: []}
        for _ in range(o.rounds):
            for step, found in times.items():
                found.append(steps(o.steps, step))
    alone, beside, whole = (statistics.median(sum(found, [])) for found in times.values())
    print(
        f"torch {torch.__version__}, {'two towers' if o.towers else f'{o.tables} table(s)'}"
        f"{' in a collection' if o.collection else ''}, {o.optimizer}, {o.rounds} rounds of {o.steps} steps; "
        "microseconds of the median step"
    )
    parts = {f"library: {name}": statistics.median(found) for name, found in calls.found.items()}
    rest = whole - alone - sum(parts.values())
    for name, value in {"PyTorch's passes": alone, **parts, "the package": rest, "a step": whole}.items():
        print(f"{name:22} {value:9.1f}")
    print(f"{'a step of PyTorch':22} {beside:9.1f}")
    ratios = [statistics.median(b) / statistics.median(w) for b, w in zip(times[stepped], times[trained])]
    print("speed : PyTorch, each round  " + " ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
