"""Embedding and EmbeddingBag against those of torch.nn on the same rows.

The forward is PyTorch's on the same values, so it has equal bits. Gradients are added up in the order of ids in both,
so they have equal bits where no product is rounded. In mode mean PyTorch fuses the division by a bag's size with the
sum, and the library rounds it. With a rate of 1 the step is a subtraction with one rounding in both."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Tuple

import pytest
import torch

import gradbus

ROWS, DIM = 50, 6


@contextlib.contextmanager
def beside(ours: gradbus.Embedding | gradbus.EmbeddingBag, theirs: torch.nn.Module) -> Iterator[Tuple[Any, Any, Any]]:
    """A session with our module, whose rows their module is given, and an optimizer of each with a rate of 1."""
    with gradbus.local("modules") as session:
        opt = gradbus.Optimizer(ours, session, embeddings=gradbus.SGD(1.0))
        theirs.weight.data = session.lookup(ours.name, torch.arange(ROWS))
        if ours.padding_idx is not None:
            theirs.weight.data[ours.padding_idx] = 0
        yield session, opt, torch.optim.SGD(theirs.parameters(), lr=1.0)


# Of mean: a row is used four times by bags whose gradients are below 1, so each of two steps is off by (4+2) * 2^-24 *
# 4 and a subtraction.
MEAN = 2 * (6 * 4 + 4) * 2.0**-24


def same_tables(session: gradbus.Session, ours: Any, theirs: Any) -> None:
    rows = session.lookup(ours.name, torch.arange(ROWS))
    if ours.padding_idx is not None:
        rows[ours.padding_idx] = 0
    mean = getattr(ours, "mode", None) == "mean"
    assert (rows - theirs.weight).abs().max() <= (MEAN if mean else 0.0)


def train_both(session: Any, ours: Any, theirs: Any, opts: Any, arguments: Tuple[Any, ...], **named: Any) -> None:
    """Forward, backward and step of both on the same input, twice; outputs and tables have equal bits."""
    for _ in range(2):
        out, want = ours(*arguments, **named), theirs(*arguments, **named)
        assert (out - want).abs().max() <= (MEAN if getattr(ours, "mode", None) == "mean" else 0.0)
        assert out.dtype == want.dtype
        scale = torch.linspace(-1, 1, max(1, want.numel()))[: want.numel()].reshape(want.shape)
        for loss, opt in (((out * scale).sum(), opts[0]), ((want * scale).sum(), opts[1])):
            opt.zero_grad()
            loss.backward()
            opt.step()
        same_tables(session, ours, theirs)


BAGS = torch.tensor([3, 7, 7, 0, 49, 3, 12, 7, 3, 20])
OFFSETS = torch.tensor([0, 2, 2, 5, 10])  # the second and the last bag are empty


@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("form", ["2d", "offsets", "last", "strided"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str, form: str, kind: torch.dtype, padding: int | None) -> None:
    last = form == "last"
    ours = gradbus.EmbeddingBag(ROWS, DIM, mode=mode, padding_idx=padding, include_last_offset=last, name="t")
    theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, padding_idx=padding, include_last_offset=last)
    ids = BAGS.to(kind)
    arguments: Tuple[Any, ...] = (ids, OFFSETS.to(kind))
    if form == "2d":
        arguments = (ids.view(5, 2),)
    if form == "strided":
        arguments = (ids.view(5, 2).t(),)
        assert not arguments[0].is_contiguous()
    with beside(ours, theirs) as (session, *opts):
        train_both(session, ours, theirs, opts, arguments)


@pytest.mark.parametrize("padding", [None, 7])
def test_weighted_bags(padding: int | None) -> None:
    ours = gradbus.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=padding, name="t")
    theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=padding)
    mine = torch.linspace(0.1, 2, 10).requires_grad_()
    other = mine.detach().clone().requires_grad_()
    with beside(ours, theirs) as (session, *opts):
        out, want = ours(BAGS, OFFSETS, per_sample_weights=mine), theirs(BAGS, OFFSETS, per_sample_weights=other)
        assert torch.equal(out, want)
        out.square().sum().backward()
        want.square().sum().backward()
        assert torch.allclose(
            mine.grad, other.grad, rtol=7 * 2.0**-23, atol=1e-6
        )  # sums of six products, in an order by alignment
        for opt in opts:
            opt.step()
        same_tables(session, ours, theirs)


@pytest.mark.parametrize("padding", [None, 7])
@pytest.mark.parametrize("shape", [(10,), (2, 5), (1, 5, 2), ()])
def test_embedding(shape: Tuple[int, ...], padding: int | None) -> None:
    ours = gradbus.Embedding(ROWS, DIM, padding_idx=padding, name="t")
    theirs = torch.nn.Embedding(ROWS, DIM, padding_idx=padding)
    ids = BAGS.reshape(shape) if shape else torch.tensor(7)
    with beside(ours, theirs) as (session, *opts):
        train_both(session, ours, theirs, opts, (ids,))


def test_the_padding_row_stays() -> None:
    """Not even weight decay, which moves each row that a batch uses, moves the padding row: it is not used."""
    emb = gradbus.EmbeddingBag(ROWS, DIM, padding_idx=7, name="t")
    with gradbus.local("padding") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(0.1, weight_decay=0.5))
        before = session.lookup("t", torch.arange(ROWS))
        emb(BAGS, OFFSETS).sum().backward()
        opt.step()
        moved = (session.lookup("t", torch.arange(ROWS)) != before).any(1).nonzero().flatten()
        assert moved.tolist() == [0, 3, 12, 20, 49]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_no_ids(mode: str) -> None:
    """Bags without ids are zeros that require a gradient, and a batch of them moves nothing."""
    emb = gradbus.EmbeddingBag(ROWS, DIM, mode=mode, name="t")
    with gradbus.local("empty") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0, weight_decay=0.5))
        before = session.digest()
        none = torch.zeros(0, dtype=torch.int64)
        for arguments in ((none, torch.zeros(3, dtype=torch.int64)), (none.view(3, 0),), (none.view(0, 4),)):
            out = emb(*arguments)
            assert out.shape == (0 if len(arguments) == 1 and arguments[0].shape[0] == 0 else 3, DIM)
            assert out.requires_grad and not out.any()
            out.sum().backward()
            opt.step()
        assert session.batch == 3 and session.digest() == before
        assert gradbus.Embedding(ROWS, DIM, name="t", session=session)(none.view(2, 0)).shape == (2, 0, DIM)


def test_eval_and_no_grad_train_nothing() -> None:
    emb = gradbus.Embedding(ROWS, DIM, name="t")
    with gradbus.local("eval") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        with torch.no_grad():
            assert not emb(BAGS).requires_grad
        emb.eval()
        assert not emb(BAGS).requires_grad
        with pytest.raises(gradbus.OrderError, match="step without a forward in training mode"):
            opt.step()
        emb.train()
        first = emb(BAGS)
        first.sum().backward()
        with torch.no_grad():
            assert torch.equal(emb(BAGS), first)  # of the version of the batch under way
        opt.step()
        emb.eval()
        assert torch.equal(emb(torch.tensor([0, 1])), torch.stack([first[3] - 1, emb(torch.tensor(1))]))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(kind: torch.dtype) -> None:
    """half(), to(dtype): the output is that of a module of torch.nn that was converted, and servers have float32."""
    ours, theirs = gradbus.Embedding(ROWS, DIM, name="t"), torch.nn.Embedding(ROWS, DIM)
    with beside(ours, theirs) as (session, opt, _):
        before = theirs.weight.detach().clone()
        out, want = torch.nn.Sequential(ours).to(kind)(BAGS), theirs.to(kind)(BAGS)
        assert out.dtype == kind and torch.equal(out, want)
        (out * 0.5).sum().backward()
        opt.step()
        counts = torch.bincount(BAGS, minlength=ROWS).unsqueeze(1)
        assert torch.equal(session.lookup("t", torch.arange(ROWS)), before - 0.5 * counts)


def test_autocast() -> None:
    """Rows stay float32 under autocast, as those of torch.nn do, and what comes behind is cast."""
    ours, theirs = gradbus.EmbeddingBag(ROWS, DIM, name="t"), torch.nn.EmbeddingBag(ROWS, DIM)
    linear = torch.nn.Linear(DIM, 2)
    with beside(ours, theirs) as (session, *opts):
        for module, opt in zip((ours, theirs), opts):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                bags = module(BAGS, OFFSETS)
                out = linear(bags)
            assert bags.dtype == torch.float32 and out.dtype == torch.bfloat16
            out.float().sum().backward()
            opt.step()
        same_tables(session, ours, theirs)


@pytest.mark.parametrize(
    "ids, says",
    [
        ([0, 50], 'table "t".*number 1 is 50: want 0 to 49'),
        ([3, 4, -1], 'table "t".*number 2 is -1: want 0 to 49'),
        ([2**62], 'table "t".*number 0 is 4611686018427387904'),
    ],
)
def test_ids_out_of_range(ids: Any, says: str) -> None:
    emb = gradbus.Embedding(ROWS, DIM, name="t")
    with gradbus.local("range") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        for train in (True, False):
            emb.train(train)
            with pytest.raises(gradbus.IdError, match=says) as caught:
                emb(torch.tensor(ids))
            assert isinstance(caught.value, IndexError)
        emb.train()(BAGS).sum().backward()  # the session goes on
        opt.step()


def test_wrong_input() -> None:
    emb = gradbus.EmbeddingBag(ROWS, DIM, name="t")
    with gradbus.local("wrong") as session:
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        for arguments, named, says in (
            ((torch.zeros(2, 2),), {}, "table 't': ids are torch.float32: want torch.int64"),
            ((BAGS > 3, OFFSETS), {}, "table 't': ids are torch.bool"),
            ((BAGS,), {}, "table 't': input of 1 dimensions without offsets: want 1 with offsets, or 2 without"),
            ((BAGS.view(5, 2), OFFSETS), {}, "input of 2 dimensions with offsets"),
            ((BAGS.view(5, 2).to("meta"),), {}, "device meta"),
            (
                (BAGS.view(5, 2),),
                {"per_sample_weights": torch.ones(5, 2)},
                "per_sample_weights with mode 'mean': want mode 'sum'",
            ),
        ):
            with pytest.raises(gradbus.ArgumentError, match=says):
                emb(*arguments, **named)
        with pytest.raises(gradbus.ArgumentError, match="want the shape of input"):
            gradbus.EmbeddingBag(ROWS, DIM, mode="sum", name="t", session=session)(
                BAGS.view(5, 2), per_sample_weights=torch.ones(2, 5)
            )


def test_wrong_modules() -> None:
    for make, says in (
        (lambda: gradbus.Embedding(0, 4, name="a"), "Embedding 'a' of 0 rows of 4: want at least 1"),
        (lambda: gradbus.Embedding(4, 4, padding_idx=4, name="a"), "padding_idx 4: want an integer, at least -4 and at most 3"),
        (lambda: gradbus.Embedding(4, 4, padding_idx=1, hashed=True), "padding_idx with hashed"),
        (
            lambda: gradbus.EmbeddingBag(4, 4, mode="median", name="b"),
            "EmbeddingBag 'b': mode 'median': want 'sum', 'mean' or 'max'",
        ),
    ):
        with pytest.raises(gradbus.ConfigError, match=says):
            make()
    with pytest.raises(gradbus.OrderError, match="want session=..., or gradbus.Optimizer"):
        gradbus.Embedding(4, 4)(torch.tensor([1]))


def test_hashed_ids() -> None:
    """A hashed module is one of the rows that docs/ids.md gives its ids: any 64 bits, and apart by salt."""
    ids = torch.tensor([5, -5, 2**63 - 1, -(2**63)])
    with gradbus.local("hashed") as session:
        plain = gradbus.Embedding(1000, DIM, name="t", session=session)
        emb = gradbus.Embedding(1000, DIM, name="t", session=session, hashed=True, salt=3)
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        assert torch.equal(emb(ids), plain(gradbus.hash_id(ids, 1000, 3)))
        assert not torch.equal(emb(ids), plain(gradbus.hash_id(ids, 1000, 4)))


def test_gradcheck() -> None:
    """What a module computes from its rows is differentiated right, in float64: the leaf itself is float32, which
    gradcheck cannot use."""
    torch.manual_seed(0)
    ids, offsets = torch.tensor([0, 2, 2, 1, 3, 0]), torch.tensor([0, 3, 3])
    for mode in ("sum", "mean", "max"):
        emb = gradbus.EmbeddingBag(ROWS, 3, mode=mode, name="t")
        weights = torch.rand(6, dtype=torch.float64, requires_grad=True) if mode == "sum" else None
        for padding in (None, 2):
            rows = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
            inputs = (rows,) if weights is None else (rows, weights)
            assert torch.autograd.gradcheck(
                lambda *a: emb.pool(a[0], ids, offsets, a[1] if len(a) > 1 else None, padding), inputs
            )


def test_a_rows_gradient_by_differences() -> None:
    """The whole way, by central differences of the loss in the table itself: a step of rate 1 moves a row by its
    gradient.

    The loss is a square of sums of rows, so the central difference has no error of its own; what float32 adds is below
    1e-5 of values that are below 10."""
    emb = gradbus.EmbeddingBag(4, 2, mode="mean", name="t")
    ids, offsets = torch.tensor([1, 3, 3, 1, 0]), torch.tensor([0, 3])
    with gradbus.local("differences") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        table = session.lookup("t", torch.arange(4))

        def loss(rows: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding_bag(ids, rows, offsets, mode="mean").square().sum()

        emb(ids, offsets).square().sum().backward()
        opt.step()
        moved = (table - session.lookup("t", torch.arange(4))).double()
        for row in range(4):
            for d in range(2):
                step = torch.zeros(4, 2, dtype=torch.float64)
                step[row, d] = 1e-3
                difference = (loss(table.double() + step) - loss(table.double() - step)) / 2e-3
                assert abs(difference - moved[row, d]) < 1e-5
