"""Rows of a forward: distinct ids, their rows as one tensor, and where the gradient of these rows goes.

The rows of one call lie in one tensor, a leaf as far as autograd knows: what a module computes with it is PyTorch's own
forward and backward. Its gradient comes back through :class:`_Leaf`, and waits with the session for the step. Nothing
is copied: the library reads ids and gradients where PyTorch has them, and writes rows into the memory of a tensor."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _native, pooling
from .errors import ArgumentError, IdError, OrderError
from .ids import hash_id
from .table import one_salt

if TYPE_CHECKING:
    from .session import Session
    from .table import Table

NO_GRAPH = (
    "a graph of torch.jit would have the rows of one call in it: want session.save(path), then "
    "saved = gradbus.open_model(path), saved.load_into(plain_model), and the graph of that"
)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Looked(NamedTuple):
    """Rows of one or more tables of one dim, and ids into them."""

    rows: Tensor  # float32 [at least 1, dim]: the distinct rows of the first table, of the second, ...
    ids: Tensor  # int64 [count of all]: rows[ids[i]] is the row of the i-th id; first those of the first table
    unique: Tensor  # int64 [count of all]: from the place of a table on, its distinct ids
    places: List[Tuple[int, int, int]]  # of each table: where its ids begin, where its rows begin, how many they are


class _Asks(threading.local):
    """Structures of a thread's calls: made once, and made anew where a call has more tables."""

    def __init__(self) -> None:
        self.room = 0
        self.of(8)

    def of(self, n: int) -> Any:
        if n > self.room:
            self.room = n
            self.array = (_native.Ask * n)()
            self.address = ctypes.addressof(self.array)
            self.each = list(self.array)  # indexing a ctypes array makes an object each time
        return self.each


_asks = _Asks()


class Wish(NamedTuple):
    """Flat ids of tables that have one dim."""

    tables: Sequence[Table]
    ids: Sequence[Tensor]  # of flat_ids, one a table
    skip: Optional[int] = None  # an id whose row reads as zeros and gets no gradient: the padding index
    parameters: Sequence[Tensor] = ()  # one a table where it trains: TableModule.rows_parameter


def flat_ids(ids: Any, what: str) -> Tensor:
    """int64, one-dimensional, contiguous, in the memory of the processor: ``ids`` itself where it is so already.

    Errors: ArgumentError that begins with ``what``, which has the ids, where they are no integers.
    """
    flat: Tensor = ids if is_flat(ids) else flat_integers(f"{what}: ids", ids)
    return flat


def is_flat(given: Any) -> bool:
    """Whether the library can read it as it is: int64, one-dimensional, contiguous, in the memory of the processor."""
    return (
        isinstance(given, Tensor)
        and given.dtype == torch.int64
        and given.dim() == 1
        and given.layout == torch.strided
        and given.device.type == "cpu"
        and given.is_contiguous()
    )


def flat_integers(what: str, given: Any) -> Tensor:
    """The same of any tensor of integers; ``what`` names it. Errors: ArgumentError."""
    if not isinstance(given, Tensor):
        raise ArgumentError(f"{what} are {type(given).__name__}: want a tensor of torch.int64 or torch.int32")
    if given.dtype not in INTEGERS:
        raise ArgumentError(f"{what} are {given.dtype}: want torch.int64 or torch.int32")
    if given.layout != torch.strided:
        raise ArgumentError(f"{what} are {given.layout}: want torch.strided, as of to_dense()")
    if given.device.type != "cpu":
        if given.device.type == "meta":
            raise ArgumentError(f"{what} are on device meta, which has no values: want cpu")
        given = given.cpu()
    return given.reshape(-1).to(torch.int64).contiguous()


def look_up(session: Session, wishes: Sequence[Wish], train: bool) -> List[Looked]:
    """The rows of all wishes, by one message a shard. ``train``: their gradients count at the next step.

    Errors: IdError, and those of the session.
    """
    lane, out = _fetched(session, wishes, train)
    if not train:
        return out
    return [
        looked._replace(rows=_Leaf.apply(looked.rows, lane, wish, looked, *wish.parameters))
        for wish, looked in zip(wishes, out)
    ]


def embed(
    session: Session,
    table: Table,
    ids: Tensor,
    parameter: Tensor,
    offsets: Optional[Tensor] = None,
    mean: bool = False,
) -> Tensor:
    """The row of each id, ids being those of flat_ids, or with offsets the sum or mean of each bag, for training:
    ``look_up`` and what :mod:`.pooling` computes as one operation of autograd.

    Errors: as of :func:`look_up`.
    """
    wish = Wish([table], [ids], None, [parameter])
    lane, out = _fetched(session, [wish], True)
    given: Tensor = _Pooled.apply(out[0].rows, lane, wish, out[0], parameter, offsets, mean)
    return given


def rows_of_ids(session: Session, table: Any, ids: Tensor) -> Tensor:
    """:meth:`Session.lookup`."""
    from .modules import TableModule

    found = session._registered(table.table if isinstance(table, TableModule) else table)
    if isinstance(table, TableModule):
        salt = table.salt if table.hashed else None
    else:
        salt = one_salt(found.name, found.salts, "session.lookup(module, ids)")
    flat = flat_ids(ids, f"table {found.name!r}")
    if salt is not None:
        flat = hash_id(flat, found.rows, salt)
    if found.pooling is not None:
        from .bags import look_up_bags

        return look_up_bags(session, found, flat, None).reshape(*ids.shape, found.dim)
    looked = look_up(session, [Wish([found], [flat])], train=False)[0]
    rows = torch.nn.functional.embedding(looked.ids, looked.rows)
    return rows.reshape(*ids.shape, found.dim)


