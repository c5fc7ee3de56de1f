"""A loader that fetches batches ahead of the step, in a thread of its own.

What a batch trains on does not change: batches come in the loader's order, each once. The first two are loaded where
the program stands, so that samplers draw their seed when they would without this module, and so that two kinds of
loaders are seen that must not run ahead: one that goes on to draw from the process's random generators (random
transforms with ``num_workers=0``), since a model that draws too, as dropout does, would see other numbers; and one that
refills the tensors of the batch before. Their batches are loaded in line, and a warning says so.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import threading
import warnings
import weakref
from collections import deque
from typing import Any, Callable, Deque, Generic, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

import torch

__all__ = ["Prefetched", "PrefetchWarning", "prefetch"]

T = TypeVar("T")

_States = List[Tuple[str, object]]
_Content = Union[torch.Tensor, bytes]

_CLOSE_WITHIN = 5.0  # seconds that the exit of the interpreter waits for a loader that is in the middle of a batch


class PrefetchWarning(UserWarning):
    """A loader is not run ahead, and why."""


class _Ahead(Generic[T]):
    """What the consumer and the loading thread share. The thread knows this object alone, so that an iterator which
    nobody holds any more is collected, and ends its thread."""

    def __init__(self, batches: Iterator[T], depth: int, prepare: Optional[Callable[[T], object]]) -> None:
        self.batches: Optional[Iterator[T]] = batches
        self.prepare = prepare
        self.depth = depth
        self.pid = os.getpid()
        self.changed = threading.Condition()  # guards what follows
        self.ready: Deque[T] = deque()
        self.error: Optional[BaseException] = None
        self.ended = False  # the loader has no more, or failed
        self.closed = False
        self.thread: Optional[threading.Thread] = None

    def run(self) -> None:
        try:
            while self.load():
                pass
        finally:
            with self.changed:
                self.ended = True
                self.changed.notify_all()

    def load(self) -> bool:
        """Loads one batch when there is room for it; False at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.ready) < self.depth)
            batches = self.batches
        if self.closed or batches is None:
            return False
        try:
            batch = next(batches)
            if self.prepare is not None:
                self.prepare(batch)
        except StopIteration:
            return False
        except BaseException as error:  # whatever it is, the consumer is who has to hear of it
            with self.changed:
                self.error = error
            return False
        with self.changed:
            if not self.closed:
                self.ready.append(batch)
            self.changed.notify_all()
        return True

    def take(self) -> T:
        with self.changed:
            while not self.ready and not self.ended:
                self.changed.wait()
            if self.ready:
                batch = self.ready.popleft()
                self.changed.notify_all()
                return batch
            error, self.error = self.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self, within: Optional[float] = None) -> None:
        if self.pid != os.getpid():  # the thread stayed in the process that forked
            return
        with self.changed:
            self.closed = self.ended = True
            self.ready.clear()
            self.changed.notify_all()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(within)
            if self.thread.is_alive():
                return
        self.batches, self.prepare = None, None  # workers of a DataLoader end with it


_running: "weakref.WeakSet[_Ahead[Any]]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for ahead in list(_running):
        ahead.close(_CLOSE_WITHIN)


class _Iterator(Generic[T]):
    def __init__(self, batches: Iterator[T], depth: int, prepare: Optional[Callable[[T], object]]) -> None:
        self._batches: Optional[Iterator[T]] = batches
        self._depth, self._prepare = depth, prepare
        self._taken = 0
        self._first: Optional[T] = None  # until the second one is there
        self._ahead: Optional[_Ahead[T]] = None

    def __iter__(self) -> "_Iterator[T]":
        return self

    def __next__(self) -> T:
        if self._ahead is not None:
            return self._ahead.take()
        if self._batches is None:
            raise StopIteration
        before = (_drawn(), _contents(self._first)) if self._taken == 1 else None
        try:
            batch = next(self._batches)
            if self._prepare is not None:
                self._prepare(batch)
        except BaseException:
            self._batches = self._first = None
            raise
        self._taken += 1
        if self._taken == 1:
            self._first = batch
        elif before is not None:
            self._decide(before, self._batches)
        return batch

    def _decide(self, before: Tuple[_States, List[_Content]], batches: Iterator[T]) -> None:
        """Runs the loader ahead unless its second batch has shown that it cannot be."""
        names, refilled = _differ(before[0], _drawn()), not _equal(_contents(self._first), before[1])
        self._first = None
        if names:
            warnings.warn(
                f"the loader draws from {names} of this process for its batches: they are loaded in line, since run "
                "ahead they would change what the model draws; random transforms belong into a worker "
                "(num_workers=1) or on a generator of their own",
                PrefetchWarning,
                stacklevel=3,
            )
        elif refilled:
            warnings.warn(
                "the loader refills the tensors of the batch before: its batches are loaded in line; to run ahead it "
                "has to give each batch tensors of its own",
                PrefetchWarning,
                stacklevel=3,
            )
        else:
            self._start(batches)

    def _start(self, batches: Iterator[T]) -> None:
        ahead = self._ahead = _Ahead(batches, self._depth, self._prepare)
        self._batches = None
        _running.add(ahead)
        ahead.thread = threading.Thread(target=ahead.run, name="gradbus.prefetch", daemon=True)
        ahead.thread.start()

    def close(self) -> None:
        """Ends the loading, and returns when its thread has. Batches that were loaded ahead are dropped. A second call
        does nothing."""
        self._batches = self._first = None
        if self._ahead is not None:
            self._ahead.close()

    def __enter__(self) -> "_Iterator[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        ahead = getattr(self, "_ahead", None)
        if ahead is not None:
            ahead.close()


