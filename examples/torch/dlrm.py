#!/usr/bin/env python3
"""DLRM and DCNv2 on Criteo's TSV or on the columns of debfiles.py, with gradbus or with plain PyTorch.

    examples/torch/dlrm.py examples/torch/testdata/criteo.tsv
    examples/torch/dlrm.py data/debfiles --model dcnv2 --dim 64 --embeddings torch

--embeddings chooses who holds the tables, and nothing else: all that differs is in Torch and Gradbus below. Data,
model, batches and optimizers are the same. It prints one line of JSON.

DLRM: Naumov et al. 2019. DCNv2: Wang et al. 2021, stacked, with full-rank crosses.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch
from torch import nn

import metrics
from batches import Batches
from columns import Columns
from criteo import Criteo
from debfiles import Debfiles


def layers(sizes, last=True):
    """Linear layers of these sizes with ReLU between them, and behind the last one unless it gives the logit."""
    out = []
    for n, (a, b) in enumerate(zip(sizes, sizes[1:])):
        out.append(nn.Linear(a, b))
        if last or n + 2 < len(sizes):
            out.append(nn.ReLU())
    return nn.Sequential(*out)


class DLRM(nn.Module):
    """Dense values through an MLP, its output and all embeddings dotted pair by pair, an MLP over the dots."""

    def __init__(self, dense, features, dim, bottom=(128,), top=(256, 128)):
        super().__init__()
        vectors = 1 + features
        self.bottom = layers((dense, *bottom, dim))
        self.top = layers((dim + vectors * (vectors - 1) // 2, *top, 1), last=False)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, dense, embedded):
        """dense [n, d], embedded [n, features, dim] -> logits [n]."""
        x = self.bottom(dense)
        vectors = torch.cat([x.unsqueeze(1), embedded], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, dots], 1)).squeeze(1)


class DCNv2(nn.Module):
    """Dense values and embeddings side by side, crosses x0 * (W x + b) + x, an MLP behind them."""

    def __init__(self, dense, features, dim, crosses=3, top=(256, 128)):
        super().__init__()
        width = dense + features * dim
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(crosses))
        self.top = layers((width, *top, 1), last=False)

    def forward(self, dense, embedded):
        """dense [n, d], embedded [n, features, dim] -> logits [n]."""
        first = x = torch.cat([dense, embedded.flatten(1)], 1)
        for cross in self.crosses:
            x = first * cross(x) + x
        return self.top(x).squeeze(1)


MODELS = {"dlrm": DLRM, "dcnv2": DCNv2}


class Recommender(nn.Module):
    """Tables and what is above them."""

    def __init__(self, tables, above):
        super().__init__()
        self.tables, self.above = tables, above

    def forward(self, batch):
        return self.above(batch.dense, self.tables(batch.sparse))


class Tables(nn.Module):
    """One EmbeddingBag a feature, its ids averaged."""

    def __init__(self, features, dim, bound):
        super().__init__()
        self.bags = nn.ModuleDict({f.name: nn.EmbeddingBag(f.rows, dim, mode="mean", sparse=True) for f in features})
        for bag in self.bags.values():
            nn.init.uniform_(bag.weight, -bound, bound)

    def forward(self, sparse):
        """(ids [N], offsets [n]) of each feature -> [n, features, dim]."""
        return torch.stack([bag(*sparse[name]) for name, bag in self.bags.items()], 1)


class Torch:
    """Plain PyTorch: tables in this process, sparse gradients."""

    def __init__(self, a):
        self.a = a

    def tables(self, features, dim):
        return Tables(features, dim, self.a.bound)

    def order(self, batches):
        """What this process computes: (batch, part of it, of how many parts)."""
        return [(batch, 0, 1) for batch in range(batches)]

    def optimizer(self, model):
        return Both(
            torch.optim.Adagrad(
                model.tables.parameters(), self.a.table_lr, initial_accumulator_value=self.a.accumulator
            ),
            torch.optim.Adam(model.above.parameters(), self.a.lr),
        )

    def close(self):
        pass


class Both:
    """Several optimizers as one."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            for parameter in optimizer.param_groups[0]["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse and parameter.grad._nnz() == 0:
                    parameter.grad = None  # a batch without an id of this table: PyTorch 1.13's Adagrad fails at it
            optimizer.step()

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()


class Gradbus:
    """Tables and dense parameters by the servers of gradbus: with --server those of a ps, else in this process."""

    def __init__(self, a):
        import gradbus

        self.a, self.gradbus = a, gradbus
        if a.server:
            self.session = gradbus.join(a.server, a.job, trainers=a.trainers, lanes=a.lanes, seed=a.seed)
        else:
            self.session = gradbus.local(a.job, lanes=a.lanes, seed=a.seed)

    def tables(self, features, dim):
        make = self.gradbus.EmbeddingBag
        init = self.gradbus.Uniform(self.a.bound) if self.a.bound else self.gradbus.Zeros()
        bags = {f.name: make(f.rows, dim, mode="mean", name=f.name, init=init) for f in features}
        return Collection(self.gradbus.EmbeddingBagCollection(bags))

    def order(self, batches):
        """Each batch is cut into the job's lanes; this trainer has some of them."""
        return [(batch, lane, self.session.lanes_total) for batch in range(batches) for lane in self.session.lanes]

    def optimizer(self, model):
        return self.gradbus.Optimizer(
            model,
            self.session,
            embeddings=self.gradbus.Adagrad(self.a.table_lr, initial_accumulator_value=self.a.accumulator),
            dense=self.gradbus.Adam(self.a.lr),
        )

    def close(self):
        self.session.close()


