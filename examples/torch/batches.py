"""Batches of a click-style data set, already collated: what debfiles.py and criteo.py give and dlrm.py trains on.

A part of a data set (its training or its test rows) is an object with `rows`, `batch(index)` and `group`: so many rows
stay together when rows are shuffled. A feature is a name and the rows of its table. Python does nothing for a single
row, only for a batch, with numpy.
"""

import typing

import numpy as np
import torch

import ids


class Feature(typing.NamedTuple):
    """A sparse feature: its name, and how many rows its table has (ids are 0 to rows-1)."""

    name: str
    rows: int


class Batch(typing.NamedTuple):
    """n rows: dense float32 [n, d]; by feature (ids int64 [N], offsets int64 [n]), where bags may be empty; labels
    float32 [n]."""

    dense: torch.Tensor
    sparse: typing.Dict[str, typing.Tuple[torch.Tensor, torch.Tensor]]
    labels: torch.Tensor


def collated(dense, features, sparse, labels):
    """A Batch over the memory of numpy arrays; sparse is a list of (ids, offsets), in the order of the features."""
    bags = {f.name: (torch.from_numpy(v), torch.from_numpy(o)) for f, (v, o) in zip(features, sparse)}
    return Batch(torch.from_numpy(dense), bags, torch.from_numpy(labels))


class Batches(torch.utils.data.Dataset):
    """A part of a data set in a shuffled order, by batches of `size` rows: [b] is batch b, and [b, lane, lanes] the
    piece of it that is a lane's. A pure function of (part, size, seed). Without a seed rows keep their order.

    For torch.utils.data.DataLoader(batches, batch_size=None), with any number of workers.
    """

    def __init__(self, part, size, seed=None, rows=None):
        self.part, self.size, self.seed = part, size, seed
        self.rows = part.rows if rows is None else min(rows, part.rows)

    def __len__(self):
        return -(-self.rows // self.size)

    def __getitem__(self, at):
        b, lane, lanes = at if isinstance(at, tuple) else (at, 0, 1)
        if not 0 <= b < len(self):
            raise IndexError(b)
        lo, n = b * self.size, min(self.size, self.rows - b * self.size)
        index = np.arange(lo + n * lane // lanes, lo + n * (lane + 1) // lanes)
        if self.seed is not None:
            group = self.part.group
            index = ids.shuffled(index // group, self.part.rows // group, self.seed) * group + index % group
        return self.part.batch(index)
