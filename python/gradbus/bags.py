"""Bags that servers pool: ids there, pooled rows back, and at the step the gradients of bags.

Rows of such a table do not travel: a bag costs its ids and one pooled row, and its gradient the same."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Tuple

import torch
from torch import Tensor

from . import _native
from .errors import ArgumentError, IdError
from .lookups import began

if TYPE_CHECKING:
    from .session import Session
    from .table import Table


def look_up_bags(
    session: Session, table: Table, keys: Tensor, offsets: Optional[Tensor], parameter: Optional[Tensor] = None
) -> Tensor:
    """Pooled rows, float32 ``[bags, dim]``, by one message a server. ``parameter``: that of the rows, where their
    gradients count at the next step; None where nothing trains.

    ``keys``: int64 ``[N]``, ``offsets``: int64 ``[bags]``, both contiguous; None: bags of one id each. Where it trains
    they stay as they are until the batch is committed. Errors: IdError, and those of the session."""
    lane = began(session, parameter is not None)
    bags = keys.numel() if offsets is None else offsets.numel()
    out = torch.empty((bags, table.dim), dtype=torch.float32, device="cpu")
    ask = _native.Ask(table=table.index, count=keys.numel(), keys=keys.data_ptr(), rows=out.data_ptr(), bags=bags)
    ask.offsets = None if offsets is None else offsets.data_ptr()
    lib, handle = session.native, session.handle
    try:
        if not session.look_up(lane, lib.lookup, handle, -1, ctypes.addressof(ask), 1):
            out.zero_()
    except ArgumentError as error:
        raise IdError(str(error).replace("key number", "id number", 1)) from None
    if parameter is None:
        return out
    pooled: Tensor = _Pooled.apply(parameter, (out,), lane, table, keys, offsets)
    return pooled


class _Pooled(torch.autograd.Function):
    """Pooled rows as they came; in the backward, their gradient's way to the session."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, parameter: Tensor, out: Tuple[Tensor], lane: Any, table: Table, keys: Tensor, offsets: Tensor
    ) -> Tensor:
        ctx.lane, ctx.table, ctx.keys, ctx.offsets, ctx.parameter = lane, table, keys, offsets, parameter
        return out[0]  # not an argument itself, which could not be changed in place

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        ctx.lane.add_bags(ctx.table, ctx.keys, ctx.offsets, grad.detach(), ctx.parameter)
        return ctx.parameter.data, None, None, None, None, None
