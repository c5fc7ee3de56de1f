"""What arguments of several modules have to be, and what is kept out of compiled graphs."""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
import struct
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


def named(what: str, value: Any, pattern: str, want: str) -> str:
    """A name of a job or a table. Errors: ConfigError that says ``what`` it is of."""
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ConfigError(f"{what} {value!r:.80}: want {want}")
    return value


def tensor_named(what: str, value: Any) -> str:
    """A name of a table, as schema.Job has it. Errors: ConfigError that says ``what`` it is of."""
    given = isinstance(value, str) and value.isprintable() and value != "__metadata__"
    if not given or not 1 <= len(value.encode("utf-8", "surrogatepass")) <= 127:
        raise ConfigError(f"{what} {value!r:.80}: want 1 to 127 bytes of printable text, other than __metadata__")
    return str(value)


def folder_named(value: Any) -> str:
    """The path of a folder. Errors: ConfigError."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(f"folder {value!r:.80}: want the path of a folder")
    return path


def flag(what: str, value: Any) -> bool:
    """True or False. Errors: ConfigError that says ``what`` it is of."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} {value!r}: want True or False")
    return value


def number(what: str, value: Any, below: float = math.inf, above: float = -1.0) -> float:
    """A number that a float32 holds, from 0 on. ``below``, ``above``: what it has to be, rounded. Errors: ConfigError that
    says ``what`` it is of."""
    given = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    try:
        rounded = struct.unpack("f", struct.pack("f", given))[0]
    except OverflowError:
        rounded = math.inf
    if not (0 <= rounded < below and rounded > above) or rounded == 0 != given:
        least = "at least 0" if above < 0 else f"above {above:g}"
        limit = "" if below == math.inf else f", below {below:g}"
        raise ConfigError(f"{what}: {value!r}: want a finite number, {least}{limit}, that a float32 holds")
    return given


def eager(function: F) -> F:
    """Keeps a function out of the graphs of ``torch.compile``, which break there. It speaks with the library."""
    disable = getattr(torch, "_disable_dynamo", None)  # of PyTorch 2; imports the compiler at the first call
    return function if disable is None else disable(function)  # type: ignore[no-any-return]
