"""EmbeddingBagCollection beside TorchRec's, on the same KeyedJaggedTensors and rows."""

from __future__ import annotations

import itertools
from typing import Any, List

import pytest
import torch

import gradbus

torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed")

ROWS, DIM = 30, 4


def jagged(order: str, bags: List[int], empty: bool, weights: bool, samples: int) -> Any:
    """Features in an order, each with a number of bags; with inverse indices where they differ."""
    g = torch.Generator().manual_seed(len(order) + sum(bags))
    lengths = [torch.randint(0, 1 if empty else 4, (n,), generator=g) for n in bags]
    count = int(sum(int(n.sum()) for n in lengths))
    more: Any = {}
    if len(set(bags)) > 1:
        inverse = torch.stack([torch.randint(0, n, (samples,), generator=g) for n in bags])
        more = {"stride_per_key_per_rank": [[n] for n in bags], "inverse_indices": (list(order), inverse)}
    values = torch.randint(0, ROWS, (count,), generator=g)
    return torchrec.KeyedJaggedTensor(
        list(order), values, torch.rand(count, generator=g) if weights else None, lengths=torch.cat(lengths), **more
    )


CASES = list(itertools.product(["abc", "xcab"], [(3, 3, 3), (2, 5, 3), (0, 0, 0)], [False, True], [False, True]))


@pytest.mark.parametrize("mode, is_weighted", [("sum", False), ("mean", False), ("sum", True)])
@pytest.mark.parametrize("order, bags, empty, weights", CASES)
def test_the_collection_is_torchrecs(mode: str, is_weighted: bool, order: str, bags: Any, empty: bool, weights: bool) -> None:
    """Outputs have equal bits; rows too, where no product is rounded (sum, without weights). ``a`` and ``b`` share a
    table. Of mean or with weights, sums of up to 15 products of values below 4 are off by less than 1e-5."""
    if is_weighted and not weights:
        pytest.skip("both refuse it")
    with gradbus.local("torchrec") as session:
        shared, own = (gradbus.EmbeddingBag(ROWS, DIM, mode=mode, name=name) for name in ("shared", "own"))
        ours = gradbus.EmbeddingBagCollection({"a": shared, "b": shared, "c": own}, is_weighted=is_weighted)
        opt = gradbus.Optimizer(ours, session, embeddings=gradbus.SGD(0.5))
        pooling = torchrec.PoolingType.MEAN if mode == "mean" else torchrec.PoolingType.SUM
        configs = [
            torchrec.EmbeddingBagConfig(
                name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=list(of), pooling=pooling
            )
            for name, of in (("shared", "ab"), ("own", "c"))
        ]
        theirs = torchrec.EmbeddingBagCollection(tables=configs, is_weighted=is_weighted)
        with torch.no_grad():
            for name, bag in theirs.embedding_bags.items():
                bag.weight.copy_(session.read_table(name))
        sgd = torch.optim.SGD(theirs.parameters(), lr=0.5)
        given = jagged(order, [bags[i % 3] for i in range(len(order))], empty, weights, samples=7)
        for _ in range(2):
            out, want = ours(given), theirs(given)
            assert out.keys() == want.keys()
            near = 0.0 if mode == "sum" and not is_weighted else 1e-5
            assert torch.allclose(out.values(), want.values(), rtol=0, atol=near)
            for one, optimizer in ((out, opt), (want, sgd)):
                (one.values() * torch.arange(1.0, 1 + 3 * DIM)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            for name, bag in theirs.embedding_bags.items():
                assert torch.allclose(session.read_table(name), bag.weight, rtol=0, atol=1e-4)