class Collection(nn.Module):
    """All tables in one lookup."""

    def __init__(self, collection):
        super().__init__()
        self.collection = collection

    def forward(self, sparse):
        """(ids [N], offsets [n]) of each feature -> [n, features, dim]."""
        return self.collection(sparse).stacked()


EMBEDDINGS = {"torch": Torch, "gradbus": Gradbus}


def train(model, optimizer, loader, log):
    """One pass; returns (rows, seconds, mean loss) of it."""
    criterion = nn.BCEWithLogitsLoss()
    model.train()
    rows, begin, total, shown = 0, time.perf_counter(), 0.0, (0, 0.0)
    for n, batch in enumerate(loader, 1):
        loss = criterion(model(batch), batch.labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rows += len(batch.labels)
        total += loss.item() * len(batch.labels)
        if log and n % log == 0:
            rate = rows / (time.perf_counter() - begin)
            mean = (total - shown[1]) / (rows - shown[0])
            print(f"batch {n}: loss {mean:.4f}, {rate:.0f} rows/s", file=sys.stderr)
            shown = rows, total
    return rows, time.perf_counter() - begin, total / rows


@torch.no_grad()
def evaluate(model, loader):
    """(AUC, log loss) of all rows of the loader."""
    model.eval()
    logits, labels = [], []
    for batch in loader:
        logits.append(model(batch).numpy())
        labels.append(batch.labels.numpy())
    logits, labels = np.concatenate(logits), np.concatenate(labels)
    return metrics.auc(logits, labels), metrics.log_loss(logits, labels)


def opened(a):
    """The data set that the flags name."""
    if not pathlib.Path(a.data).is_dir() or Columns(a.data).notes.get("criteo"):
        return Criteo(a.data, a.table_rows)
    return Debfiles(a.data)


def loader(batches, a, order=None):
    """A DataLoader of the batches that `order` names, or all one after the other."""
    return torch.utils.data.DataLoader(batches, batch_size=None, sampler=order, num_workers=a.workers)


def run(a):
    """Trains as the flags say and returns what is to be printed."""
    torch.manual_seed(a.seed)
    if a.threads:
        torch.set_num_threads(a.threads)
    data = opened(a)
    holder = EMBEDDINGS[a.embeddings](a)
    above = MODELS[a.model](data.dense, len(data.features), a.dim)
    model = Recommender(holder.tables(data.features, a.dim), above)
    optimizer = holder.optimizer(model)
    rows = seconds = 0
    for epoch in range(a.epochs):
        batches = Batches(data.train, a.batch, seed=a.seed + epoch, rows=a.rows)
        n, s, mean = train(model, optimizer, loader(batches, a, holder.order(len(batches))), a.log)
        rows, seconds = rows + n, seconds + s
    area, loss = evaluate(model, loader(Batches(data.test, a.batch, seed=0, rows=a.test_rows), a))
    holder.close()
    values = sum(f.rows for f in data.features) * a.dim
    return {
        "embeddings": a.embeddings,
        "model": a.model,
        "dim": a.dim,
        "auc": round(area, 5),
        "log_loss": round(loss, 5),
        "train_loss": round(mean, 5),
        "rows": rows,
        "test_rows": min(data.test.rows, a.test_rows or data.test.rows),
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds, 1),
        "peak_mib": round(metrics.peak_mib(), 1),
        "tables_mib": round(values * 4 / 2**20, 1),
        "batch": a.batch,
        "epochs": a.epochs,
        "seed": a.seed,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def flags():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("data", help="a folder that debfiles.py or criteo.py prepared, or a TSV file of Criteo's form")
    p.add_argument("--embeddings", choices=sorted(EMBEDDINGS), default="torch", help="who holds the tables")
    p.add_argument("--model", choices=sorted(MODELS), default="dlrm")
    p.add_argument("--dim", type=int, default=16, help="values of a row of every table")
    p.add_argument(
        "--table-rows", type=int, default=100_000, help="of Criteo's tables, into which categories are hashed"
    )
    p.add_argument("--batch", type=int, default=2048, help="rows of a batch")
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--rows", type=int, help="train on so many rows only")
    p.add_argument("--test-rows", type=int, help="evaluate on so many rows only")
    p.add_argument("--lr", type=float, default=1e-3, help="of Adam, for the layers")
    p.add_argument("--table-lr", type=float, default=0.02, help="of Adagrad, for the tables")
    p.add_argument(
        "--bound", type=float, default=0.0, help="rows begin uniform in +-this; 0: at zero, which both can do"
    )
    p.add_argument("--accumulator", type=float, default=1e-7, help="where Adagrad's sums begin")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=0, help="of PyTorch; 0 leaves its default")
    p.add_argument("--workers", type=int, default=0, help="processes that make batches; 0 is none but this one")
    p.add_argument("--server", metavar="URL", help="a ps, with --embeddings gradbus; none: all in this process")
    p.add_argument("--job", default="dlrm", help="its name at the server")
    p.add_argument("--trainers", type=int, default=1, help="how many processes run this with --server")
    p.add_argument("--lanes", type=int, help="parts of a batch; as many as trainers by default")
    p.add_argument("--log", type=int, default=0, metavar="N", help="a line to standard error each N batches")
    return p


if __name__ == "__main__":
    try:
        print(json.dumps(run(flags().parse_args())))
    except (OSError, ValueError) as error:
        sys.exit(f"dlrm.py: {error}")
