"""The prefetching loader: it changes nothing that a batch trains on, and leaves nothing behind."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
import traceback
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gradbus.loader import PrefetchWarning, prefetch

WITHIN = 20.0


def until(condition, what):
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, f"waited {WITHIN} s for {what}"
        time.sleep(0.002)


def threads():
    return [t for t in threading.enumerate() if t.name == "gradbus.prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert threads() == []


class Squares(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor([i, i * i])


class Jittered(Squares):
    """Draws from the process's generator, as a random transform does."""

    def __getitem__(self, i):
        return torch.tensor([float(i)]) + torch.rand(1)


def epochs(wrap, loader, n=2):
    """What n epochs train on, beside what a model with dropout draws meanwhile."""
    torch.manual_seed(3)
    seen = []
    for _ in range(n):
        for batch in wrap(loader):
            seen.append((batch.tolist(), torch.rand(3).tolist()))
    return seen


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("depth", [1, 3])
def test_batches_and_draws_are_those_of_the_loader(workers, depth):
    loader = DataLoader(Squares(30), batch_size=4, shuffle=True, num_workers=workers)
    assert epochs(lambda x: prefetch(x, depth), loader) == epochs(iter, loader)


def test_a_loader_that_draws_is_not_run_ahead():
    loader = DataLoader(Jittered(20), batch_size=4, shuffle=True)
    with pytest.warns(PrefetchWarning, match="torch's generator"):
        got = epochs(prefetch, loader)
    assert got == epochs(iter, loader)

    def shuffled():
        while True:
            yield random.random()

    with pytest.warns(PrefetchWarning, match="draws from random of"):
        it = iter(prefetch(shuffled()))
        next(it), next(it)
    assert threads() == []


@pytest.mark.parametrize("kind", ["in place", "through other tensors", "arrays"])
def test_a_loader_that_refills_its_tensors_is_not_run_ahead(kind):
    def refilling(n):
        if kind == "arrays":
            numpy = pytest.importorskip("numpy")
            array = numpy.zeros(3)
            for i in range(n):
                array[:] = i
                yield array
            return
        memory = torch.zeros(3)
        for i in range(n):
            memory.fill_(i)
            yield {"x": (memory,)} if kind == "in place" else [memory.view(3)]

    def value(batch):
        return float((batch["x"][0] if kind == "in place" else batch[0] if kind != "arrays" else batch)[0])

    with pytest.warns(PrefetchWarning, match="refills"):
        seen = []
        for batch in prefetch(refilling(9), 3):
            seen.append(value(batch))
    assert seen == [float(i) for i in range(9)]


def test_a_tensor_that_all_batches_share_is_no_refill():
    same = torch.tensor([float("nan"), 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(prefetch([(same, i) for i in range(5)]))) == 5


def test_it_runs_ahead_by_depth_and_no_further():
    loaded = []

    def counting():
        for i in range(100):
            loaded.append(i)
            yield torch.tensor(i)

    it = iter(prefetch(counting(), depth=3))
    assert [int(next(it)), int(next(it))] == [0, 1] and threads() != []
    until(lambda: len(loaded) == 5, "three batches ahead")
    ahead = it._ahead
    with ahead.changed:  # the thread waits for room: nothing is loaded while three wait
        assert len(ahead.ready) == 3 and len(loaded) == 5
    assert int(next(it)) == 2
    until(lambda: len(loaded) == 6, "the next one")
    assert [int(b) for b in it] == list(range(3, 100))


def raising(n):
    for i in range(n):
        yield i
    raise KeyError(f"file {n} is cut")


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_an_error_comes_with_its_traceback_behind_the_batches_before_it(n):
    seen = []
    with pytest.raises(KeyError, match=f"file {n} is cut") as caught:
        for batch in prefetch(raising(n), 3):
            seen.append(batch)
    assert seen == list(range(n))
    assert "in raising" in "".join(traceback.format_exception(caught.type, caught.value, caught.tb))


def test_after_an_error_or_the_end_there_is_nothing_more():
    it = iter(prefetch(raising(4)))
    with pytest.raises(KeyError):
        list(it)
    assert list(it) == []
    it = iter(prefetch([1, 2, 3]))
    assert list(it) == [1, 2, 3] and list(it) == []
    assert list(prefetch([])) == [] and list(prefetch([1])) == [1]


def endless(ended):
    try:
        while True:
            yield torch.zeros(1)
    finally:
        ended.append(threading.current_thread().name)


def test_leaving_early_ends_the_thread_and_the_loader():
    ended = []
    for i, _ in enumerate(prefetch(endless(ended), 2)):
        if i == 5:
            assert len(threads()) == 1
            break
    assert threads() == [] and len(ended) == 1  # the loop's iterator is gone with the loop

    with iter(prefetch(endless(ended), 2)) as it:
        for _ in range(4):
            next(it)
    assert threads() == [] and len(ended) == 2
    assert list(it) == []
    it.close()


def test_close_waits_for_the_batch_that_is_being_loaded():
    loading, go_on = threading.Event(), threading.Event()

    def slow():
        yield 0
        yield 1
        loading.set()
        assert go_on.wait(WITHIN)
        yield 2

    it = iter(prefetch(slow()))
    next(it), next(it)
    assert loading.wait(WITHIN)
    closing = threading.Thread(target=it.close)
    closing.start()
    assert closing.is_alive() and len(threads()) == 1
    go_on.set()
    closing.join(WITHIN)
    assert not closing.is_alive() and threads() == []
    assert list(it) == []


def test_prepare_sees_each_batch_before_the_step_does():
    prepared = []
    for batch in prefetch(range(8), 2, prepare=prepared.append):
        assert prepared[batch] == batch
    assert prepared == list(range(8))

    def refuse(batch):
        if batch == 5:
            raise ValueError("key -1 of batch 5")

    seen = []
    with pytest.raises(ValueError, match="key -1 of batch 5"):
        for batch in prefetch(range(8), 2, prepare=refuse):
            seen.append(batch)
    assert seen == [0, 1, 2, 3, 4]


def test_it_looks_like_its_loader():
    data = TensorDataset(torch.arange(10))
    loader = prefetch(DataLoader(data, batch_size=3))
    assert len(loader) == 4 and loader.dataset is data and loader.batch_size == 3
    with pytest.raises(AttributeError):
        loader.nothing


@pytest.mark.parametrize("depth", [0, -1, 1.5, True, "2"])
def test_depths_that_cannot_be(depth):
    with pytest.raises(ValueError, match="depth"):
        prefetch([], depth)
    with pytest.raises(TypeError, match="int: want something to iterate over"):
        prefetch(3)


def test_a_program_that_ends_in_mid_epoch_ends():
    program = """
import torch
from torch.utils.data import DataLoader
from gradbus.loader import prefetch
keep = iter(prefetch(DataLoader(torch.arange(1000), num_workers=WORKERS), 2))
for _ in range(4):
    next(keep)
print("end")
"""
    for workers in "0", "1":
        done = subprocess.run(
            [sys.executable, "-c", program.replace("WORKERS", workers)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