def began(session: Session, train: bool) -> Any:
    """The lane that a forward counts for, None where it does not train. Errors: OrderError where PyTorch traces."""
    if torch.jit.is_tracing():  # type: ignore[no-untyped-call,attr-defined,unused-ignore]
        raise OrderError(NO_GRAPH)
    if train:
        return session.begin_forward()
    session.begin_reading()
    return None


def _fetched(session: Session, wishes: Sequence[Wish], train: bool) -> Tuple[Any, List[Looked]]:
    """Rows as they came, and the lane that they count for; None where they do not train."""
    lane = began(session, train)
    lib, handle = session.native, session.handle
    n = sum(len(w.tables) for w in wishes)
    asks = _asks.of(n)
    address = _asks.address
    buffers = []
    i = 0
    for wish in wishes:
        counts = [ids.numel() for ids in wish.ids]
        total = sum(counts)
        local, unique = (torch.empty(total, dtype=torch.int64, device="cpu") for _ in range(2))
        buffers.append((counts, local, unique))
        local_at, unique_at = local.data_ptr(), unique.data_ptr()
        for table, ids, count in zip(wish.tables, wish.ids, counts):
            ask = asks[i]
            ask.table, ask.count, ask.keys, ask.ids, ask.unique = (
                table.index,
                count,
                ids.data_ptr(),
                local_at,
                unique_at,
            )
            ask.rows = None
            local_at, unique_at, i = local_at + 8 * count, unique_at + 8 * count, i + 1
    code = lib.distinct(handle, address, n)
    if code:
        if code == _native.ARGUMENT:
            raise IdError((lib.error() or b"").decode("utf-8", "replace").replace("key number", "id number", 1))
        lib.raise_error(code)
    out = [_place(wish, *buffers[w], asks, first) for w, (wish, first) in enumerate(_firsts(wishes))]
    if not session.look_up(lane, lib.lookup, handle, -1, address, n):
        for looked in out:
            looked.rows.zero_()
    for wish, looked in zip(wishes, out):
        if wish.skip is not None:
            _blank(looked, wish.skip)
    return lane, out


def _firsts(wishes: Sequence[Wish]) -> List[Tuple[Wish, int]]:
    first, out = 0, []
    for wish in wishes:
        out.append((wish, first))
        first += len(wish.tables)
    return out


def _place(wish: Wish, counts: List[int], local: Tensor, unique: Tensor, asks: Any, first: int) -> Looked:
    """Gives every ask of a wish its part of one tensor of rows, and makes its ids those of the whole tensor."""
    dim = wish.tables[0].dim
    places: List[Tuple[int, int, int]] = []
    total = at = 0
    for i, count in enumerate(counts):
        distinct = asks[first + i].distinct
        places.append((at, total, distinct))
        total, at = total + distinct, at + count
    if len(counts) > 1 and at and counts.count(counts[0]) == len(counts):  # one operation for all tables
        firsts = torch.tensor([row for _, row, _ in places], dtype=torch.int64, device="cpu")
        local.view(len(counts), -1).add_(firsts.unsqueeze(1))
    else:
        for (begin, row, _), count in zip(places, counts):
            if row and count:
                local[begin : begin + count] += row
    rows = torch.empty((total or 1, dim), dtype=torch.float32, device="cpu")
    if not total:
        rows.zero_()
    base = rows.data_ptr()
    for i, (_, row, _) in enumerate(places):
        asks[first + i].rows = base + 4 * dim * row
    return Looked(rows, local, unique, places)


def _blank(looked: Looked, skip: int) -> None:
    """Makes the row of an id zeros."""
    for at, row, distinct in looked.places:
        looked.rows[row : row + distinct][looked.unique[at : at + distinct] == skip] = 0


class _Leaf(torch.autograd.Function):
    """Rows as they came; in the backward, their gradient's way to the session."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: Tensor, lane: Any, wish: Wish, looked: Looked, *parameters: Tensor
    ) -> Tensor:
        ctx.lane, ctx.wish, ctx.unique, ctx.places = lane, wish, looked.unique, looked.places
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        trains = ctx.needs_input_grad[4:]
        ctx.lane.add(ctx.wish, trains, ctx.unique, ctx.places, grad.detach())
        # That a parameter has a gradient says that its rows have. It has no elements, like data, which is the cheapest
        # tensor with a version of its own.
        return None, None, None, None, *[p.data if wanted else None for p, wanted in zip(ctx.wish.parameters, trains)]


class _Pooled(torch.autograd.Function):
    """A row for each id or bag; in the backward, the sums of their gradients for the session."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        rows: Tensor,
        lane: Any,
        wish: Wish,
        looked: Looked,
        parameter: Tensor,
        offsets: Optional[Tensor],
        mean: bool,
    ) -> Tensor:
        ctx.lane, ctx.wish, ctx.unique, ctx.places = lane, wish, looked.unique, looked.places
        ctx.save_for_backward(looked.ids, offsets)
        ctx.mean, ctx.shape = mean, rows.shape
        return pooling.pooled(rows, looked.ids, offsets, mean)

    @staticmethod
    @once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        ids, offsets = ctx.saved_tensors
        sums = pooling.sums(grad.contiguous(), ids, offsets, ctx.mean, ctx.shape)
        ctx.lane.add(ctx.wish, [True], ctx.unique, ctx.places, sums)
        return None, None, None, None, ctx.wish.parameters[0].data, None, None
