#!/usr/bin/env python3
"""DLRM and DCNv2 on Criteo's TSV or on the columns of debfiles.py, with gradbus or with plain PyTorch.

    examples/torch/dlrm.py examples/torch/testdata/criteo.tsv --batch 64 --epochs 3
    examples/torch/dlrm.py data/debfiles --model dcnv2 --dim 64 --embeddings gradbus

--embeddings chooses who holds the tables, and nothing else: all that differs is in Torch and Gradbus below. Data,
model, batches and optimizers are the same. It prints one line of JSON; what it is doing goes to standard error. auc and
log_loss are those of the test rows, train_loss is the mean of the last epoch, each batch before it is trained on.
weights is a digest of all layers and rows: equal ones have equal bits (docs/pytorch.md says when they are).

DLRM: Naumov et al. 2019. DCNv2: Wang et al. 2021, stacked, with full-rank crosses.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import time

import numpy as np
import torch
from torch import nn

import metrics
from batches import Batches
from columns import INDEX, Columns
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
    """One EmbeddingBag a feature."""

    def __init__(self, features, dim, bound, mode="mean"):
        super().__init__()
        self.bags = nn.ModuleDict({f.name: nn.EmbeddingBag(f.rows, dim, mode=mode, sparse=True) for f in features})
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
        return Tables(features, dim, self.a.bound, mode="sum")

    def order(self, batches):
        """What this process computes: (batch, part of it, of how many parts)."""
        return [(batch, 0, 1) for batch in range(batches)]

    def optimizer(self, model):
        tables, above = model.tables.parameters(), model.above.parameters()
        adagrad = torch.optim.Adagrad(tables, self.a.table_lr, initial_accumulator_value=self.a.accumulator)
        return Both(adagrad, plain_layers(self.a, above))

    def rows(self, model, feature, ids):
        """Rows [n, dim] of a feature's table, ids int64 [n]."""
        return model.tables.bags[feature].weight.detach()[ids]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def plain_layers(a, parameters):
    """The optimizer of torch.optim that the flags name for the layers."""
    if a.layers == "adagrad":
        return torch.optim.Adagrad(parameters, a.lr, initial_accumulator_value=a.accumulator)
    return torch.optim.Adam(parameters, a.lr)


