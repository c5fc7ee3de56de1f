"""What a lane contributes to a batch: gradients of rows, as backwards give them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import Tensor

from . import _native
from .errors import OrderError

if TYPE_CHECKING:
    from .lookups import Wish
    from .optimizer import Optimizer
    from .session import Session
    from .table import Table


class Piece(NamedTuple):
    """A gradient of rows, whose tensors live until the batch is committed."""

    table: int
    rows: int
    keys: int  # address of int64 [rows]
    grad: int  # address of float32 [rows, dim]
    memory: Tuple[Tensor, ...]
    parameter: Tensor  # TableModule.rows_parameter of the module that it is of
    bags: int = 0  # of a table that servers pool: grad is [bags, dim]
    offsets: Optional[int] = None  # address of int64 [bags]
    summed: bool = False  # its bags are the rows, each once

    def gradient(self, dim: int) -> Tensor:
        """The gradient itself, float32 ``[rows, dim]``."""
        whole = self.memory[1]
        first = (self.grad - whole.data_ptr()) // (4 * dim)
        return whole.view(-1, dim)[first : first + self.rows]


class Lane:
    """What a lane contributes: pieces of row gradients, in the order of their backwards."""

    __slots__ = (
        *("number", "optimizer", "forwards", "pieces", "fresh", "seen", "left", "written"),
        *("ended", "samples", "loss", "dense", "memory"),
    )

    def __init__(self, number: int, optimizer: Optimizer) -> None:
        self.number, self.optimizer = number, optimizer  # number of the lane in the job
        self.forwards = 0
        self.pieces: List[Piece] = []
        self.fresh: List[Piece] = []  # of the backward under way
        # By the id of a parameter: it, and its gradient with its version when the last backward ended.
        self.seen: Dict[int, Tuple[Tensor, Optional[Tensor], int]] = {}
        self.left = 0  # Optimizer.left_version when the last backward ended
        self.written: Set[int] = set()  # tables whose parameter has had its gradient written to since a backward
        self.ended = False
        self.samples, self.loss = 0, 0.0
        self.dense: Optional[int] = None  # address of an array of addresses
        self.memory: Any = None  # what dense points to

    def add(
        self,
        wish: Wish,
        trains: Sequence[bool],
        unique: Tensor,
        places: Sequence[Tuple[int, int, int]],
        grad: Tensor,
    ) -> None:
        """Takes the gradient of one forward's rows, of the tables that train. It is called by the backward.

        Errors: OrderError where the lane has ended: the batch of that forward is over.
        """
        self._check_open()
        if grad.dtype != torch.float32 or grad.device.type != "cpu" or not grad.is_contiguous():
            grad = grad.to("cpu", torch.float32).contiguous()
        self._begin_backward()
        memory = (unique, grad)
        keys, values, skip = unique.data_ptr(), grad.data_ptr(), wish.skip
        for table, parameter, trained, (at, row, distinct) in zip(wish.tables, wish.parameters, trains, places):
            if not trained:
                continue
            first, width = 0, 4 * table.dim
            if skip is not None:
                padding = (unique[at : at + distinct] == skip).nonzero()
                if padding.numel():
                    first = int(padding[0, 0]) + 1
                    if first > 1:
                        address = values + width * row
                        self.fresh.append(Piece(table.index, first - 1, keys + 8 * at, address, memory, parameter))
            if distinct > first:
                address = values + width * (row + first)
                piece = Piece(table.index, distinct - first, keys + 8 * (at + first), address, memory, parameter)
                self.fresh.append(piece)

    def add_bags(self, table: Table, keys: Tensor, offsets: Tensor, grad: Tensor, parameter: Tensor) -> None:
        """Takes the gradient of the bags of one forward, float32 ``[bags, dim]``, which is copied: autograd may have
        given the same memory to others. It is called by the backward. Errors: as of :meth:`add`."""
        self._check_open()
        own = torch.empty(grad.shape, dtype=torch.float32, device="cpu").copy_(grad)
        memory, bags = (keys, own, offsets), grad.shape[0]
        self._begin_backward()
        if bags:
            begins = offsets.data_ptr()
            piece = Piece(table.index, keys.numel(), keys.data_ptr(), own.data_ptr(), memory, parameter, bags, begins)
            self.fresh.append(piece)

    def _begin_backward(self) -> None:
        """In a backward: before its first pieces, drops those whose gradient was cleared since the last one; has
        :meth:`_accumulated` called at its end, when autograd has accumulated gradients."""
        if self.pieces and not self.fresh:
            self.drop_cleared()
        torch.autograd.Variable._execution_engine.queue_callback(self._accumulated)  # type: ignore[attr-defined]

    def _accumulated(self) -> None:
        """At the end of a backward: its pieces are the lane's, and their parameters have gradients."""
        fresh, seen, self.fresh, self.left = self.fresh, self.seen, [], self.optimizer.left_version()
        self.pieces += fresh
        for piece in fresh:
            parameter = piece.parameter
            grad = parameter.grad
            seen[id(parameter)] = parameter, grad, 0 if grad is None else grad._version

    def drop_cleared(self) -> None:
        """Drops the pieces of parameters whose gradient was cleared since their backward, and notes those whose gradient
        was written to, which reaches no row. Where an optimizer of torch.optim has made a step since then, it was that
        one which has cleared what it has used: then the rows' gradients stay."""
        if self.left != self.optimizer.left_version():
            return
        pieces, self.pieces = self.pieces, []
        for piece in pieces:
            parameter = piece.parameter
            grad = parameter.grad
            if grad is None:
                continue
            self.pieces.append(piece)
            _, then, version = self.seen[id(parameter)]
            if grad is then and grad._version != version:
                self.written.add(piece.table)

    def clear(self) -> None:
        """Forgets the gradients."""
        self.pieces, self.fresh = [], []
        self.seen.clear()
        self.written.clear()

    def _check_open(self) -> None:
        if self.ended:
            raise OrderError(
                "backward of a forward from before the last step: its lane has ended; want loss.backward() before "
                "opt.step()"
            )


