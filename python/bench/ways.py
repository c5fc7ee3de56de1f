"""The ways that compare.py compares: each is a function that a process of its own runs.

A way builds the model of dlrm.py, and a step that trains one batch. measure() then warms it up, waits for the others, and times it.
"""
from __future__ import annotations

import argparse
import resource
import time
from typing import Callable, Dict, List

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dlrm

Found = Dict[str, float]


def cpu_seconds() -> float:
    """CPU time of this process, all its threads."""
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def measure(o: argparse.Namespace, rank: int, step: Callable[[dlrm.Batch], Tensor], barrier: Callable[[], None]) -> Found:
    """Times o.steps steps after o.warmup: begin and end by the host's clock, CPU seconds of this process in between."""
    data = dlrm.batches(1000 + rank, o.distinct, o.batch)
    for i in range(o.warmup):
        step(data[i % len(data)])
    barrier()
    begin, cpu = time.time(), cpu_seconds()
    loss = torch.zeros(())
    for i in range(o.steps):
        loss = step(data[(o.warmup + i) % len(data)])
    end, used = time.time(), cpu_seconds() - cpu
    return {"begin": begin, "end": end, "cpu": used, "loss": float(loss), "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}


def optimizers(o: argparse.Namespace, model: nn.Module) -> List[torch.optim.Optimizer]:
    """The optimizer of the whole model: one rule for tables and layers."""
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[o.optimizer]
    return [kind(model.parameters(), lr=o.lr)]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[dlrm.Batch], Tensor]:
    """PyTorch's own loop."""

    def step(batch: dlrm.Batch) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def plain(o: argparse.Namespace, rank: int) -> Found:
    """One process, the tables in it."""
    model = dlrm.DLRM(dlrm.PlainBags(o.dim), o.dim)
    return measure(o, rank, trained(model, optimizers(o, model)[0]), lambda: None)


def ddp(o: argparse.Namespace, rank: int) -> Found:
    """DistributedDataParallel over gloo: every process has all tables, sparse gradients are all-reduced."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{o.port}", rank=rank, world_size=o.processes)
    model = nn.parallel.DistributedDataParallel(dlrm.DLRM(dlrm.PlainBags(o.dim), o.dim))
    found = measure(o, rank, trained(model, optimizers(o, model)[0]), dist.barrier)
    dist.barrier()
    return found