class Both:
    """Several optimizers as one."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            for parameter in optimizer.param_groups[0]["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = coalesced(parameter.grad)
            optimizer.step()

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def coalesced(grad):
    """A sparse gradient [rows, dim] with each row once, those of equal ids added up as they come; None without rows.

    coalesce() adds them up in the order of a sort that is not stable, so that bits depend on the library. PyTorch
    1.13's Adagrad fails at a gradient without rows, which a batch without an id of this table has.
    """
    if grad._nnz() == 0:
        return None
    keys, order = grad._indices()[0].sort(stable=True)
    keys, counts = torch.unique_consecutive(keys, return_counts=True)
    rows = nn.functional.embedding_bag(order, grad._values(), counts.cumsum(0) - counts, mode="sum")
    return torch.sparse_coo_tensor(keys.unsqueeze(0), rows, grad.shape)._coalesced_(True)


class Gradbus:
    """Tables and dense parameters by the servers of gradbus: with --server those of a ps, else in this process."""

    def __init__(self, a):
        try:
            import gradbus
        except ImportError as error:
            raise ValueError(f"--embeddings gradbus: {error}: want the wheel that make python builds") from None
        self.a, self.gradbus = a, gradbus
        if a.server is not None:
            self.session = gradbus.join(a.server, a.job, trainers=a.trainers, lanes=a.lanes, seed=a.seed)
        else:
            self.session = gradbus.local(a.job, lanes=a.lanes, seed=a.seed)

    def tables(self, features, dim):
        make = self.gradbus.EmbeddingBag
        init = self.gradbus.Uniform(self.a.bound) if self.a.bound else self.gradbus.Zeros()
        bags = {f.name: make(f.rows, dim, mode="sum", name=f.name, init=init) for f in features}
        return Collection(self.gradbus.EmbeddingBagCollection(bags))

    def order(self, batches):
        """Each batch is cut into the job's lanes; this trainer has some of them."""
        return [(batch, lane, self.session.lanes_total) for batch in range(batches) for lane in self.session.lanes]

    def optimizer(self, model):
        embeddings = self.gradbus.Adagrad(self.a.table_lr, initial_accumulator_value=self.a.accumulator)
        ours = self.gradbus.Optimizer(model, self.session, embeddings=embeddings, dense=self.layers())
        return Both(ours, plain_layers(self.a, model.above.parameters())) if self.a.layers == "local" else ours

    def layers(self):
        """The optimizer that the flags name for the layers, or None where the layers stay in this process."""
        if self.a.layers == "local":
            if self.session.lanes_total > 1:
                raise ValueError(
                    "--layers local: want one trainer and one lane, since nobody adds up layers' gradients"
                )
            return None
        if self.a.layers == "adagrad":
            return self.gradbus.Adagrad(self.a.lr, initial_accumulator_value=self.a.accumulator)
        return self.gradbus.Adam(self.a.lr)

    def rows(self, model, feature, ids):
        """Rows [n, dim] of a feature's table, ids int64 [n]."""
        return self.session.lookup(feature, ids)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Closes the session, or tells the other trainers by what error this one ends."""
        self.session.__exit__(*error)


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
    """One pass; returns (rows, seconds, mean loss) of it. A line to standard error each `log` batches."""
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
            print(f"batch {n} of {len(loader)}: loss {mean:.4f}, {rate:.0f} rows/s", file=sys.stderr)
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


def digest(model, holder, features):
    """SHA-256 of the bits of all layers and rows, wherever the rows are."""
    out = hashlib.sha256()
    for parameter in model.above.parameters():
        out.update(parameter.detach().numpy().tobytes())
    for feature in features:
        for ids in torch.arange(feature.rows).split(1 << 16):
            out.update(holder.rows(model, feature.name, ids).numpy().tobytes())
    return out.hexdigest()


def opened(a):
    """The data set that the flags name."""
    if pathlib.Path(a.data).is_dir() and not (pathlib.Path(a.data) / INDEX).exists():
        raise ValueError(
            f"{a.data}: no {INDEX} there: want a folder that debfiles.py or criteo.py wrote, or a TSV file"
        )
    if not pathlib.Path(a.data).is_dir() or Columns(a.data).notes.get("criteo"):
        return Criteo(a.data, a.table_rows)
    return Debfiles(a.data)


def began(a, data, values):
    """Says to standard error what is to be done."""
    batches = Batches(data.train, a.batch, rows=a.rows)
    tested = min(data.test.rows, a.test_rows or data.test.rows)
    print(
        f"{batches.rows} rows to train on and {tested} to test; {len(batches)} batches an epoch; {len(data.features)} "
        f"tables with {values // a.dim} rows in all, {values * 4 / 2**20:.0f} MiB, held by {a.embeddings}",
        file=sys.stderr,
    )


def loader(batches, a, order=None):
    """A DataLoader of the batches that `order` names, or all one after the other."""
    return torch.utils.data.DataLoader(batches, batch_size=None, sampler=order, num_workers=a.workers)


def run(a):
    """Trains as the flags say and returns what is to be printed."""
    torch.manual_seed(a.seed)
    if a.threads:
        torch.set_num_threads(a.threads)
    data = opened(a)
    with EMBEDDINGS[a.embeddings](a) as holder:
        return trained(a, data, holder)


def trained(a, data, holder):
    """Trains tables of the holder and a model above them, and returns what is to be printed."""
    above = MODELS[a.model](data.dense, len(data.features), a.dim)
    model = Recommender(holder.tables(data.features, a.dim), above)
    optimizer = holder.optimizer(model)
    rows = seconds = 0
    values = sum(f.rows for f in data.features) * a.dim
    began(a, data, values)
    for epoch in range(a.epochs):
        batches = Batches(data.train, a.batch, seed=a.seed + epoch, rows=a.rows)
        n, s, mean = train(model, optimizer, loader(batches, a, holder.order(len(batches))), a.log)
        rows, seconds = rows + n, seconds + s
    area, loss = evaluate(model, loader(Batches(data.test, a.batch, seed=0, rows=a.test_rows), a))
    peak = metrics.peak_mib()
    weights = digest(model, holder, data.features)
    return {
        "embeddings": a.embeddings,
        "model": a.model,
        "dim": a.dim,
        "auc": metrics.figure(area, 5),
        "log_loss": metrics.figure(loss, 5),
        "train_loss": metrics.figure(mean, 5),
        "rows": rows,
        "test_rows": min(data.test.rows, a.test_rows or data.test.rows),
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds, 1),
        "peak_mib": round(peak, 1),
        "tables_mib": round(values * 4 / 2**20, 1),
        "batch": a.batch,
        "epochs": a.epochs,
        "seed": a.seed,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "weights": weights,
    }


def size(text):
    """An integer from 1 on."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: want at least 1")
    return int(text)


def flags():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("data", help="a folder that debfiles.py or criteo.py prepared, or a TSV file of Criteo's form")
    p.add_argument("--embeddings", choices=sorted(EMBEDDINGS), default="torch", help="who holds the tables")
    p.add_argument("--model", choices=sorted(MODELS), default="dlrm")
    p.add_argument("--dim", type=size, default=16, help="values of a row of every table")
    p.add_argument(
        "--table-rows", type=size, default=100_000, help="of Criteo's tables, into which categories are hashed"
    )
    p.add_argument("--batch", type=size, default=2048, help="rows of a batch")
    p.add_argument("--epochs", type=size, default=1)
    p.add_argument("--rows", type=size, help="train on so many rows only")
    p.add_argument("--test-rows", type=size, help="evaluate on so many rows only")
    p.add_argument(
        "--layers",
        choices=("adagrad", "adam", "local"),
        default="adam",
        help="optimizer of the layers, by the servers with gradbus; local: torch.optim.Adam in this process",
    )
    p.add_argument("--lr", type=float, default=1e-3, help="of the layers")
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
    p.add_argument("--log", type=int, default=500, metavar="N", help="a line to standard error each N batches; 0: none")
    return p


if __name__ == "__main__":
    try:
        asked = flags().parse_args()
        if asked.server is not None and asked.embeddings != "gradbus":
            raise ValueError("--server is for --embeddings gradbus: plain PyTorch has its tables in this process")
        print(json.dumps(run(asked), allow_nan=False))
    except (OSError, ValueError) as error:
        sys.exit(f"dlrm.py: {error}")
