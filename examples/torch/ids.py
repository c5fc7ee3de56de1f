"""Hashed ids and counter-based random numbers over numpy arrays, as docs/ids.md defines them.

Everything here is a pure function of its arguments: no generator with a state, so any row of a data set can be made on
its own, in any order and by any process. Sums and products of uint64 arrays wrap around, which is what is wanted.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FNV_START = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def mix(z):
    """The finalizer of SplitMix64 of each element: uint64 [...] -> uint64 [...], [1] for a number."""
    z = np.atleast_1d(np.asarray(z, np.uint64))  # numpy warns of wrapping in scalars
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def scale(bits, bound):
    """The high half of bits * bound: uint64 [...] -> int64 [...] below bound, an int or an array, at most 2**32."""
    bits, bound = np.asarray(bits, np.uint64), np.asarray(bound, np.uint64)
    return (((bits >> _HALF) * bound + ((bits & _LOW) * bound >> _HALF)) >> _HALF).astype(np.int64)


def hash_id(ids, rows, salt=0):
    """The row of each 64-bit id in a table of `rows` rows, at most 2**32: [...] -> int64 [...]."""
    return scale(mix(np.asarray(ids, np.uint64) ^ mix(np.array([salt], np.uint64) + _GOLDEN)), rows)


def hash_tokens(text, begins, ends):
    """FNV-1a of 64 bits of each token text[begin:end] (docs/ids.md's hash_string).

    text uint8 [bytes]; begins, ends int [n] -> uint64 [n]. It goes byte by byte over all tokens at once, the longest
    first, so that those still under way are a prefix.
    """
    lengths = ends - begins
    order = np.argsort(-lengths, kind="stable")
    at, longest = begins[order], int(lengths.max(initial=0))
    longer = len(begins) - np.cumsum(np.bincount(lengths, minlength=1))  # tokens with more than p bytes
    h = np.full(len(begins), _FNV_START)
    for p in range(longest):
        m = longer[p]
        h[:m] = (h[:m] ^ text[at[:m] + p]) * _FNV_PRIME
    out = np.empty_like(h)
    out[order] = h
    return out


def hash_strings(texts):
    """FNV-1a of each string, as UTF-8: a list of n -> uint64 [n]."""
    encoded = [t.encode() for t in texts]
    ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
    begins = ends - np.array([len(e) for e in encoded], np.int64)
    return hash_tokens(np.frombuffer(b"".join(encoded), np.uint8), begins, ends)


def draw(seed, *counters):
    """64 random bits for each tuple of counters: ints and int arrays [...] of one shape -> uint64 [...]."""
    bits = mix(np.array([seed], np.uint64) + _GOLDEN)
    for counter in counters:
        bits = mix(
            bits * _GOLDEN ^ mix(np.asarray(counter).astype(np.uint64) + _GOLDEN)
        )  # the product keeps their order
    return bits


def shuffled(index, n, seed):
    """Where a random permutation of range(n) takes each index: int64 [...] -> int64 [...], all below n.

    A Feistel network over the bits of n - 1, walked until the value is below n: nothing is stored, whatever n.
    """
    if n < 2:
        return np.asarray(index, np.int64).copy()
    half = np.uint64((int(n - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << int(half)) - 1)
    value = np.asarray(index).astype(np.uint64)
    outside = np.ones(value.shape, bool)
    while outside.any():
        left, right = value[outside] >> half, value[outside] & low
        for turn in range(4):
            left, right = right, left ^ (draw(seed, turn, right) & low)
        value[outside] = left << half | right
        outside = value >= np.uint64(n)
    return value.astype(np.int64)
