"""PyTorch RPC with remote embeddings: the tutorial's way to combine DistributedDataParallel with a parameter server.

A server process owns the tables as one remote module, so that a forward pass asks for all tables in one call; the trainers replicate the
dense layers by DDP over gloo. Gradients go by distributed autograd, steps by DistributedOptimizer.
"""
from __future__ import annotations

import argparse
from typing import List, Optional

import torch
import torch.distributed as dist
import torch.distributed.autograd as autograd
import torch.distributed.rpc as rpc
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer

import dlrm
import ways


class RemoteBags(nn.Module):
    """The tables of the server's module, asked in one call. The vectors of all tables travel as one tensor [tables, B, dim]."""

    def __init__(self, remote: RemoteModule) -> None:
        super().__init__()
        self.remote = [remote]  # not a submodule: DDP replicates what is registered

    def forward(self, ids: List[Tensor], offsets: List[Tensor]) -> List[Tensor]:
        return list(self.remote[0].forward(ids, offsets).unbind(0))


class StackedBags(dlrm.PlainBags):
    """What the server owns."""

    def forward(self, ids: List[Tensor], offsets: List[Tensor]) -> Tensor:  # type: ignore[override]
        return torch.stack(super().forward(ids, offsets))


def run(o: argparse.Namespace, rank: int) -> Optional[ways.Found]:
    """The trainers have the ranks below o.processes; the server has the last."""
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8, rpc_timeout=300, init_method=f"tcp://127.0.0.1:{o.port}")
    server = rank == o.processes
    rpc.init_rpc("server" if server else f"trainer{rank}", rank=rank, world_size=o.processes + 1, rpc_backend_options=options)
    if server:
        rpc.shutdown()
        return {}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{o.port2}", rank=rank, world_size=o.processes)
    remote = shared(rank, o)
    dense = nn.parallel.DistributedDataParallel(dlrm.DLRM(RemoteBags(remote), o.dim))
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[o.optimizer]
    parameters = remote.remote_parameters() + [rpc.RRef(p) for p in dense.parameters()]
    optimizer = DistributedOptimizer(kind, parameters, lr=o.lr)

    def step(batch: dlrm.Batch) -> Tensor:
        with autograd.context() as context:
            loss = F.binary_cross_entropy_with_logits(dense(batch), batch.labels)
            autograd.backward(context, [loss])
            optimizer.step(context)
        return loss.detach()

    found = ways.measure(o, rank, step, dist.barrier)
    dist.barrier()
    rpc.shutdown()
    return found


_owned: List[RemoteModule] = []


def own(dim: int) -> RemoteModule:
    """On trainer 0: the module on the server, made for the first who asks."""
    if not _owned:
        _owned.append(RemoteModule("server", StackedBags, args=(dim,)))
    return _owned[0]


def shared(rank: int, o: argparse.Namespace) -> RemoteModule:
    """One module for all trainers."""
    if rank == 0:
        own(o.dim)
    dist.barrier()
    return own(o.dim) if rank == 0 else rpc.rpc_sync("trainer0", own, args=(o.dim,))
