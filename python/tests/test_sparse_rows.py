"""Rows of tables beside PyTorch's optimizers of `sparse=True`: which rows move, and by how much, kind by kind."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
from torch import nn

import gradbus

# Two rows in turn, each batch with another gradient: every second batch leaves a row out.
BATCHES = list(zip([0, 1, 0, 1, 0], [1.0, 2.0, 3.0, 4.0, 5.0]))


def ours(embeddings: Any) -> List[float]:
    """Both rows after the batches, from 0."""
    emb = gradbus.Embedding(2, 1, name="t", init=gradbus.Zeros())
    with gradbus.local("sparse-rows") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=embeddings)
        for row, gradient in BATCHES:
            (emb(torch.tensor([row])) * gradient).sum().backward()
            opt.step()
            opt.zero_grad()
        return session.lookup("t", torch.arange(2)).flatten().tolist()  # type: ignore[no-any-return]


def plain(make: Callable[..., Any], sparse: bool = True, **named: Any) -> List[float]:
    """The same by an optimizer of PyTorch's."""
    emb = nn.Embedding(2, 1, sparse=sparse)
    nn.init.zeros_(emb.weight)
    opt = make(emb.parameters(), **named)
    for row, gradient in BATCHES:
        (emb(torch.tensor([row])) * gradient).sum().backward()
        opt.step()
        opt.zero_grad()
    return emb.weight.flatten().tolist()  # type: ignore[no-any-return]


def test_sgd_is_the_same() -> None:
    assert ours(gradbus.SGD(0.125)) == plain(torch.optim.SGD, lr=0.125) == plain(torch.optim.SGD, sparse=False, lr=0.125)


def test_sgd_with_momentum_waits_for_its_rows() -> None:
    """PyTorch moves every row that its buffer has in every batch, as with a dense gradient; here a row waits."""
    assert ours(gradbus.SGD(0.1, momentum=0.9)) == pytest.approx([-1.341, -0.780], abs=1e-6)
    theirs = plain(torch.optim.SGD, lr=0.1, momentum=0.9)
    assert theirs == pytest.approx([-1.72251, -1.4478], abs=1e-6)
    assert theirs == pytest.approx(plain(torch.optim.SGD, sparse=False, lr=0.1, momentum=0.9), abs=1e-6)


@pytest.mark.parametrize("named", [{}, {"initial_accumulator_value": 0.5}, {"eps": 0.1}])
def test_adagrad_is_the_same(named: Any) -> None:
    got = ours(gradbus.Adagrad(0.25, **named))
    assert got == pytest.approx(plain(torch.optim.Adagrad, lr=0.25, **named), abs=1e-6)
    assert got == pytest.approx(plain(torch.optim.Adagrad, sparse=False, lr=0.25, **named), abs=1e-6)


def test_adam_is_sparse_adam_but_for_eps() -> None:
    got = ours(gradbus.Adam(0.25))
    assert got == pytest.approx(plain(torch.optim.SparseAdam, lr=0.25), abs=1e-5)
    dense = plain(torch.optim.Adam, sparse=False, lr=0.25)
    assert max(abs(a - b) for a, b in zip(got, dense)) > 0.1  # a row that sits out moves there
    # eps is beside the square root before its correction there, and after it here
    large = ours(gradbus.Adam(0.25, eps=0.5)), plain(torch.optim.SparseAdam, lr=0.25, eps=0.5)
    assert max(abs(a - b) for a, b in zip(*large)) > 0.1


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_pytorch_refuses_sparse_gradients_to_the_adams(make: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="sparse gradients"):
        plain(make, lr=0.25)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad])
def test_pytorch_refuses_weight_decay_of_sparse_gradients(make: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError):
        plain(make, lr=0.25, weight_decay=0.1)


def decayed(lr: float, decay: float) -> List[float]:
    """SGD whose decay moves the rows of a batch alone."""
    rows = [0.0, 0.0]
    for row, gradient in BATCHES:
        rows[row] -= lr * (gradient + decay * rows[row])
    return rows


def test_weight_decay_moves_the_rows_of_a_batch() -> None:
    assert ours(gradbus.SGD(0.25, weight_decay=0.5)) == pytest.approx(decayed(0.25, 0.5), abs=1e-6)
    dense = plain(torch.optim.SGD, sparse=False, lr=0.25, weight_decay=0.5)
    assert max(abs(a - b) for a, b in zip(decayed(0.25, 0.5), dense)) > 0.1
