"""TorchRec: an EmbeddingBagCollection on the CPU, sharded over the processes by DistributedModelParallel over gloo.

Its tables have FBGEMM's fused optimizer; the dense layers are replicated. Needs torchrec and fbgemm-gpu-cpu in versions that belong to the
PyTorch that is there: 1.9 of both to 2.14.
"""
from __future__ import annotations

import argparse
import os
import sys
from typing import List

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dlrm
import ways

try:
    from torch.distributed.optim import _apply_optimizer_in_backward as in_backward
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.optim.keyed import KeyedOptimizerWrapper
except (ImportError, OSError) as error:
    sys.exit(f"compare.py: --torchrec: {error}: want torchrec and fbgemm-gpu-cpu in versions that belong to torch {torch.__version__}: "
             "pip install torch==2.14.* torchrec==1.9.* fbgemm-gpu-cpu==1.9.*")


class Collection(nn.Module):
    """The tables as one collection."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.names = [t.name for t in dlrm.TABLES]
        configs = [EmbeddingBagConfig(name=t.name, embedding_dim=dim, num_embeddings=t.rows, feature_names=[t.name], pooling=PoolingType.SUM,
                                      init_fn=lambda w: nn.init.normal_(w, std=0.01)) for t in dlrm.TABLES]
        self.bags = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))

    def forward(self, ids: List[Tensor], offsets: List[Tensor]) -> List[Tensor]:
        size = offsets[0].numel()
        ends = [torch.cat([o[1:], o.new_tensor([i.numel()])]) for i, o in zip(ids, offsets)]
        lengths = torch.cat([e - o for e, o in zip(ends, offsets)]).to(torch.int32)
        pooled = self.bags(KeyedJaggedTensor(self.names, torch.cat(ids), lengths=lengths, stride=size))
        return [pooled[name] for name in self.names]


def run(o: argparse.Namespace, rank: int) -> ways.Found:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(o.processes), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(o.processes),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(o.port))
    dist.init_process_group("gloo", rank=rank, world_size=o.processes)
    model = dlrm.DLRM(Collection(o.dim), o.dim)
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[o.optimizer]
    in_backward(kind, model.embeddings.parameters(), {"lr": o.lr})
    model = DistributedModelParallel(model, device=torch.device("cpu"))
    dense = {n: p for n, p in model.named_parameters() if "embeddings" not in n}
    found = ways.measure(o, rank, ways.trained(model, KeyedOptimizerWrapper(dense, lambda p: kind(p, lr=o.lr))), dist.barrier)
    dist.barrier()
    return found
