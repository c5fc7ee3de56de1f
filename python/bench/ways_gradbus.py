"""gradbus: a ps process has the tables and the dense parameters, trainers compute; or all of it in one process."""

from __future__ import annotations

import argparse
import os
import sys

import data
import ways

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))  # behind a gradbus that is installed
try:
    import gradbus
except ImportError:
    sys.exit("compare.py: gradbus is not there: want a checkout with `make capi`, or the wheel of `make python`")


def run(o: argparse.Namespace, rank: int) -> ways.Found:
    if o.way == "local":
        session = gradbus.local("compare", shards=o.shards)
    else:
        session = gradbus.join(o.server, "compare", trainers=o.processes)
    batches = data.moved(data.opened(o, rank), o.device, "cpu")
    init = gradbus.Uniform(data.BOUND)
    bags = {f.name: gradbus.EmbeddingBag(f.rows, o.dim, mode="mean", init=init) for f in batches.features}
    model = data.model(data.Collection(gradbus.EmbeddingBagCollection(bags)), batches, o.dim, o.device)
    rule = {"sgd": gradbus.SGD, "adagrad": gradbus.Adagrad}[o.optimizer](o.lr)
    optimizer = gradbus.Optimizer(model, session, embeddings=rule, dense=rule)
    found = ways.measure(o, batches, ways.trained(model, optimizer), lambda: None)
    session.close()
    return found
