"""A small DLRM and batches of the shape of debfiles: which package owns a file path?

Every way of compare.py trains this model on these batches. What differs is where the embedding tables are: a module
that maps a batch to one pooled vector [B, dim] a table is given to the model.
"""
from __future__ import annotations

import math
from typing import Dict, List, NamedTuple

import torch
from torch import Tensor, nn


class Table(NamedTuple):
    """An embedding table: rows, and the mean number of ids that a sample has of it."""

    name: str
    rows: int
    ids: float


# Rows and ids a sample of debfiles: bookworm's Contents index and its packages.
TABLES = [
    Table("names", 3_700_000, 5.0),
    Table("extensions", 20_000, 1.0),
    Table("packages", 64_000, 1.0),
    Table("sections", 60, 1.0),
    Table("maintainers", 3_000, 1.0),
    Table("tags", 600, 4.0),
    Table("words", 60_000, 8.0),
]
DENSE = 4  # numbers a sample: depth and lengths


class Batch(NamedTuple):
    """dense [B, DENSE] float32, labels [B] float32; of each table ids [N] int64 and offsets [B] int64, as EmbeddingBag takes them."""

    dense: Tensor
    labels: Tensor
    ids: List[Tensor]
    offsets: List[Tensor]


def batches(seed: int, count: int, size: int, tables: List[Table] = TABLES) -> List[Batch]:
    """Draws batches whose ids are log-uniform (Zipf with exponent 1) with the frequent rows scattered."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        ids, offsets = [], []
        for t in tables:
            if t.ids == 1.0:
                lengths = torch.ones(size, dtype=torch.int64)
            else:
                lengths = torch.randint(1, int(2 * t.ids), (size,), generator=g)
            ends = lengths.cumsum(0)
            rank = torch.rand(int(ends[-1]), generator=g, dtype=torch.float64).mul_(math.log(t.rows)).exp_().long()
            ids.append((rank - 1).clamp_(0, t.rows - 1).mul_(7_368_787).remainder_(t.rows))
            offsets.append(ends - lengths)
        dense = torch.randn(size, DENSE, generator=g)
        labels = (torch.rand(size, generator=g) < 0.25).float()
        out.append(Batch(dense, labels, ids, offsets))
    return out


def mlp(sizes: List[int]) -> nn.Sequential:
    layers: List[nn.Module] = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """logits [B] of a batch: a bottom MLP, pooled embeddings, dot products of all pairs, a top MLP."""

    def __init__(self, embeddings: nn.Module, dim: int, tables: List[Table] = TABLES) -> None:
        super().__init__()
        self.embeddings = embeddings
        n = len(tables) + 1
        self.bottom = mlp([DENSE, 64, dim])
        self.top = mlp([dim + n * (n - 1) // 2, 128, 64, 1])
        rows, columns = torch.tril_indices(n, n, -1)
        self.register_buffer("pairs", rows * n + columns)

    def forward(self, batch: Batch) -> Tensor:
        bottom = self.bottom(batch.dense)
        pooled = self.embeddings(batch.ids, batch.offsets)
        x = torch.stack([bottom] + pooled, 1)  # [B, n, dim]
        dots = torch.bmm(x, x.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, dots], 1)).squeeze(1)


class PlainBags(nn.Module):
    """The tables in this process: nn.EmbeddingBag with sparse gradients."""

    def __init__(self, dim: int, tables: List[Table] = TABLES, sparse: bool = True) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(t.rows, dim, mode="sum", sparse=sparse) for t in tables])
        for t in self.tables:
            nn.init.normal_(t.weight, std=0.01)

    def forward(self, ids: List[Tensor], offsets: List[Tensor]) -> List[Tensor]:
        return [t(i, o) for t, i, o in zip(self.tables, ids, offsets)]


