"""Loading alone: a job whose lanes are skipped, so that nothing but a loader and the batches themselves costs.

The data set has a sample for an index, or a list of them for a list of indices. ``lanes`` of a batch are read one by one.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, List, Tuple

import torch
from torch.utils.data import DataLoader

import ways
from ways_gradbus import gradbus

LANES = 4


class Samples:
    """Three ids and a label each."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, 1000, (count, 3), generator=generator)
        self.labels = torch.rand(count, generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> Tuple[Any, Any]:
        return self.ids[i], self.labels[i]

    def __getitems__(self, chosen: List[int]) -> List[Tuple[Any, Any]]:
        at = torch.tensor(chosen)
        return list(zip(self.ids[at], self.labels[at]))


def run(o: argparse.Namespace, rank: int) -> ways.Found:
    """Skips o.steps batches that it has loaded by a LaneLoader, or by a DataLoader with a LaneSampler."""
    with gradbus.local("loads", lanes=LANES) as session:
        model = gradbus.Embedding(10, 2, name="rows")
        gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1))
        data = Samples(o.batch * (o.warmup + o.steps))
        sampler = gradbus.LaneSampler(data, session, o.batch)
        if o.way == "laneloader":
            loader: Any = gradbus.LaneLoader(data, sampler, epochs=1, num_workers=o.workers)
        else:
            loader = DataLoader(data, batch_sampler=sampler, num_workers=o.workers)  # type: ignore[arg-type]
        begin = 0.0
        for i, (_, _) in enumerate(loader):
            if i == o.warmup * LANES:
                begin = time.time()
            session.skip()
        return {"begin": begin, "end": time.time(), "loss": 0.0}