def sum_of(session: Session, pieces: List[Piece]) -> Tuple[Piece, Tensor]:
    """The pieces of one table as one, whose keys are distinct, and its gradient."""
    table = next(t for t in session._tables.values() if t.index == pieces[0].table)
    if len(pieces) == 1 and (pieces[0].summed or not pieces[0].bags):
        return pieces[0], pieces[0].gradient(table.dim)
    count, found = sum(piece.rows for piece in pieces), ctypes.c_int64()
    keys = torch.empty(count, dtype=torch.int64, device="cpu")
    grad = torch.empty((count, table.dim), dtype=torch.float32, device="cpu")
    rows = filled((_native.Rows * len(pieces))(), pieces)
    lib = session.native
    arguments = keys.data_ptr(), grad.data_ptr(), ctypes.byref(found)
    lib.check(lib.coalesce(session.handle, ctypes.addressof(rows), len(pieces), *arguments))
    n = found.value
    piece = Piece(table.index, n, keys.data_ptr(), grad.data_ptr(), (keys, grad), pieces[0].parameter)
    if table.pooling is not None:  # one key a bag
        begins = torch.arange(n, dtype=torch.int64, device="cpu")
        piece = piece._replace(memory=(keys, grad, begins), bags=n, offsets=begins.data_ptr(), summed=True)
    return piece, grad[:n]


def filled(rows: Any, pieces: Sequence[Piece]) -> Any:
    """An array of the library's structures, with pieces."""
    for out, piece in zip(rows, pieces):
        out.table, out.count, out.keys, out.grad = piece.table, piece.rows, piece.keys, piece.grad
        out.bags, out.offsets = piece.bags, piece.offsets
    return rows
