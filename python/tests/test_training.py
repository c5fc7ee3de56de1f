"""Whole trainings beside plain PyTorch: where the arithmetic is the same, weights have equal bits."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import nn

import gradbus

ROWS, DIM, STEPS = 30, 4, 12


class Model(nn.Module):
    """Dense layers before and behind the bags, as in DLRM."""

    def __init__(self, make: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.bottom = nn.Linear(3, DIM)
        self.top = nn.Linear(2 * DIM, 1)
        self.emb = make(ROWS, DIM, mode="mean")  # last: that of torch.nn draws values

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.top(torch.cat([self.bottom(dense).relu(), self.emb(ids)], 1))
        return out.squeeze(1)


def batches(steps: int = STEPS) -> List[Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Bags of 4, whose mean is exact; and an id at most twice in a batch, as two gradients have one sum in any
    order."""
    generator = torch.Generator().manual_seed(11)
    return [
        (
            torch.randn(8, 3, generator=generator),
            torch.cat([torch.randperm(ROWS, generator=generator)[:16] for _ in range(2)]).view(8, 4),
            torch.rand(8, generator=generator),
        )
        for _ in range(steps)
    ]


def plain_model(session: gradbus.Session, ours: Model) -> Model:
    theirs = Model(nn.EmbeddingBag)
    theirs.emb.weight.data = session.lookup(ours.emb.name, torch.arange(ROWS))
    return theirs


def weights(session: gradbus.Session, ours: Model) -> List[torch.Tensor]:
    return [session.lookup("emb", torch.arange(ROWS)), *(p.detach() for p in ours.parameters())]


def plain_weights(theirs: Model) -> List[torch.Tensor]:
    return [theirs.emb.weight.detach(), *(p.detach() for n, p in theirs.named_parameters() if n != "emb.weight")]


def fit(model: nn.Module, opts: List[Any], data: Any) -> List[float]:
    losses = []
    for dense, ids, labels in data:
        loss = (model(dense, ids) - labels).square().mean()
        for opt in opts:
            opt.zero_grad()
        loss.backward()
        for opt in opts:
            opt.step()
        losses.append(loss.item())
    return losses


def test_sgd_has_equal_bits() -> None:
    """All dense on servers. The rate is a power of two: PyTorch fuses its product with the sum, and servers round it,
    which is then none."""
    ours = Model(gradbus.EmbeddingBag)
    with gradbus.local("sgd", shards=2) as session:
        opt = gradbus.Optimizer(ours, session, embeddings=gradbus.SGD(0.125), dense=gradbus.SGD(0.0625, momentum=0.5))
        theirs = plain_model(session, ours)
        dense = [p for n, p in theirs.named_parameters() if n != "emb.weight"]
        plain = [torch.optim.SGD([theirs.emb.weight], lr=0.125), torch.optim.SGD(dense, lr=0.0625, momentum=0.5)]
        assert fit(ours, [opt], batches()) == fit(theirs, plain, batches())
        assert all(map(torch.equal, weights(session, ours), plain_weights(theirs)))


def test_dense_of_the_script_has_equal_bits() -> None:
    """dense=None: a torch optimizer of any kind steps the model's parameters."""
    ours = Model(gradbus.EmbeddingBag)
    with gradbus.local("script") as session:
        opts = [
            gradbus.Optimizer(ours, session, embeddings=gradbus.SGD(0.25)),
            torch.optim.Adam(ours.parameters(), lr=1e-2),
        ]
        theirs = plain_model(session, ours)
        dense = [p for n, p in theirs.named_parameters() if n != "emb.weight"]
        plain = [torch.optim.SGD([theirs.emb.weight], lr=0.25), torch.optim.Adam(dense, lr=1e-2)]
        assert fit(ours, opts, batches()) == fit(theirs, plain, batches())
        assert all(map(torch.equal, weights(session, ours), plain_weights(theirs)))
        assert not session.job["parameters"]


