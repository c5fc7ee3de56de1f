"""A loader by which a job recovers: the session says which lanes of which batch come next."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Callable, Dict, Generic, List, NamedTuple, Optional, Tuple, TypeVar, Union

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from .checks import whole
from .errors import ArgumentError, OrderError
from .lanes import LaneSampler
from .loader import Prefetched
from .program import seed_all
from .session import Session

T = TypeVar("T")
At = Tuple[int, int]  # batch and lane


class LaneInfo(NamedTuple):
    """The lane whose samples an ``IterableDataset`` is to give."""

    lane: int
    lanes: int  # of the job


def lane_info() -> Optional[LaneInfo]:
    """The lane for which an ``IterableDataset`` is being read, in whatever process reads it; None outside of a
    :class:`LaneLoader`. It is to an iterator of lanes what ``torch.utils.data.get_worker_info`` is to one of workers."""
    return getattr(_reading, "info", None)


class LaneLoader(Generic[T]):
    """Delivers the lanes that the session is told to compute, of data that are indexed by (batch, lane). With it a job
    recovers: lanes of a trainer that is lost are computed by the others, and a ``ps`` that is lost is come back to.

        sampler = gradbus.LaneSampler(dataset, session, batch_size=512)
        for ids, labels in gradbus.LaneLoader(dataset, sampler, epochs=3):
            loss = criterion(model(ids), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()

    It reads by one ``torch.utils.data.DataLoader`` for the whole training. ``data``, ``place``, and how many batches there
    are, come in three forms:

    - a data set, ``data[i]`` being sample i, or ``data.__getitems__``; a :class:`LaneSampler`, which cuts it; and
      ``epochs``. Delivered is what ``collate_fn`` makes of the list of a lane's samples, by default
      ``torch.utils.data.default_collate``.
    - anything with ``data[batch, lane]``, which is delivered as it is, or as ``collate_fn`` makes it; a session; and
      ``batches``. Batches count from 0 over the whole training, lanes from 0 to ``session.lanes_total - 1``. Equal indices
      give equal data in every process. A LaneSampler is such data itself, of int64 indices.
    - an ``IterableDataset``, each lane of which is a stream of its own: its iterator gives the samples of the lane that
      :func:`lane_info` names, always the same. A session; ``batches``; and ``batch_size``, the samples of a batch over all
      lanes. After a loss a stream is read from its beginning, and samples that were trained on are skipped.

    Each delivery is one lane: one forward and backward, or several, and one ``opt.step()`` or ``session.skip()``. Training
    forwards of the session belong into the loop. Deliveries are this trainer's lanes, batch after batch, but for two
    things. Further lanes of the batch under way come when the trainer that had them is lost. Earlier batches come again
    when servers are lost and the job goes on from an older version. Parameters have the values of that version then, and
    the lane under way is computed to its step with rows of zeros, and counts for nothing.

    One iteration goes to the end of the epoch in which the session is; without a sampler to the end of ``batches``. After
    the last epoch it delivers nothing. So ``for _ in range(3): for ids, labels in loader: ...`` is three epochs in a
    trainer that was there from the start, and what is left of them in one that takes the place of another.

    It is made before the session joins, since it decides the job's policy, and by all trainers alike. ``session.batch``
    is the batch of the delivery, ``session.lane`` its lane. Dense parameters are the servers' (``Optimizer(...,
    dense=...)``); with parameters that the script trains itself the job does not recover, and says so.

    ``prefetch``: how many deliveries each of ``num_workers`` processes loads beforehand; without workers a thread does, as
    in :func:`gradbus.prefetch`; 0 for none. ``pin_memory`` and ``of_workers`` (``timeout``, ``worker_init_fn``,
    ``multiprocessing_context``) are the DataLoader's. Lanes that are taken over are loaded in this process, at once.

    Errors: ArgumentError; OrderError where the session has joined without it, and at a delivery where the one before had
    no step. What ``data`` raises comes out of the loop. Where a worker dies, so does PyTorch's RuntimeError that names it:
    it ends the session, whose lanes are handed over if the job recovers.
    """

    def __init__(
        self,
        data: Any,
        place: Union[LaneSampler, Session],
        *,
        epochs: Optional[int] = None,
        batches: Optional[int] = None,
        batch_size: Optional[int] = None,
        collate_fn: Optional[Callable[[Any], T]] = None,
        num_workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        **of_workers: Any,
    ) -> None:
        streams = isinstance(data, IterableDataset)
        if not streams and not hasattr(data, "__getitem__"):
            raise ArgumentError(
                f"LaneLoader of {type(data).__name__}, which has no index: want data[i] with a LaneSampler, "
                "data[batch, lane] with a session, or an IterableDataset; a plain iterator cannot give a batch again"
            )
        if streams != (batch_size is not None):
            raise ArgumentError(
                f"LaneLoader of {type(data).__name__}: want batch_size with an IterableDataset, and only there"
            )
        self.sampler: Optional[LaneSampler] = None
        if isinstance(place, LaneSampler) and not streams:
            if epochs is None or batches is not None:
                raise ArgumentError("LaneLoader with a LaneSampler: want epochs, and no batches")
            _check_length(data, place)
            self.sampler, self.session = place, place.session
            self.batches_of_epoch = place.batches
            self.batches = whole("LaneLoader: epochs", epochs, 1) * place.batches
        elif isinstance(place, Session):
            if batches is None or epochs is not None:
                raise ArgumentError("LaneLoader with a session: want batches, and no epochs")
            self.session = place
            self.batches = self.batches_of_epoch = whole("LaneLoader: batches", batches, 1)
        else:
            wanted = "a session" if streams else "a LaneSampler or a session"
            raise ArgumentError(f"LaneLoader with {type(place).__name__}: want {wanted}")
        workers = whole("LaneLoader: num_workers", num_workers, 0)
        self._prefetch = whole("LaneLoader: prefetch", prefetch, 0)
        if streams:
            lanes = self.session.lanes_total
            size = whole("LaneLoader: batch_size", batch_size, lanes)
            data, collate_fn = _Streams(data, lanes, size, collate_fn or default_collate), None
        self.data, self._workers = data, workers
        # A DataLoader draws from its generator, and those of the process are the model's.
        generator = torch.Generator().manual_seed(1)
        collate: Any = collate_fn or (_as_it_is if self.sampler is None else None)
        self._options: Dict[str, Any] = {"collate_fn": collate, "pin_memory": pin_memory, "generator": generator}
        if workers:
            of_workers.update(prefetch_factor=max(1, self._prefetch), persistent_workers=True)
        self._order = _Order(self.sampler, self.batches, workers if streams and workers else 1)
        self._loader = self._reader(self._order, num_workers=workers, **of_workers)
        self._source: Any = None  # an iterator of _loader, and what loads it ahead
        self._results: Iterator[Tuple[Optional[At], T]] = iter(())  # of it, with what each is
        self._next: Optional[At] = None  # the first of _results
        self._batch = -2  # of the last delivery
        self._lanes: List[int] = []  # of that batch, which have been delivered
        self.session.drive()

    def __iter__(self) -> Iterator[T]:
        batches = self.session._batches
        self.session.start()
        epoch = batches.number // self.batches_of_epoch
        until = min(self.batches, (epoch + 1) * self.batches_of_epoch)
        before: Any = None
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
            data = self._take(at)
            seed_all(int(self.session._manifest["seed"]), *at)
            yield data

    def _take(self, at: At) -> T:
        """The data of a delivery. What comes after it is expected to be the lanes that the batch before had; where it is
        not, reading begins anew there. Within a batch, other lanes are loaded in this process."""
        batch, lane = at
        if batch != self._batch:
            lanes = self._lanes if batch == self._batch + 1 else list(self.session.lanes)
            if at != self._next or lanes != self._order.lanes:
                self._read_from(batch, lanes)
            self._batch, self._lanes = batch, []
        if lane not in self._lanes:
            self._lanes.append(lane)
        if at == self._next:
            self._next = self._order.following(at)
            try:
                for read, data in self._results:
                    if read == at:
                        return data
            except (ConnectionError, EOFError) as error:
                # A worker was killed while it handed memory over. What data raise has a text that PyTorch begins so.
                if not self._workers or str(error).startswith("Caught "):
                    raise
                raise RuntimeError(f"DataLoader worker (pid unknown) has died: {error}") from error
        if not self._workers:
            self._stop()  # no two threads read data at a time
        data = next(iter(self._reader([self._order.index(at)])))
        return data

    def _read_from(self, batch: int, lanes: List[int]) -> None:
        """Begins to read lanes of a batch and of those behind it. The DataLoader drops what it has read ahead."""
        self._stop()
        self._order.batch, self._order.lanes, self._next = batch, lanes, (batch, lanes[0])
        # Workers read ahead by themselves, and a slice of a permutation costs less than a thread's wakeup.
        ahead = self._prefetch and not self._workers and not isinstance(self.data, LaneSampler)
        source: Any = Prefetched(self._loader, self._prefetch) if ahead else self._loader
        self._source = iter(source)
        self._results = zip(self._order.deliveries(), self._source)

    def _stop(self) -> None:
        """Ends the thread that reads ahead, and forgets what it has read."""
        if hasattr(self._source, "close"):
            self._source.close()
        self._source, self._results, self._next = None, iter(()), None

    def _reader(self, indices: Iterable[Any], **of_workers: Any) -> DataLoader[T]:
        """A DataLoader of the data, which reads so many indices."""
        if self.sampler is not None:
            return DataLoader(self.data, batch_sampler=indices, **self._options, **of_workers)
        return DataLoader(self.data, batch_size=None, sampler=indices, **self._options, **of_workers)

    def __repr__(self) -> str:
        return f"LaneLoader of {self.session!r}, {self.batches} batches"


class _Order:
    """The deliveries that a DataLoader reads, from a batch on, and their indices."""

    def __init__(self, sampler: Optional[LaneSampler], batches: int, readers: int) -> None:
        self.sampler, self.batches, self.readers = sampler, batches, readers
        self.batch, self.lanes = 0, []  # type: int, List[int]

    def deliveries(self) -> Iterator[Optional[At]]:
        """As many for a batch as its readers share evenly: None for nothing. A DataLoader gives tasks to its workers in
        turn, so a lane stays with one."""
        nothing = [None] * (-len(self.lanes) % self.readers)
        for batch in range(self.batch, self.batches):
            for lane in self.lanes:
                yield batch, lane
            yield from nothing

    def following(self, at: At) -> At:
        batch, lane = at
        i = self.lanes.index(lane) + 1
        return (batch, self.lanes[i]) if i < len(self.lanes) else (batch + 1, self.lanes[0])

    def index(self, at: Optional[At]) -> Any:
        return at if self.sampler is None or at is None else self.sampler[at].tolist()

    def __iter__(self) -> Iterator[Any]:
        return map(self.index, self.deliveries())


class _Streams:
    """The lanes of an IterableDataset by an index, (batch, lane): a stream for each lane that this process reads."""

    def __init__(self, data: Iterable[Any], lanes: int, batch_size: int, collate_fn: Callable[..., Any]) -> None:
        self.data, self.lanes, self.batch_size, self.collate_fn = data, lanes, batch_size, collate_fn
        self.streams: Dict[int, Tuple[int, Iterator[Any]]] = {}  # of a lane: the next batch, and the rest of the samples

    def __getitem__(self, at: Optional[At]) -> Any:
        if at is None:
            return None
        batch, lane = at
        size = (lane + 1) * self.batch_size // self.lanes - lane * self.batch_size // self.lanes
        _reading.info = LaneInfo(lane, self.lanes)
        try:
            done, stream = self.streams.pop(lane, (batch + 1, iter(())))
            if done > batch:
                done, stream = 0, iter(self.data)
            samples = list(islice(stream, (batch - done) * size, (batch - done + 1) * size))
        finally:
            _reading.info = None
        if len(samples) < size:
            raise ArgumentError(
                f"LaneLoader: the stream of lane {lane} ended in batch {batch}: want {size} samples for each of the batches"
            )
        self.streams[lane] = batch + 1, stream
        return self.collate_fn(samples)


_reading = threading.local()


def _as_it_is(data: Any) -> Any:
    return data


def _check_length(data: Any, sampler: LaneSampler) -> None:
    """Errors: ArgumentError where the sampler is of another data set."""
    if hasattr(data, "__len__") and len(data) != sampler.samples:
        raise ArgumentError(
            f"LaneLoader of {len(data)} samples, with a LaneSampler of {sampler.samples}: want one of the same data set"
        )
