"""gradbus: a ps process has the tables and the dense parameters, trainers compute; or all of it in one process."""
from __future__ import annotations

import argparse
import os
import sys
from typing import List

from torch import Tensor, nn

import dlrm
import ways

sys.path.insert(0, os.environ.get("GRADBUS_PY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
try:
    import gradbus
except ImportError:
    sys.exit("compare.py: gradbus is not there: want a checkout with `make capi`, or the wheel of `make python`")


class Collection(nn.Module):
    """The tables as one collection: one lookup a batch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.names = [t.name for t in dlrm.TABLES]
        init = gradbus.Normal(0.01)
        self.bags = gradbus.EmbeddingBagCollection({t.name: gradbus.EmbeddingBag(t.rows, dim, mode="sum", init=init) for t in dlrm.TABLES})

    def forward(self, ids: List[Tensor], offsets: List[Tensor]) -> List[Tensor]:
        pooled = self.bags({name: (i, o) for name, i, o in zip(self.names, ids, offsets)})
        return [pooled[name] for name in self.names]


def run(o: argparse.Namespace, rank: int) -> ways.Found:
    if o.way == "local":
        session = gradbus.local("compare", shards=o.shards)
    else:
        session = gradbus.join(o.server, "compare", trainers=o.processes)
    model = dlrm.DLRM(Collection(o.dim), o.dim)
    rule = {"sgd": gradbus.SGD, "adagrad": gradbus.Adagrad}[o.optimizer](o.lr)
    optimizer = gradbus.Optimizer(model, session, embeddings=rule, dense=rule)
    found = ways.measure(o, rank, ways.trained(model, optimizer), lambda: None)
    session.close()
    return found
