"""EmbeddingBag(pool="servers"): against torch.nn.EmbeddingBag, in every kind of forward and step."""

from __future__ import annotations

import pathlib
from typing import Any, Optional, Tuple

import pytest
import torch
from test_trainers import servers, train
from torch import Tensor, nn

import gradbus

ROWS, DIM = 40, 5
UNIT = 2.0**-24  # what rounding a float32 may change, in relation to it


def both(session: gradbus.Session, mode: str, lr: float = 1.0, **more: Any) -> Tuple[Any, Any, nn.EmbeddingBag]:
    """A module of servers that pool, its optimizer, and PyTorch's module with the same rows."""
    emb = gradbus.EmbeddingBag(ROWS, DIM, mode=mode, name="t", pool="servers", **more)
    opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(lr))
    plain = nn.EmbeddingBag(ROWS, DIM, mode=mode, include_last_offset=emb.include_last_offset)
    with torch.no_grad():
        plain.weight.copy_(session.lookup("t", torch.arange(ROWS)))
    return emb, opt, plain


def bound(plain: nn.EmbeddingBag, ids: Tensor, offsets: Optional[Tensor], terms: int) -> Tensor:
    """Two sums of n terms, in any order, are at most 2 n roundings of the sum of magnitudes apart; a mean's division by
    a number or product with its inverse is two more."""
    copy = nn.EmbeddingBag(ROWS, DIM, mode=plain.mode, include_last_offset=plain.include_last_offset)
    with torch.no_grad():
        copy.weight.copy_(plain.weight.abs())
        return 2 * (terms + 2) * UNIT * copy(ids, offsets)


def inputs(form: str) -> Tuple[Tensor, Optional[Tensor], bool]:
    g = torch.Generator().manual_seed(len(form))
    if form == "columns":
        return torch.randint(0, ROWS, (30, 4), generator=g), None, False
    lengths = torch.zeros(6, dtype=torch.int64) if form == "empty" else torch.randint(0, 9, (30,), generator=g)
    ids = torch.randint(0, ROWS, (int(lengths.sum()),), generator=g)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    if form == "last":
        return ids, offsets, True
    return (ids.int() if form == "int32" else ids), (offsets[:-1].int() if form == "int32" else offsets[:-1]), False


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("form", ["columns", "offsets", "last", "int32", "empty"])
def test_forward_and_backward_are_those_of_pytorch(mode: str, form: str) -> None:
    ids, offsets, last = inputs(form)
    with gradbus.local("bags", shards=2) as session:
        emb, opt, plain = both(session, mode, include_last_offset=last)
        before = plain.weight.detach().clone()
        got, want = emb(ids, offsets), plain(ids, offsets)
        assert got.shape == want.shape and got.requires_grad
        assert bool(((got - want).abs() <= bound(plain, ids, offsets, 8)).all())
        grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(1))
        got.backward(grad)
        want.backward(grad)
        grad.zero_()  # what was given to the backward is the caller's again
        opt.step()
        after, moved = session.lookup("t", torch.arange(ROWS)), plain.weight.grad
        assert moved is not None
        # Sums of n gradients of bags, and one subtraction from the row.
        n = torch.bincount(ids.reshape(-1), minlength=ROWS)[:, None]
        near = 2 * (n + 3) * UNIT * (before.abs() + 4 * n)
        assert bool(((after - (before - moved)).abs() <= near).all())
        assert form == "empty" or not torch.equal(after, before)


