"""LaneSampler: what it delivers follows from (seed, batch, lane) alone."""

from __future__ import annotations

from typing import Any, List

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gradbus
from gradbus.lanes import permutation


class Place:
    """A session as the sampler sees it."""

    def __init__(self, lanes: range, total: int, next_batch: int = 0) -> None:
        self.lanes, self.lanes_total, self.next_batch = lanes, total, next_batch
        self.lane_count = len(lanes)


def delivered(samples: int, batch_size: int, trainers: int, lanes: int = 4, **named: Any) -> List[List[List[int]]]:
    """Of each batch of an epoch, what each lane is given, over all trainers."""
    out: List[List[List[int]]] = []
    for trainer in range(trainers):
        mine = range(trainer * lanes // trainers, (trainer + 1) * lanes // trainers)
        sampler = gradbus.LaneSampler(samples, Place(mine, lanes), batch_size, **named)  # type: ignore[arg-type]
        lists = list(sampler)
        assert len(lists) == len(sampler) == sampler.batches * len(mine)
        assert [chosen.tolist() for chosen in sampler.tensors()] == lists
        for at, one in enumerate(lists):
            batch = at // len(mine)
            if len(out) <= batch:
                out.append([])
            out[batch].append(one)
    return out


def test_the_number_of_trainers_changes_nothing() -> None:
    whole = delivered(103, 20, 1)
    assert delivered(103, 20, 2) == whole and delivered(103, 20, 4) == whole
    assert sorted(i for batch in whole for lane in batch for i in lane) == list(range(103))
    assert [sum(map(len, batch)) for batch in whole] == [17, 17, 17, 17, 17, 18]
    assert {len(lane) for batch in whole for lane in batch} == {4, 5}
    assert delivered(103, 20, 1, seed=2) != whole


def test_forms() -> None:
    plain = delivered(10, 4, 1, lanes=2, shuffle=False)
    assert plain == [[[0], [1, 2]], [[3], [4, 5]], [[6, 7], [8, 9]]]
    assert delivered(10, 4, 1, lanes=2, shuffle=False, drop_last=True) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_an_epoch_begins_where_the_session_is() -> None:
    def of(batch: int) -> List[List[int]]:
        return list(gradbus.LaneSampler(12, Place(range(2), 2, batch), 4))  # type: ignore[arg-type]

    assert of(1) == of(0)[2:] and of(2) == of(0)[4:]
    assert of(3) != of(0) and sorted(sum(of(3), [])) == list(range(12))


def test_permutation() -> None:
    """A permutation, and the same one for ever: these bits are those of jobs that were trained."""
    assert permutation(1, 0, 8).tolist() == [7, 2, 6, 5, 0, 1, 4, 3]
    assert sorted(permutation(5, 9, 1000).tolist()) == list(range(1000))
    assert not torch.equal(permutation(5, 9, 1000), permutation(5, 10, 1000))


def test_a_loader_trains_by_lanes() -> None:
    """Four lanes in one process, with a DataLoader: a batch is committed by its last lane."""
    data = TensorDataset(torch.arange(20))
    emb = gradbus.Embedding(20, 2, name="t", init=gradbus.Zeros())
    with gradbus.local("loader", lanes=4) as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(4.0))
        loader = DataLoader(data, batch_sampler=gradbus.LaneSampler(data, session, 8))
        seen = []
        for n, (ids,) in enumerate(loader):
            assert session.lane == n % 4 and session.batch == n // 4
            seen += ids.tolist()
            emb(ids).sum().backward()
            opt.step()
        assert session.batch == 3 and sorted(seen) == list(range(20))
        assert torch.equal(
            session.lookup("t", torch.arange(20)), torch.full((20, 2), -1.0)
        )  # 4 lanes, each of weight 1


def test_refusals() -> None:
    for arguments, says in (
        ((0, Place(range(1), 1), 4), "of 0 samples in batches of 4: want at least 1"),
        ((3, Place(range(1), 1), 0), "of 3 samples in batches of 0"),
        ((3, Place(range(1), 1), 4, 1, True, True), "with drop_last: want a batch_size of at most that, not 4"),
        ((100, Place(range(8), 8), 7), "a batch of 6 samples has fewer than 8 lanes"),
    ):
        with pytest.raises(gradbus.ArgumentError, match=says):
            list(gradbus.LaneSampler(*arguments))  # type: ignore[arg-type]
