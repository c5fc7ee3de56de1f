"""PyTorch RPC with remote embeddings: the tutorial's way to combine DistributedDataParallel with a parameter server.

A server process owns the tables; the trainers replicate the dense layers by DDP over gloo. Gradients go by distributed
autograd, steps by its optimizer. Of the forms that users have, three:

rpc         one remote module has all tables, and a forward pass asks for them in one call
rpc-each    a remote module a table, asked one after the other by forward(), as the tutorial has it
rpc-async   the same, asked at once by forward_async()
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Optional, Tuple

import torch
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

    def __init__(self, remote: List[RemoteModule]) -> None:
        super().__init__()
        self.remote = remote  # a list, and so not submodules: DDP replicates what is registered

    def forward(self, sparse: Dict[str, Tuple[Tensor, Tensor]]) -> Tensor:
        """(ids [N], offsets [n]) of each feature -> [n, features, dim]."""
        out: Tensor = self.remote[0].forward(
            list(sparse), [i for i, _ in sparse.values()], [o for _, o in sparse.values()]
        )
        return out


class Each(Remote):
    """A remote nn.EmbeddingBag for each table, one asked after the other."""

    def forward(self, sparse: Dict[str, Tuple[Tensor, Tensor]]) -> Tensor:
        return torch.stack([remote.forward(*bags) for remote, bags in zip(self.remote, sparse.values())], 1)


class Async(Remote):
    """The same, all asked before the first answer is waited for."""

    def forward(self, sparse: Dict[str, Tuple[Tensor, Tensor]]) -> Tensor:
        asked = [remote.forward_async(*bags) for remote, bags in zip(self.remote, sparse.values())]
        return torch.stack([one.wait() for one in asked], 1)


FORMS = {"rpc": Remote, "rpc-each": Each, "rpc-async": Async}


class Owned(data.Tables):
    """What the server has."""

    def forward(self, names: List[str], ids: List[Tensor], offsets: List[Tensor]) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward({name: (i, o) for name, i, o in zip(names, ids, offsets)})
        return out


class Bag(nn.EmbeddingBag):
    """One table of those that the server has apart."""

    def __init__(self, rows: int, dim: int, bound: float) -> None:
        super().__init__(rows, dim, mode="mean", sparse=True)
        nn.init.uniform_(self.weight, -bound, bound)


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
    dense = nn.parallel.DistributedDataParallel(data.model(FORMS[o.way](remote), batches, o.dim))
    parameters = [p for r in remote for p in r.remote_parameters()] + [rpc.RRef(p) for p in dense.parameters()]
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


def own(rows: List[Tuple[str, int]], dim: int, together: bool) -> List[RemoteModule]:
    """On trainer 0: the modules on the server, made for the first who asks."""
    if not _owned and together:
        _owned.append(RemoteModule("server", Owned, args=([data.Feature(*r) for r in rows], dim, data.BOUND)))
    elif not _owned:
        _owned.extend(RemoteModule("server", Bag, args=(count, dim, data.BOUND)) for _, count in rows)
    return _owned


def shared(rank: int, batches: data.Set, o: argparse.Namespace) -> List[RemoteModule]:
    """The same modules for all trainers."""
    asked = ([(f.name, f.rows) for f in batches.features], o.dim, o.way == "rpc")
    if rank == 0:
        own(*asked)
    dist.barrier()
    found: List[RemoteModule] = own(*asked) if rank == 0 else rpc.rpc_sync("trainer0", own, args=asked)
    return found
