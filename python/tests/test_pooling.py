"""The library's gradient of bags against PyTorch's own."""

from __future__ import annotations

import ctypes
from typing import Optional

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gradbus import _native, pooling


def plain(rows: Tensor, ids: Tensor, offsets: Optional[Tensor], mode: str, grad: Tensor) -> Tensor:
    leaf = rows.detach().requires_grad_()
    functional.embedding_bag(ids, leaf, offsets, mode=mode).backward(grad)
    assert leaf.grad is not None
    return leaf.grad


def test_by_hand() -> None:
    rows = torch.zeros(3, 2, requires_grad=True)
    pooling.bags(rows, torch.tensor([0, 2, 2, 0]), torch.tensor([0, 1, 1]), "sum").backward(
        torch.tensor([[1.0, 2.0], [9.0, 9.0], [10.0, 20.0]])
    )
    assert rows.grad is not None and rows.grad.tolist() == [[11.0, 22.0], [0.0, 0.0], [20.0, 40.0]]
    rows.grad = None
    pooling.bags(rows, torch.tensor([0, 2, 2, 0]), torch.tensor([0, 0, 2]), "mean").backward(
        torch.tensor([[9.0, 9.0], [2.0, 4.0], [8.0, 6.0]])
    )
    assert rows.grad is not None and rows.grad.tolist() == [[5.0, 5.0], [0.0, 0.0], [5.0, 5.0]]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dim", [1, 3, 32, 65])
@pytest.mark.parametrize("form", ["offsets", "empty"])
def test_gradient_is_that_of_pytorch(mode: str, dim: int, form: str) -> None:
    torch.manual_seed(dim)
    rows = torch.randn(50, dim, requires_grad=True)
    lengths = torch.randint(0, 9, (60,)) if form == "offsets" else torch.zeros(60, dtype=torch.int64)
    ids, bags = torch.randint(0, 50, (int(lengths.sum()),)), 60
    offsets = lengths.cumsum(0) - lengths
    grad = torch.randn(bags, dim)
    out = pooling.bags(rows, ids, offsets, mode)
    assert torch.equal(out, functional.embedding_bag(ids, rows.detach(), offsets, mode=mode))
    out.backward(grad)
    # Each of two sums of n products is off the true one by at most (n + 1) roundings of the sum of magnitudes.
    n = torch.bincount(ids.reshape(-1), minlength=50)[:, None]
    bound = 2 * (n + 1) * 2.0**-24 * plain(rows, ids, offsets, mode, grad.abs())
    assert rows.grad is not None and bool(((rows.grad - plain(rows, ids, offsets, mode, grad)).abs() <= bound).all())


def test_rows_of_ids_and_a_gradient_that_is_not_contiguous() -> None:
    torch.manual_seed(1)
    rows, ids, grad = torch.randn(20, 4, requires_grad=True), torch.randint(0, 20, (5, 6)), torch.randn(4, 6, 5)
    pooling.each(rows, ids).backward(grad.transpose(0, 2))
    leaf = rows.detach().requires_grad_()
    functional.embedding(ids, leaf).backward(grad.transpose(0, 2))
    assert rows.grad is not None and leaf.grad is not None and torch.allclose(rows.grad, leaf.grad, rtol=0, atol=1e-5)


def test_who_is_left_to_pytorch() -> None:
    rows = torch.zeros(2, 2, requires_grad=True)
    assert pooling.applies(rows, "sum") and pooling.applies(rows, "mean")
    assert not pooling.applies(rows, "max")
    assert not pooling.applies(rows.detach(), "sum")
    assert not pooling.applies(torch.zeros(2, 2, dtype=torch.float64, requires_grad=True), "sum")


@pytest.mark.parametrize(
    "ids, offsets", [([0, 3], [0, 1]), ([0, -1], [0, 1]), ([0, 1], [1, 1]), ([0, 1], [0, 3]), ([0, 1], [0, 2, 1])]
)
def test_what_does_not_fit_is_refused(ids: list, offsets: list) -> None:  # type: ignore[type-arg]
    library, out, grad = _native.native(), torch.full((3, 1), 7.0), torch.ones(3, 1)
    i, o = torch.tensor(ids), torch.tensor(offsets)
    code = library.bag_gradient(
        i.data_ptr(), len(ids), o.data_ptr(), len(offsets), 0, grad.data_ptr(), 1, out.data_ptr(), 3
    )
    assert code == _native.ARGUMENT and b"offsets" in ctypes.string_at(library.error())
    assert out.tolist() == [[7.0]] * 3
