"""Hashed ids have the bits that docs/ids.md gives every language."""

from __future__ import annotations

import pathlib
import re
from typing import List, Tuple

import pytest
import torch

import gradbus
from gradbus.ids import mix_number

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "ids.md"


def table(columns: int) -> List[Tuple[str, ...]]:
    """The rows below the head of the document's table of so many columns."""
    lines = re.findall(r"^\| (.+) \|$", DOCUMENT.read_text(), re.M)
    rows = [tuple(cell.strip() for cell in line.split("|")) for line in lines]
    return [row for row in rows if len(row) == columns and row[-1].isdigit()]


def test_documented_ids() -> None:
    rows = table(4)
    assert len(rows) >= 8
    for number, size, salt, want in rows:
        ids = torch.tensor([int(number) - (1 << 64) if int(number) >> 63 else int(number)])
        assert gradbus.hash_id(ids, int(size), int(salt)).tolist() == [int(want)]


def test_documented_texts() -> None:
    rows = table(2)
    assert len(rows) >= 5
    for text, want in rows:
        assert gradbus.hash_string(text.strip("`")) & 2**64 - 1 == int(want)


def test_any_ids() -> None:
    """Against whole numbers of any length, over sizes at the edges of the limbs."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(-(2**63), 2**63 - 1, (200,), generator=generator)
    for rows in (1, 2, 3, 2**20 - 1, 2**22, 2**31, 2**32 + 1, 2**40):
        for salt in (0, 1, 2**64 - 1):
            mixed = [mix_number((int(i) & 2**64 - 1) ^ mix_number(salt + 0x9E3779B97F4A7C15 & 2**64 - 1)) for i in ids]
            assert gradbus.hash_id(ids, rows, salt).tolist() == [m * rows >> 64 for m in mixed]
    assert gradbus.hash_id(ids[:4].to(torch.int32).view(2, 2), 10).shape == (2, 2)


def test_refusals() -> None:
    for rows in (0, 2**40 + 1):
        with pytest.raises(ValueError, match=f"to {rows} rows: want 1 to 1099511627776"):
            gradbus.hash_id(torch.tensor([1]), rows)
    with pytest.raises(TypeError, match="torch.float32: want integers"):
        gradbus.hash_id(torch.tensor([1.0]), 10)
