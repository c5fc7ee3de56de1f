"""The head of the scripts of test_ddp.py: a model, batches and a loop, equal on every rank but for the data."""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: F401

import gradbus

server, meeting, rank, processes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)


class Model(torch.nn.Module):
    def __init__(self, session):
        super().__init__()
        torch.manual_seed(7)
        self.users = gradbus.EmbeddingBag(50, 4, mode="sum", name="users", session=session)
        self.first, self.last = torch.nn.Linear(4 + 3, 8), torch.nn.Linear(8, 1)

    def forward(self, ids, dense):
        return self.last(torch.relu(self.first(torch.cat([self.users(ids), dense], 1))))


def batch(i, r):
    g = torch.Generator().manual_seed(100 * i + r)
    return torch.randint(0, 50, (6, 2), generator=g), torch.rand(6, 3, generator=g), torch.rand(6, 1, generator=g)


def loss_of(out, labels):
    return torch.nn.functional.mse_loss(out, labels)


def train(model, dense, opt, ids, values, labels):
    loss_of(model(ids, values), labels).backward()
    for one in (dense, opt):
        if one is not None:
            one.step()
            one.zero_grad()
