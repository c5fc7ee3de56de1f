"""What arguments of several modules have to be, and what is kept out of compiled graphs."""

from __future__ import annotations

import operator
from typing import Any, Callable, TypeVar

import torch

from .errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def whole(what: str, value: Any, least: int, most: int = 2**64 - 1) -> int:
    """An integer of Python's or numpy's. Errors: ConfigError that says ``what`` it is of."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most or isinstance(value, bool):
        limit = "" if most == 2**64 - 1 else f" and at most {most}"
        raise ConfigError(f"{what} {value!r}: want an integer, at least {least}{limit}")
    return number


def text(what: str, value: Any) -> str:
    """A text. Errors: ConfigError that says ``what`` it is of."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} {value!r}: want a text")
    return value


def eager(function: F) -> F:
    """Keeps a function out of the graphs of ``torch.compile``, which break there. It speaks with the library."""
    disable = getattr(torch, "_disable_dynamo", None)  # of PyTorch 2; imports the compiler at the first call
    return function if disable is None else disable(function)  # type: ignore[no-any-return]
