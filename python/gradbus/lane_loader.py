"""A loader by which a job recovers: the session says which lanes of which batch come next."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, Generic, List, Optional, Tuple, TypeVar, Union

from torch.utils.data import default_collate

from .checks import whole
from .errors import ArgumentError, OrderError
from .lanes import LaneSampler
from .session import Session

T = TypeVar("T")
At = Tuple[int, int]  # batch and lane


class LaneLoader(Generic[T]):
    """Delivers the lanes that the session is told to compute, of data that are indexed by (batch, lane). With it a job
    recovers: lanes of a trainer that is lost are computed by the others, and a ``ps`` that is lost is come back to.

        sampler = gradbus.LaneSampler(dataset, session, batch_size=512)
        for ids, labels in gradbus.LaneLoader(dataset, sampler, epochs=3):
            loss = criterion(model(ids), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()

    ``data``, ``place``, and how many batches there are, come in two forms:

    - a data set, ``data[i]`` being sample i; a :class:`LaneSampler`, which cuts it; and ``epochs``. Delivered is what
      ``collate_fn`` makes of the list of a lane's samples, by default ``torch.utils.data.default_collate``.
    - anything with ``data[batch, lane]``, which is delivered as it is; a session; and ``batches``. Batches count from 0 over
      the whole training, lanes from 0 to ``session.lanes_total - 1``. Equal indices give equal data in every process.
      A LaneSampler is such data itself, of int64 indices.

    Each delivery is one lane: one forward and backward, or several, and one ``opt.step()`` or ``session.skip()``. Training
    forwards of the session belong into the loop. Deliveries are this trainer's lanes, batch after batch, but for two
    things. Further lanes of the batch under way come when the trainer that had them is lost. Earlier batches come again
    when servers are lost and the job goes on from an older version. Parameters have the values of that version then, and
    the lane under way is computed to its step with rows of zeros, and counts for nothing.

    One iteration goes to the end of the epoch in which the session is; without a sampler to the end of ``batches``. After
    the last epoch it delivers nothing. So ``for _ in range(3): for ids, labels in loader: ...`` is three epochs in a
    trainer that was there from the start, and what is left of them in one that takes the place of another.

    It is made before the session joins, since it decides the job's policy, and by all trainers alike. ``session.batch``
    is the batch of the delivery, ``session.lane`` its lane. ``ahead``: how many deliveries are loaded beforehand in a
    thread; what is told otherwise then is loaded anew. Dense parameters are the servers' (``Optimizer(..., dense=...)``);
    with parameters that the script trains itself the job does not recover, and says so.

    Errors: ArgumentError; OrderError where the session has joined without it, and at a delivery where the one before had
    no step. What ``data`` raises comes out of the loop.
    """

    def __init__(
        self,
        data: Any,
        place: Union[LaneSampler, Session],
        *,
        epochs: Optional[int] = None,
        batches: Optional[int] = None,
        collate_fn: Optional[Callable[[List[Any]], T]] = None,
        ahead: int = 0,
    ) -> None:
        if not hasattr(data, "__getitem__"):
            raise ArgumentError(
                f"LaneLoader of {type(data).__name__}, which has no index: want data[i] with a LaneSampler, or "
                "data[batch, lane] with a session; a plain iterator cannot give a batch again"
            )
        self.data, self.ahead = data, whole("LaneLoader: ahead", ahead, 0)
        self.sampler: Optional[LaneSampler] = None
        if isinstance(place, LaneSampler):
            if epochs is None or batches is not None:
                raise ArgumentError("LaneLoader with a LaneSampler: want epochs, and no batches")
            _check_length(data, place)
            self.sampler, self.session = place, place.session
            self.batches_of_epoch = place.batches
            self.batches = whole("LaneLoader: epochs", epochs, 1) * place.batches
        elif isinstance(place, Session):
            if batches is None or epochs is not None or collate_fn is not None:
                raise ArgumentError("LaneLoader with a session: want batches, and neither epochs nor collate_fn")
            self.session = place
            self.batches = self.batches_of_epoch = whole("LaneLoader: batches", batches, 1)
        else:
            raise ArgumentError(f"LaneLoader with {type(place).__name__}: want a LaneSampler or a session")
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self.session.drive()

    def __iter__(self) -> Iterator[T]:
        batches = self.session._batches
        self.session.start()
        epoch = batches.number // self.batches_of_epoch
        until = min(self.batches, (epoch + 1) * self.batches_of_epoch)
        ahead = _Ahead(self._load, self.ahead, self._following)
        before: Any = None
        try:
            while True:
                if before is not None and before is batches.delivered():
                    raise OrderError(
                        f"lane {before.number} of batch {batches.number} was delivered and had no step: want opt.step() for "
                        "each delivery, or session.skip()"
                    )
                at = batches.tell(until, self.batches)
                if at is None:
                    return
                before = batches.delivered()
                yield ahead.take(at, until)
        finally:
            ahead.close()

    def _load(self, at: At) -> T:
        if self.sampler is None:
            out: T = self.data[at]
            return out
        out = self.collate_fn([self.data[i] for i in self.sampler[at].tolist()])
        return out

    def _following(self, at: At) -> At:
        """What follows a delivery, where nobody is lost."""
        batch, lane = at
        lanes = self.session.lanes
        return (batch, lane + 1) if lane in lanes and lane + 1 in lanes else (batch + 1, lanes[0])

    def __repr__(self) -> str:
        return f"LaneLoader of {self.session!r}, {self.batches} batches"


class _Ahead(Generic[T]):
    """Loads deliveries in a thread before they are asked for, as far as they can be known."""

    def __init__(self, load: Callable[[At], T], depth: int, following: Callable[[At], At]) -> None:
        self._load, self._depth, self._following = load, depth, following
        self._pool = ThreadPoolExecutor(1, "gradbus.lanes") if depth else None
        self._loading: Dict[At, Future[T]] = {}

    def take(self, at: At, until: int) -> T:
        """The delivery, and begins to load those behind it in batches before ``until``."""
        if self._pool is None:
            return self._load(at)
        future = self._loading.pop(at, None) or self._pool.submit(self._load, at)
        following, wanted = at, []
        for _ in range(self._depth):
            following = self._following(following)
            if following[0] < until:
                wanted.append(following)
        for one in [one for one in self._loading if one not in wanted]:
            self._loading.pop(one).cancel()
        for one in wanted:
            if one not in self._loading:
                self._loading[one] = self._pool.submit(self._load, one)
        return future.result()

    def close(self) -> None:
        """Ends the thread, when what it loads is there."""
        if self._pool is not None:
            for future in self._loading.values():
                future.cancel()
            self._pool.shutdown()


def _check_length(data: Any, sampler: LaneSampler) -> None:
    """Errors: ArgumentError where the sampler is of another data set."""
    if hasattr(data, "__len__") and len(data) != sampler.samples:
        raise ArgumentError(
            f"LaneLoader of {len(data)} samples, with a LaneSampler of {sampler.samples}: want one of the same data set"
        )