@pytest.mark.parametrize(
    "spec, plain, sparse, lazy",
    [
        (gradbus.SGD(0.1, weight_decay=0.01), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01), False, True),
        (gradbus.SGD(0.1, momentum=0.9, exact=True), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), False, False),
        (gradbus.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.1), False, False),
        (gradbus.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.1), True, False),
        (gradbus.Adam(0.01), lambda p: torch.optim.SparseAdam(p, lr=0.01), True, False),
    ],
    ids=["decay", "momentum", "adagrad", "adagrad-sparse", "sparse-adam"],
)
def test_tables_beside_torch_optim(spec: Any, plain: Any, sparse: bool, lazy: bool) -> None:
    """Tables by each rule, dense layers fixed. Weight decay is lazy, so only the first step of each row is compared
    there.

    Both round a handful of operations of values below 4 in each step, in another order: 2^-23 each of what moves, so 12
    steps stay below 2e-5 of a step of 0.1. exact momentum is made up when a row is used: so the last batch uses all
    rows."""
    ours = Model(gradbus.EmbeddingBag)
    data = batches()
    if lazy:
        data = data[:1]
    else:
        everything = torch.arange(32).remainder(ROWS).view(8, 4)
        data.append((data[0][0], everything, data[0][2]))
    for name, p in ours.named_parameters():
        p.requires_grad_(name == "emb.rows_parameter")
    with gradbus.local("rules") as session:
        opt = gradbus.Optimizer(ours, session, embeddings=spec)
        theirs = plain_model(session, ours)
        theirs.emb.sparse = sparse
        used = torch.unique(data[0][1]) if lazy else torch.arange(ROWS)
        before = session.lookup("emb", torch.arange(ROWS))
        fit(ours, [opt], data)
        fit(theirs, [plain([theirs.emb.weight])], data)
        after, want = session.lookup("emb", torch.arange(ROWS)), plain_weights(theirs)[0]
        assert (after[used] - want[used]).abs().max() < 2e-5
        assert (after[used] != before[used]).any(1).all()
        if lazy:
            unused = torch.ones(ROWS, dtype=torch.bool)
            unused[used] = False
            assert torch.equal(after[unused], before[unused]) and not torch.equal(want[unused], before[unused])


@pytest.mark.parametrize(
    "spec, plain",
    [
        (gradbus.Adam(1e-2, betas=(0.8, 0.9)), lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.9))),
        (gradbus.AdamW(1e-2, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1)),
        (
            gradbus.Adagrad(0.05, initial_accumulator_value=0.1),
            lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
        ),
        (
            gradbus.SGD(0.1, momentum=0.9, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        ),
    ],
    ids=["adam", "adamw", "adagrad", "nesterov"],
)
def test_dense_beside_torch_optim(spec: Any, plain: Any) -> None:
    """Dense parameters by each rule, on servers; tables by SGD in both. Tolerance as above: errors of 2^-23 a step, fed
    back through the model."""
    ours = Model(gradbus.EmbeddingBag)
    with gradbus.local("dense") as session:
        opt = gradbus.Optimizer(ours, session, embeddings=gradbus.SGD(0.125), dense=spec)
        theirs = plain_model(session, ours)
        dense = [p for n, p in theirs.named_parameters() if n != "emb.weight"]
        fit(ours, [opt], batches())
        fit(theirs, [plain(dense), torch.optim.SGD([theirs.emb.weight], lr=0.125)], batches())
        for got, want in zip(weights(session, ours), plain_weights(theirs)):
            assert (got - want).abs().max() < 1e-4


def test_accumulation_and_a_shared_table() -> None:
    """Two forwards before a step, of two modules of one table: their gradients add up as PyTorch's do."""
    pair = [gradbus.EmbeddingBag(ROWS, DIM, mode="sum", name="t"), gradbus.Embedding(ROWS, DIM, name="t")]
    plain = [nn.EmbeddingBag(ROWS, DIM, mode="sum"), nn.Embedding(ROWS, DIM)]
    plain[1].weight = plain[0].weight  # type: ignore[assignment]
    with gradbus.local("shared") as session:
        opt = gradbus.Optimizer(nn.ModuleList(pair), session, embeddings=gradbus.SGD(0.25))
        plain[0].weight.data = session.lookup("t", torch.arange(ROWS))
        theirs = torch.optim.SGD([plain[0].weight], lr=0.25)
        for _, ids, _ in batches(4):
            for first, second, of in ((*pair, opt), (*plain, theirs)):
                of.zero_grad()
                (first(ids).sum() * 0.5).backward()
                (first(ids[:3]).square().sum() + second(ids).sum()).backward()
                of.step()
            got = session.lookup("t", torch.arange(ROWS))
            assert torch.allclose(
                got, plain[0].weight, rtol=0, atol=1e-6
            )  # sums of at most 30 gradients below 8, in another order
        assert [t["name"] for t in session.job["tables"]] == ["t"]


def test_a_sum_weighs_by_samples() -> None:
    """weight="samples": two lanes of different sizes, losses that are sums, make the step of the mean over all
    samples."""
    emb = gradbus.Embedding(ROWS, 1, name="t", init=gradbus.Zeros())
    with gradbus.local("samples", lanes=2) as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(8.0), weight="samples")
        for ids in (torch.tensor([0, 1, 1]), torch.tensor([2])):
            emb(ids).sum().backward()
            opt.step()
            opt.zero_grad()
        assert session.lookup("t", torch.arange(4)).flatten().tolist() == [-2.0, -4.0, -2.0, 0.0]
        emb(torch.tensor([3])).sum().backward()
        opt.step(samples=4)
        session.skip()
        assert session.lookup("t", torch.tensor([3])).item() == -2.0
