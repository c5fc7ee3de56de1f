"""Fixtures of all tests."""

from __future__ import annotations

from programs import nursery, start

__all__ = ["nursery", "start"]