class Prefetched(Generic[T]):
    """An iterable over the batches of a loader, ``depth`` of which are loaded ahead; see :func:`prefetch`.

    Each ``iter()`` begins an epoch with a thread of its own. Attributes that are not its own are the loader's
    (``dataset``, ``batch_size``, ``sampler``, ...), and so is its length.
    """

    def __init__(self, loader: Iterable[T], depth: int = 2, prepare: Optional[Callable[[T], object]] = None) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ValueError(f"depth {depth!r}: want how many batches are loaded ahead, 1 or more")
        from .lane_loader import LaneLoader

        if isinstance(loader, LaneLoader):
            raise TypeError("prefetch of a LaneLoader, which loads ahead by itself: want LaneLoader(..., prefetch=2)")
        if not hasattr(loader, "__iter__"):
            raise TypeError(
                f"loader {type(loader).__name__}: want something to iterate over, such as a torch.utils.data.DataLoader"
            )
        self.loader, self.depth, self.prepare = loader, depth, prepare

    def __iter__(self) -> _Iterator[T]:
        return _Iterator(iter(self.loader), self.depth, self.prepare)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "depth", "prepare") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loader, name)


def prefetch(loader: Iterable[T], depth: int = 2, prepare: Optional[Callable[[T], object]] = None) -> Prefetched[T]:
    """Batches of ``loader``, loaded ahead of the step in a background thread.

    ``loader`` is anything to iterate over: a ``DataLoader`` with or without workers, a generator. ``depth`` batches
    wait at most, and one more is being loaded. ``prepare(batch)`` is called in that thread with each batch, for work
    that the step would do otherwise; what it returns is not looked at.

    An error of the loader is raised by the step that wanted the batch, with the loader's own traceback; batches before
    it are delivered. Leaving the loop early, ``close()`` of the iterator, or losing the last reference to it ends the
    thread and joins it.

        for dense, ids, labels in gradbus.prefetch(loader, depth=2):
            ...

    Raises ``ValueError`` for a depth below 1 and ``TypeError`` for what cannot be iterated over.
    """
    return Prefetched(loader, depth, prepare)


def _drawn() -> _States:
    """The states of the generators that a loader and a model may share."""
    states: _States = [("torch's generator", bytes(torch.get_rng_state().tolist())), ("random", random.getstate())]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states.append(("numpy.random", (kind, keys.tobytes(), *rest)))
    return states


def _differ(before: _States, after: _States) -> str:
    then = dict(before)
    return " and ".join(name for name, state in after if then.get(name, state) != state)


def _contents(batch: object, levels: int = 4) -> List[_Content]:
    """Copies of what the tensors and arrays of a batch hold, however they are nested."""
    if isinstance(batch, torch.Tensor):
        if batch.layout != torch.strided or batch.device.type != "cpu":
            return []
        return [batch.detach().clone().contiguous().view(-1).view(torch.uint8)] if batch.numel() else []
    if hasattr(batch, "tobytes"):
        return [batch.tobytes()]
    if levels == 0 or isinstance(batch, (str, bytes, int, float)):
        return []
    if isinstance(batch, Mapping):
        parts: Iterable[object] = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    else:
        parts = vars(batch).values() if hasattr(batch, "__dict__") else ()
    return [content for part in parts for content in _contents(part, levels - 1)]


def _equal(some: List[_Content], others: List[_Content]) -> bool:
    def same(a: _Content, b: _Content) -> bool:
        if isinstance(a, torch.Tensor):
            return isinstance(b, torch.Tensor) and torch.equal(a, b)
        return not isinstance(b, torch.Tensor) and a == b

    return len(some) == len(others) and all(map(same, some, others))
