"""TorchRec: an EmbeddingBagCollection on the CPU, sharded over the processes by DistributedModelParallel over gloo.

Its tables have FBGEMM's fused optimizer; the dense layers are replicated. Needs torchrec and fbgemm-gpu-cpu in versions
that belong to the PyTorch that is there: 1.9 of both to 2.14. torchrec asks for fbgemm-gpu, which writes over
fbgemm-gpu-cpu and wants a GPU; so both are installed without what they ask for:

    pip install torch==2.14.1 numpy torchmetrics==1.0.3 pyre-extensions==0.0.32 tensordict==0.15.3 tqdm
    pip install --no-deps torchrec==1.9.2 fbgemm-gpu-cpu==1.9.0
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Dict, List, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

import data
import ways

try:
    from torch.distributed.optim import _apply_optimizer_in_backward as in_backward
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.optim.keyed import KeyedOptimizerWrapper
except (ImportError, OSError) as error:
    sys.exit(
        f"compare.py: --torchrec: {error}: want torchrec and fbgemm-gpu-cpu that belong to torch {torch.__version__}: "
        "pip install torch==2.14.1 numpy torchmetrics==1.0.3 pyre-extensions==0.0.32 tensordict==0.15.3 tqdm, then "
        "pip install --no-deps torchrec==1.9.2 fbgemm-gpu-cpu==1.9.0"
    )


class Sharded(nn.Module):
    """The tables as one collection."""

    def __init__(self, features: List[data.Feature], dim: int) -> None:
        super().__init__()
        self.names = [f.name for f in features]
        configs = [
            EmbeddingBagConfig(
                name=f.name,
                embedding_dim=dim,
                num_embeddings=f.rows,
                feature_names=[f.name],
                pooling=PoolingType.MEAN,
                init_fn=lambda w: nn.init.uniform_(w, -data.BOUND, data.BOUND),
            )
            for f in features
        ]
        self.bags = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))

    def forward(self, sparse: Dict[str, Tuple[Tensor, Tensor]]) -> Tensor:
        """(ids [N], offsets [n]) of each feature -> [n, features, dim]."""
        size = next(iter(sparse.values()))[1].numel()
        each = [sparse[name] for name in self.names]
        lengths = torch.cat([torch.diff(o, append=o.new_tensor([i.numel()])) for i, o in each]).to(torch.int32)
        pooled = self.bags(KeyedJaggedTensor(self.names, torch.cat([i for i, _ in each]), lengths=lengths, stride=size))
        return pooled.values().view(size, len(self.names), -1)


def run(o: argparse.Namespace, rank: int) -> ways.Found:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(o.processes),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(o.processes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(o.port),
    )
    dist.init_process_group("gloo", rank=rank, world_size=o.processes)
    batches = data.opened(o, rank)
    model = data.model(Sharded(batches.features, o.dim), batches, o.dim)
    kind = ways.RULES[o.optimizer]
    in_backward(kind, model.tables.parameters(), {"lr": o.lr})
    model = DistributedModelParallel(model, device=torch.device("cpu"))
    dense = {n: p for n, p in model.named_parameters() if not n.startswith("tables.")}
    optimizer = KeyedOptimizerWrapper(dense, lambda p: kind(p, lr=o.lr))
    found = ways.measure(o, batches, ways.trained(model, optimizer), dist.barrier)
    dist.barrier()
    return found
