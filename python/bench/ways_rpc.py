"""PyTorch RPC with remote embeddings: the tutorial's way to combine DistributedDataParallel with a parameter server.

A server process owns the tables as one remote module, so that a forward pass asks for all tables in one call; the
trainers replicate the dense layers by DDP over gloo. Gradients go by distributed autograd, steps by its optimizer.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Optional, Tuple

import torch.distributed as dist
import torch.distributed.autograd as autograd
import torch.distributed.rpc as rpc
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer

import data
import ways


class Remote(nn.Module):
    """The tables of the server's module, asked in one call. What is pooled comes back as one tensor."""

    def __init__(self, remote: RemoteModule) -> None:
        super().__init__()
        self.remote = [remote]  # not a submodule: DDP replicates what is registered

    def forward(self, sparse: Dict[str, Tuple[Tensor, Tensor]]) -> Tensor:
        """(ids [N], offsets [n]) of each feature -> [n, features, dim]."""
        out: Tensor = self.remote[0].forward(
            list(sparse), [i for i, _ in sparse.values()], [o for _, o in sparse.values()]
        )
        return out


class Owned(data.Tables):
    """What the server has."""

    def forward(self, names: List[str], ids: List[Tensor], offsets: List[Tensor]) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward({name: (i, o) for name, i, o in zip(names, ids, offsets)})
        return out


def run(o: argparse.Namespace, rank: int) -> Optional[ways.Found]:
    """The trainers have the ranks below o.processes; the server has the last."""
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8, rpc_timeout=300, init_method=f"tcp://127.0.0.1:{o.port}"
    )
    server = rank == o.processes
    rpc.init_rpc(
        "server" if server else f"trainer{rank}", rank=rank, world_size=o.processes + 1, rpc_backend_options=options
    )
    if server:
        rpc.shutdown()
        return {}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{o.port2}", rank=rank, world_size=o.processes)
    batches = data.opened(o, rank)
    remote = shared(rank, batches, o)
    dense = nn.parallel.DistributedDataParallel(data.model(Remote(remote), batches, o.dim))
    parameters = remote.remote_parameters() + [rpc.RRef(p) for p in dense.parameters()]
    optimizer = DistributedOptimizer(ways.RULES[o.optimizer], parameters, lr=o.lr)

    def step(batch: Any) -> Tensor:
        with autograd.context() as context:
            loss = F.binary_cross_entropy_with_logits(dense(batch), batch.labels)
            autograd.backward(context, [loss])
            optimizer.step(context)
        return loss.detach()

    found = ways.measure(o, batches, step, dist.barrier)
    dist.barrier()
    rpc.shutdown()
    return found


_owned: List[RemoteModule] = []


def own(rows: List[Tuple[str, int]], dim: int) -> RemoteModule:
    """On trainer 0: the module on the server, made for the first who asks."""
    if not _owned:
        _owned.append(RemoteModule("server", Owned, args=([data.Feature(*r) for r in rows], dim, data.BOUND)))
    return _owned[0]


def shared(rank: int, batches: data.Set, o: argparse.Namespace) -> RemoteModule:
    """One module for all trainers."""
    rows = [(f.name, f.rows) for f in batches.features]
    if rank == 0:
        own(rows, o.dim)
    dist.barrier()
    return own(rows, o.dim) if rank == 0 else rpc.rpc_sync("trainer0", own, args=(rows, o.dim))
