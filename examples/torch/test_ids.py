"""Hashes have the bits of docs/ids.md; draws and permutations are what they claim."""

import numpy as np
import pytest

import ids

M = 2**64 - 1


def test_hash_id_is_the_documents():
    table = [
        (0, 1000, 0, 281),
        (1, 1000, 0, 617),
        (2, 1000, 0, 241),
        (M, 1000, 0, 948),
        (1, 1000, 1, 360),
        (42, 1000000000, 0, 271388612),
        (42, 1000000000, 7, 833737628),
    ]
    for value, rows, salt, want in table:
        assert ids.hash_id(np.array([value], np.uint64), rows, salt).tolist() == [want]


def test_hash_strings_are_the_documents():
    table = {
        "": 14695981039346656037,
        "a": 12638187200555641996,
        "foobar": 9625390261332436968,
        "user:42": 7788164824035369410,
        "grüße": 6368909883404533016,
    }
    assert ids.hash_strings(list(table)).tolist() == list(table.values())
    assert ids.hash_strings([]).tolist() == []


def test_scale_is_the_high_half_of_the_product():
    bits = ids.draw(3, np.arange(1000))
    for bound in (1, 2, 3, 1000, 2**32 - 1, 2**32):
        want = [int(b) * bound >> 64 for b in bits.tolist()]
        assert ids.scale(bits, bound).tolist() == want


def test_draw_depends_on_every_counter_and_on_nothing_else():
    line, k = np.meshgrid(np.arange(100), np.arange(4))
    bits = ids.draw(7, line.ravel(), k.ravel())
    assert len(set(bits.tolist())) == 400
    assert ids.draw(7, np.array([31]), np.array([2]))[0] == bits[2 * 100 + 31]
    assert not np.intersect1d(bits, ids.draw(8, line.ravel(), k.ravel())).size


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_shuffled_is_a_permutation(n):
    order = ids.shuffled(np.arange(n), n, seed=5)
    assert sorted(order.tolist()) == list(range(n))
    some = np.arange(0, n, 3)
    assert ids.shuffled(some, n, seed=5).tolist() == order[some].tolist()
    if n > 60:
        assert (order != np.arange(n)).any() and (order != ids.shuffled(np.arange(n), n, seed=6)).any()
