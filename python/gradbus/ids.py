"""Ids that a program does not number itself: 64-bit ids and texts, hashed to rows. The bits are those of docs/ids.md,
in every language."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 2**64 - 1
_FIRST, _SECOND, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
ROWS_MAX = 1 << 40


def _signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits of unsigned numbers, which torch does not have: the sign's copies are masked."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """The finalizer of SplitMix64: a bijection of 64 bits. ``z``: int64 of any shape; products wrap around."""
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def mix_number(z: int) -> int:
    """:func:`mix` of one unsigned number."""
    z = (z ^ z >> 30) * _FIRST & _MASK
    z = (z ^ z >> 27) * _SECOND & _MASK
    return z ^ z >> 31


def hash_id(ids: Tensor, rows: int, salt: int = 0) -> Tensor:
    """Rows of any 64-bit ids: int64 in ``[0, rows)``, of the shape of ``ids``.

    ``ids``: integers of any shape; int64 stands for the 64 bits that it has, so ids above 2^63 are negative ones.
    ``rows``: 1 to 2^40. ``salt``: 64 bits; hashes with different salts collide independently. Two ids may have one row
    (docs/ids.md).

    >>> hash_id(torch.tensor([0, 1, 2, -1]), 1000)
    tensor([281, 617, 241, 948])
    """
    if not 1 <= rows <= ROWS_MAX:
        raise ValueError(f"hash_id to {rows} rows: want 1 to {ROWS_MAX}")
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise TypeError(f"hash_id of {ids.dtype}: want integers")
    z = mix(ids.to(torch.int64) ^ _signed(mix_number((salt & _MASK) + _GOLDEN & _MASK)))
    # The high 64 bits of z * rows, by limbs of 22, 22 and 20 bits: each product is below 2^62.
    carry = ((z & 0x3FFFFF) * rows) >> 22
    carry = (((z >> 22) & 0x3FFFFF) * rows + carry) >> 22
    return (_shifted(z, 44) * rows + carry) >> 20


def hash_string(text: str) -> int:
    """A 64-bit id of a text, as int64: FNV-1a over its UTF-8. For :func:`hash_id`, or a module with ``hashed=True``.

    >>> hash_string("a") & 0xFFFFFFFFFFFFFFFF
    12638187200555641996
    """
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & _MASK
    return _signed(h)
