"""The batch under way: its lanes, what each contributes, and when it is committed."""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from torch import Tensor

from . import _native
from .errors import ArgumentError, OrderError, RewoundError
from .lane import Lane, Piece, filled, sum_of

if TYPE_CHECKING:
    from .session import Session

_SAMPLES_MAX = 2**31 - 1

_log = logging.getLogger("gradbus")


class Batches:
    """Goes from batch to batch. Its calls hold the session's lock; errors of the library end the session.

    A :class:`~gradbus.LaneLoader` drives it: it says what is to be computed (:meth:`tell`), and forwards and steps are of
    the lane that it has delivered. When servers are lost, or a place is another trainer's by now, that lane counts for
    nothing: its forwards read zeros and its step does nothing, until the loader goes on from where the job is."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._batch = _native.Batch()
        self._lanes: List[Lane] = []  # of the batch under way: those that have ended, and the current one
        self._open = self._pending = False  # begun; committed, and since then neither begun nor settled
        self._begun = False  # a batch has begun ever
        self.number = 0
        self.failed = False
        self.driven = False  # by a loader
        self.finished = False  # the loader has delivered all batches, and they are complete
        self._delivered: Optional[Lane] = None  # by the loader, not ended
        self._void = False  # what is under way counts for nothing, and the loader has to come back to the job
        self._recount = False  # number is to be that of what was committed, when that is complete
        self._steps: Any = None
        self._rows: List[Any] = []  # of each lane, an array with room for its pieces

    def lane(self) -> int:
        """The lane that the next end ends."""
        if self.driven and self._lanes:
            return self._lanes[-1].number
        return self._session.lanes[max(0, len(self._lanes) - 1)]

    def is_open(self) -> bool:
        """Whether a batch has begun that is not committed."""
        return self._open

    def is_incomplete(self) -> bool:
        """Whether further lanes of the batch that was committed last are to be computed, when it has settled."""
        return self._pending

    def untouched(self) -> int:
        """The first batch of which no lane has ended."""
        return self.number + 1 if len(self._lanes) > 1 else self.number

    def begin_forward(self) -> Lane:
        self._session._check_open()
        with self._session._lock:
            if self.driven:
                lane = self._lane_delivered("a forward in training mode")
            else:
                if not self._open:
                    self._begin()
                lane = self._lanes[-1]
            lane.forwards += 1
            return lane

    def _lane_delivered(self, what: str) -> Lane:
        """The lane that the loader has delivered. Errors: OrderError where there is none."""
        if self._delivered is None:
            raise OrderError(
                f"{what} of session {self._session.name!r} outside of the loop over its LaneLoader: want it there, once "
                "for each delivery, and forwards in eval() or under torch.no_grad() elsewhere"
            )
        return self._delivered

    def clear(self) -> None:
        """Forgets the gradients of the current lane: zero_grad."""
        if self._lanes:
            self._lanes[-1].clear()

    def current(self) -> Optional[Lane]:
        """The lane that gradients go to; None before the first forward of a batch."""
        return self._lanes[-1] if self._lanes else None

    def gradients(self) -> List[Tensor]:
        """The gradients of rows that backwards have given since the last step, in the memory from which they are sent:
        float32 ``[distinct rows, dim]``, one of each table. What several backwards or modules have given of a table is
        added up for it, with the bits that the step would have."""
        if not self._lanes:
            return []
        lane = self._lanes[-1]
        lane.drop_cleared()
        tables: Dict[int, List[Piece]] = {}
        for piece in lane.pieces:
            tables.setdefault(piece.table, []).append(piece)
        merged = [sum_of(self._session, pieces) for pieces in tables.values()]
        lane.pieces = [piece for piece, _ in merged]
        return [grad for _, grad in merged]

    def _begin(self) -> None:
        session = self._session
        if not session.handle:
            session.start()
        session._check_open()
        if self._open:
            return
        if not self.driven and session._job["elastic"]:
            raise OrderError(
                f"job {session.name!r} recovers, as it is registered, and a plain loop cannot have a batch again: want "
                "LaneLoader(...) before the first forward"
            )
        session.write_due()
        optimizer = session._optimizer
        assert optimizer is not None  # start needs one
        scale = optimizer.new_scale() if not self.driven or not self._pending else None
        if scale is not None and not self._begun:
            raise OrderError(
                f"learning rates of {optimizer.rates()} were changed after session {session.name!r} had joined, and "
                "before its first batch: want schedulers and opt.load_state_dict before whatever joins, such as "
                "session.lanes, session.start() and a forward"
            )
        if scale is not None:
            session.scale_lr(scale, self.number)
            optimizer.scaled(scale)
        lib, handle = session.native, session.handle
        self._waited(lib.begin, handle, ctypes.byref(self._batch))
        self._begun, self._open, self._pending = True, True, False
        self.number = self._batch.number
        self._lanes = [Lane(self._batch.first_lane, optimizer)]
        if self.driven and self._batch.first_lane != int(session._job["first_lane"]):
            last = self._batch.first_lane + self._batch.lanes - 1
            text = "job %r: computes lanes %d to %d of batch %d, too: the trainer that had them was lost"
            _log.info(text, session.name, self._batch.first_lane, last, self.number)

    def resumed(self) -> None:
        """The session has joined where batches were done: parameters get their values, and the optimizer its rates."""
        session, optimizer = self._session, self._session._optimizer
        assert optimizer is not None
        self.number = int(session._job["version"])
        self._begun = self._begun or self.number > 0  # other rates begin with its first batch
        optimizer.resumed(float(session._job["lr_scale"]))
        if not optimizer.moves_parameters():
            return
        try:
            self._waited(session.native.dense, session.handle, optimizer.values())
        except RewoundError:
            if not self.driven:
                raise
            self._come_back()  # the run that it has joined is over already, as others have come
        else:
            optimizer.take_values()

    def _waited(self, function: Any, handle: int, *arguments: Any) -> None:
        """Waits for a call whose failure ends the session."""
        try:
            self._session.native.wait(handle, function, handle, *arguments)
        except (ArgumentError, OrderError):
            raise  # refused, and nothing has happened
        except RewoundError:
            self._void = True
            raise
        except BaseException:
            # Nothing is left to wait for. A local session may stay readable, and the library knows what it may do.
            self.failed, self._open, self._pending, self._lanes = True, False, False, []
            raise

    def end(self, samples: int, loss: float, dense: Optional[DenseGradients]) -> None:
        """Ends the current lane; the last one commits the batch. ``samples`` 0: the lane is absent."""
        session = self._session
        session._check_open()
        if not 0 <= samples <= _SAMPLES_MAX:
            raise ArgumentError(f"a lane of {samples} samples: want 0 to {_SAMPLES_MAX}")
        with session._lock:
            session._check_open()
            if self.driven:
                self._lane_delivered("a step").ended = True
                self._delivered = None
                if self._void:
                    if session._optimizer is not None:
                        session._optimizer.forget_samples()
                    return
            elif not self._open:
                self._begin()
            lane = self._lanes[-1]
            last = len(self._lanes) == self._batch.lanes
            if samples == 0:
                lane.pieces.clear()
            elif dense is not None:
                lane.dense, lane.memory = dense.gradients(len(self._lanes) - 1, keep=not last)
            lane.ended, lane.samples, lane.loss = True, samples, loss
            if session._optimizer is not None:
                session._optimizer.forget_samples()
            if not last:
                self._lanes.append(Lane(lane.number + 1, lane.optimizer))
                return
            try:
                self._commit()
            except (ArgumentError, OrderError):
                lane.ended = not self._open  # refused: another step may end it
                self._delivered = lane if self.driven and self._open else None
                raise
            except RewoundError:
                if not self.driven:
                    raise

    def _commit(self) -> None:
        session = self._session
        lib, handle, lanes = session.native, session.handle, self._lanes
        if self._steps is None or len(self._steps) < len(lanes):
            self._steps = (_native.LaneStep * len(lanes))()
            self._rows = [(_native.Rows * 0)() for _ in lanes]
        for i, lane in enumerate(lanes):
            rows, pieces = self._rows[i], lane.pieces
            if len(rows) < len(pieces):
                rows = self._rows[i] = (_native.Rows * (2 * len(pieces)))()
            filled(rows, pieces)
            step = self._steps[i]
            step.lane, step.samples, step.loss, step.dense = lane.number, lane.samples, lane.loss, lane.dense
            step.rows, step.pieces = rows, len(pieces)
        self._waited(lib.commit, handle, ctypes.addressof(self._steps), len(lanes))
        self._open, self._pending, self._lanes = False, True, []
        self.number += 1
        optimizer = session._optimizer
        if optimizer is not None and optimizer.moves_parameters():
            self.settle()
        session.note_due()

    def settle(self) -> None:
        """Waits until what was committed is complete, and gives parameters their new values."""
        session = self._session
        session._check_open()
        if not self._pending:
            return
        with session._lock:
            session._check_open()
            if not self._pending:
                return
            lib, handle, optimizer = session.native, session.handle, session._optimizer
            assert optimizer is not None
            if self.driven:
                further = ctypes.c_int32()
                self._waited(lib.settle, handle, ctypes.byref(further))
                if further.value:
                    return  # parameters have the values that further lanes of the batch are computed on
                if self._recount:
                    self._recount = False
                    self.number = int(lib.text(lib.job, handle)["version"])
            else:
                self._waited(lib.finish, handle)
            if optimizer.moves_parameters():
                self._waited(lib.dense, handle, optimizer.values())
            self._pending = False
            optimizer.take_values()

    # Of a loader.

    def tell(self, until: int, total: int) -> Optional[Tuple[int, int]]:
        """The batch and the lane to be computed now; None where the batches before ``until`` are complete. ``total``: that
        of the last one."""
        session = self._session
        session._check_open()
        with session._lock:
            session.start()
            while True:
                session._check_open()
                try:
                    if self._void:
                        self._come_back()
                    if not self._open:
                        self.settle()
                        if not self._pending and self.number >= until:
                            self._finish(total)
                            return None
                        self._begin()
                    self._delivered = self._lanes[-1]
                    self.finished = False
                    return self.number, self._delivered.number
                except RewoundError:
                    pass  # and it comes back to the job

    def _finish(self, total: int) -> None:
        """Says that this trainer has computed all batches, where that is so."""
        self._delivered = None
        if self.number >= total and not self.finished:
            self._waited(self._session.native.finish, self._session.handle)
            self.finished = True

    def leave(self) -> bool:
        """Before the session closes: what was committed is complete. True where that wants lanes which others are to
        compute, or servers are lost: the session is to hand over then."""
        try:
            if not self._void:
                self.settle()
        except RewoundError:
            pass  # there is nobody to tell
        return self._void or self.driven and self._session.recovers and (self._pending or self._open)

    def delivered(self) -> Optional[Lane]:
        """The lane that the loader has delivered, where it has not ended and counts."""
        return None if self._void else self._delivered

    def _await_job(self) -> None:
        """Waits until the job goes on, at whatever version. What is under way counts for nothing."""
        session, before, further = self._session, self.number, ctypes.c_int32()
        self._void = True
        self._waited(session.native.settle, session.handle, ctypes.byref(further))
        session._job = session.native.text(session.native.job, session.handle)
        _log.warning("job %r: is back at version %d, after batch %d", session.name, int(session._job["version"]), before)

    def _come_back(self) -> None:
        """Goes on where the job does, and gives parameters their values there."""
        session, optimizer = self._session, self._session._optimizer
        assert optimizer is not None
        while self._void:
            try:
                self._await_job()
                self._open = self._void = False
                self._pending = self._recount = True
                self._lanes, self._delivered = [], None
                self.number = int(session._job["version"])
                optimizer.rejoined(float(session._job["lr_scale"]))
                self.settle()
            except RewoundError:
                pass  # once more

    def look_up(self, lane: Optional[Lane], function: Any, *arguments: Any) -> bool:
        """Makes a lookup for a lane, or for a read. False where that lane counts for nothing: nothing was written."""
        if lane is not None and self._void:
            return False
        try:
            self.read(function, *arguments, again=lane is None)
        except RewoundError:
            if lane is None or not self.driven:
                raise
            self._void = True
            return False
        return True

    def read(self, function: Any, *arguments: Any, again: bool = True) -> None:
        """Makes a call that reads. Where servers were lost it comes back to the job and reads there; but where all batches
        had been computed, that is told by a RewoundError."""
        session = self._session
        while True:
            try:
                session.native.wait(session.handle, function, *arguments)
                return
            except RewoundError as error:
                if not again or not self.driven:
                    raise
                self.back_for_reading(error)

    def settle_for_reading(self) -> None:
        """Settles before a read. Errors: as of :meth:`read`."""
        while True:
            try:
                self.settle()
                return
            except RewoundError as error:
                if not self.driven:
                    raise
                self.back_for_reading(error)

    def back_for_reading(self, error: RewoundError) -> None:
        """Comes back to the job where a read has failed. Errors: RewoundError where all batches had been computed."""
        with self._session._lock:
            finished = self.finished
            self._await_job()
            if self._delivered is None:
                self._come_back()
            if finished:
                self.finished = False
                raise RewoundError(
                    f"session {self._session.name!r} is at version {int(self._session._job['version'])} again: {error}; want "
                    "another loop over the LaneLoader, which computes the batches that are missing"
                )

    def require_forward(self, trains: bool) -> None:
        """Errors: OrderError where tables have had no forward since the last step; ``trains``: and one would train."""
        if self.driven:
            self._lane_delivered("a step")
        if trains and self._session._tables and not (self._lanes and self._lanes[-1].forwards):
            raise OrderError(
                "step without a forward in training mode since the last step: want model(batch), loss.backward(), "
                "opt.step(); "
                "session.skip() leaves a lane out"
            )


class DenseGradients:
    """What :meth:`Batches.end` asks for dense gradients."""

    def gradients(self, lane: int, keep: bool) -> Tuple[Optional[int], Any]:
        """The address of an array with the address of each parameter's gradient, and what keeps the memory. ``keep``: a
        later backward must not change it."""
        raise NotImplementedError