def test_what_a_script_does_between_forwards() -> None:
    """Accumulation, ids that are filled anew, evaluation, no_grad, a skipped lane, a forward in half precision."""
    with gradbus.local("between", lanes=2) as session:
        emb, opt, plain = both(session, "sum", lr=2.0)  # two lanes of weight 1
        rows = plain.weight.detach().clone()
        ids, offsets = torch.tensor([3, 3, 5]), torch.tensor([0, 2])
        first = emb(ids, offsets)
        second = emb(ids[:2].view(1, 2))
        (first.sum() + 2 * second.sum()).backward()
        ids.fill_(7), offsets.zero_()
        assert torch.equal(emb.eval()(torch.tensor([[3]])), rows[[3]]) and emb(torch.tensor([[3]])).grad_fn is None
        with torch.no_grad():
            assert torch.equal(emb.train()(torch.tensor([[5], [1]])), rows[[5, 1]])
        opt.step()
        with pytest.raises(gradbus.OrderError, match="its lane has ended"):
            first.sum().backward()
        opt.zero_grad()
        emb(torch.tensor([[5]])).sum().backward()
        opt.step()
        rows[3] -= 2 + 4
        rows[5] -= 1 + 1
        assert torch.allclose(session.lookup("t", torch.arange(ROWS)), rows, rtol=0, atol=1e-5)
        assert session.lookup("t", torch.tensor([[3, 3], [5, 0]])).shape == (2, 2, DIM)
        emb.half()
        half = emb(torch.tensor([[1, 2]]))
        assert half.dtype == torch.float16
        half.sum().backward()
        opt.step()
        session.skip()
        rows[1:3] -= 2  # one lane of two
        assert torch.allclose(session.lookup("t", torch.arange(ROWS)), rows, rtol=0, atol=1e-5)


def test_save_and_begin_from_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors"
    with gradbus.local("first") as session:
        emb, opt, _ = both(session, "mean")
        emb(torch.tensor([[1, 2], [2, 2]])).sum().backward()
        opt.step()
        session.save(path)
        digest, rows = session.digest(), session.lookup("t", torch.arange(ROWS))
    with gradbus.SavedModel(path) as model:
        assert torch.equal(model.lookup("t", torch.arange(ROWS)), rows)
    with gradbus.local("second", start=path) as session:
        emb, _, _ = both(session, "mean")
        assert session.digest() == digest
        assert torch.equal(emb.eval()(torch.tensor([[2]])), rows[[2]])


@pytest.fixture(scope="module")
def alone() -> str:
    """What one trainer prints, with one shard within its process."""
    return train("local", 1, 4, "--pool", "servers")[0]


@pytest.mark.parametrize("trainers, shards", [(1, 1), (2, 1), (4, 2)])
def test_the_digest_is_that_of_one_trainer(alone: str, trainers: int, shards: int, tmp_path: pathlib.Path) -> None:
    with servers(tmp_path, shards) as url:
        assert train(url, trainers, 4, "--pool", "servers") == [alone] * trainers


def test_refusals() -> None:
    for more, says in (
        ({"mode": "max"}, "pool 'servers' with mode 'max': want mode 'sum' or 'mean'"),
        ({"padding_idx": 3}, "pool 'servers' with padding_idx 3"),
        ({"pool": "shards"}, "pool 'shards': want 'client' or 'servers'"),
    ):
        with pytest.raises(gradbus.ConfigError, match=says):
            gradbus.EmbeddingBag(ROWS, DIM, name="t", **{"pool": "servers", **more})  # type: ignore[arg-type]
    with gradbus.local("refusals") as session:
        emb, _, _ = both(session, "sum")
        with pytest.raises(gradbus.ConfigError, match="feature 'f' has pool 'servers'"):
            gradbus.EmbeddingBagCollection({"f": emb})
        with pytest.raises(gradbus.ConfigError, match="the session has it as"):
            gradbus.EmbeddingBag(ROWS, DIM, mode="sum", name="t", session=session)
        one = torch.tensor([1])
        with pytest.raises(gradbus.ArgumentError, match="per_sample_weights with pool 'servers'"):
            emb(one.view(1, 1), None, torch.ones(1, 1))
        for wrong, says in (
            ([1], "table 't': offsets begin at 1: want 0"),
            ([0, 2], "offsets end at 2: want at most the 1 ids"),
        ):
            with pytest.raises(gradbus.ArgumentError, match=says):
                emb(one, torch.tensor(wrong, dtype=torch.int64))
        with pytest.raises(gradbus.ArgumentError, match="torch.float32"):
            emb(one, torch.zeros(1))
        for ids, says in (([[2, ROWS]], f"id number 1 is {ROWS}"), ([[-1, 0]], "id number 0 is -1: want 0 to 39")):
            with pytest.raises(gradbus.IdError, match=says):
                emb(torch.tensor(ids))
        assert emb(torch.zeros((0, 3), dtype=torch.int64)).shape == (0, DIM)
        assert "pool='servers'" in repr(emb)
