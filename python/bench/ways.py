"""The ways that compare.py compares: each is a function that a process of its own runs.

A way makes the model of data.py, and a step that trains one batch. measure() warms it up, waits for the others, and
times it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable, Dict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import data

Found = Dict[str, float]
Step = Callable[[Any], Tensor]

RULES = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}


def measure(o: argparse.Namespace, batches: data.Set, step: Step, barrier: Callable[[], None]) -> Found:
    """Times o.steps steps after o.warmup: begin and end by the host's clock."""
    each = batches.batches
    for i in range(o.warmup):
        step(each[i % len(each)])
    if o.device.startswith("cuda"):
        torch.cuda.synchronize()
    barrier()
    begin, loss = time.time(), torch.zeros(())
    for i in range(o.steps):
        loss = step(each[(o.warmup + i) % len(each)])
    if o.device.startswith("cuda"):
        torch.cuda.synchronize()
    return {"begin": begin, "end": time.time(), "loss": float(loss)}


def trained(model: nn.Module, optimizer: Any) -> Step:
    """PyTorch's own loop."""

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def plain(o: argparse.Namespace, rank: int) -> Found:
    """One process, the tables in it."""
    batches = data.moved(data.opened(o, rank), o.device, o.device)
    model = data.model(data.Tables(batches.features, o.dim, data.BOUND).to(o.device), batches, o.dim, o.device)
    return measure(o, batches, trained(model, RULES[o.optimizer](model.parameters(), lr=o.lr)), lambda: None)


def ddp(o: argparse.Namespace, rank: int) -> Found:
    """DistributedDataParallel over gloo: every process has all tables, sparse gradients are all-reduced."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{o.port}", rank=rank, world_size=o.processes)
    batches = data.opened(o, rank)
    model = nn.parallel.DistributedDataParallel(
        data.model(data.Tables(batches.features, o.dim, data.BOUND), batches, o.dim)
    )
    optimizer = RULES[o.optimizer](model.parameters(), lr=o.lr)
    found = measure(o, batches, trained(model, optimizer), dist.barrier)
    dist.barrier()
    return found


class Constants(nn.Module):
    """In place of tables: what they would give, which gets a gradient and is not trained."""

    def __init__(self, size: int, features: int, dim: int) -> None:
        super().__init__()
        self.pooled = torch.empty(size, features, dim).uniform_(-data.BOUND, data.BOUND).requires_grad_()

    def forward(self, sparse: Dict[str, Any]) -> Tensor:
        """-> [n, features, dim], whatever the ids."""
        self.pooled.grad = None
        return self.pooled


def dense(o: argparse.Namespace, rank: int) -> Found:
    """The layers without tables, and without the other processes."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{o.port}", rank=rank, world_size=o.processes)
    batches = data.opened(o, rank)
    model = data.model(Constants(o.batch, len(batches.features), o.dim), batches, o.dim)
    found = measure(o, batches, trained(model, RULES[o.optimizer](model.parameters(), lr=o.lr)), dist.barrier)
    dist.barrier()
    return found
