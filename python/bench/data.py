"""The model of examples/torch/dlrm.py, and batches for it: of debfiles, or of its shape without its data.

Every way of compare.py trains this model on these batches. What differs is where the embedding tables are.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Any, List, NamedTuple, Tuple

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "torch"))

from batches import Batch, Batches, Feature  # noqa: E402
from debfiles import Debfiles  # noqa: E402
from dlrm import DLRM, Collection, Recommender, Tables  # noqa: E402

__all__ = ["BOUND", "Batch", "Collection", "Feature", "Recommender", "Set", "Tables", "model", "moved", "opened"]

BOUND = 0.01  # rows begin uniform within it

# Rows, and ids a sample, of debfiles as prepared of bookworm.
SHAPE = [
    ("name", 3_533_791, 1.0),
    ("folders", 140_084, 5.7),
    ("extension", 10_504, 1.0),
    ("package", 64_724, 1.0),
    ("section", 58, 1.0),
    ("maintainer", 2_268, 1.0),
    ("tags", 598, 1.8),
    ("words", 46_470, 8.0),
]


class Set(NamedTuple):
    """Features, how many dense values a sample has, and the batches of one process."""

    features: List[Any]
    dense: int
    batches: List[Any]


def opened(o: argparse.Namespace, rank: int) -> Set:
    """The batches of process ``rank``: its part of each of o.distinct batches of o.batch samples a process."""
    if not o.data:
        return drawn(1000 + rank, o.distinct, o.batch, o.smaller)
    data = Debfiles(o.data)
    all_ = Batches(data.train, o.batch * o.processes, seed=1)
    return Set(data.features, data.dense, [all_[i, rank, o.processes] for i in range(min(o.distinct, len(all_) - 1))])


def drawn(seed: int, count: int, size: int, smaller: int) -> Set:
    """Batches whose ids are log-uniform (Zipf with exponent 1) with the frequent rows scattered. Tables are so many
    times smaller than those of debfiles."""
    shape = [(name, -(-rows // smaller), ids) for name, rows, ids in SHAPE]
    g = torch.Generator().manual_seed(seed)

    def bags(rows: int, ids: float) -> Tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.randint(1, 2, (size,)) if ids == 1.0 else torch.randint(1, int(2 * ids), (size,), generator=g)
        ends = lengths.cumsum(0)
        rank = torch.rand(int(ends[-1]), generator=g, dtype=torch.float64).mul_(math.log(rows)).exp_().long()
        return (rank - 1).clamp_(0, rows - 1).mul_(7_368_787).remainder_(rows), ends - lengths

    features = [Feature(name, rows) for name, rows, _ in shape]
    out = []
    for _ in range(count):
        sparse = {name: bags(rows, ids) for name, rows, ids in shape}
        out.append(Batch(torch.randn(size, 5, generator=g), sparse, (torch.rand(size, generator=g) < 0.25).float()))
    return Set(features, 5, out)


def moved(set_: Set, device: str, ids: str) -> Set:
    """The same with dense values and labels on a device, and ids on another."""

    def batch(b: Batch) -> Batch:
        sparse = {name: (of.to(ids), offsets.to(ids)) for name, (of, offsets) in b.sparse.items()}
        return Batch(b.dense.to(device), sparse, b.labels.to(device))

    return set_._replace(batches=[batch(b) for b in set_.batches])


class Brought(torch.nn.Module):
    """Tables whose pooled rows are brought to a device."""

    def __init__(self, tables: torch.nn.Module, device: str) -> None:
        super().__init__()
        self.tables, self.device = tables, device

    def forward(self, sparse: Any) -> torch.Tensor:
        """-> [n, features, dim] on the device."""
        out: torch.Tensor = self.tables(sparse).to(self.device)
        return out


def model(tables: torch.nn.Module, set_: Set, dim: int, device: str = "cpu") -> Recommender:
    """DLRM over these tables, whose layers begin equally wherever it is made, and lie on the device."""
    torch.manual_seed(1)
    above = DLRM(set_.dense, len(set_.features), dim).to(device)
    return Recommender(tables if device == "cpu" else Brought(tables, device), above)
