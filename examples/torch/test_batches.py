"""Batches cover a part once, whatever the size, and lanes cover a batch."""

import numpy as np
import pytest
import torch

from batches import Batches


class Part:
    """Rows that say which they are."""

    def __init__(self, rows, group):
        self.rows, self.group = rows, group

    def batch(self, index):
        return index


@pytest.mark.parametrize("rows, group, size", [(1, 1, 4), (100, 4, 8), (100, 1, 7), (96, 4, 32), (12, 4, 64)])
def test_batches_cover_all_rows_once(rows, group, size):
    for seed in (None, 3):
        batches = Batches(Part(rows, group), size, seed=seed)
        index = np.concatenate([batches[b] for b in range(len(batches))])
        assert sorted(index.tolist()) == list(range(rows))
        assert max(len(batches[b]) for b in range(len(batches))) <= size
        if rows > 50:
            assert (seed is None) == (index == np.arange(rows)).all()
        groups = index.reshape(-1, group)
        assert (groups == groups[:, :1] + np.arange(group)).all()
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_lanes_cover_their_batch():
    batches = Batches(Part(100, 4), 28, seed=3)
    for b in range(len(batches)):
        for lanes in (1, 2, 3, 8):
            pieces = [batches[b, lane, lanes] for lane in range(lanes)]
            assert np.concatenate(pieces).tolist() == batches[b].tolist()
            assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_fewer_rows_are_the_first_of_the_order():
    part = Part(1000, 4)
    some, all_of = Batches(part, 40, seed=3, rows=100), Batches(part, 40, seed=3)
    assert len(some) == 3 and len(some[2]) == 20
    assert some[1].tolist() == all_of[1].tolist()


def test_a_loader_delivers_what_a_sampler_names():
    batches = Batches(Part(100, 1), 10, seed=3)
    order = [(b, lane, 2) for b in range(10) for lane in range(2)]
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(
            batches, batch_size=None, sampler=order, num_workers=workers, collate_fn=lambda index: index
        )
        assert [index.tolist() for index in loader] == [batches[at].tolist() for at in order]
