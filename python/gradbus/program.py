"""What a script has of a version, beside what servers have of it: the program's part of a checkpoint.

It has buffers, parameters that the script trains by itself, what was registered (:meth:`Session.register`), the rates of
the optimizer's groups, and the states of the generators of random numbers where no LaneLoader seeds them. It is a file of
torch.save with a text of JSON and tensors, of which that names the numbers, so that ``torch.load(weights_only=True)`` of
every PyTorch reads it: no code of a file is run.
"""

from __future__ import annotations

import collections
import copy
import io
import json
import logging
import random
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

import torch
from torch import Tensor

from .errors import ConfigError, FileError

if TYPE_CHECKING:
    from .optimizer import Optimizer
    from .session import Session

BYTES_MAX = 64 << 20  # the library's
_FORMAT = 1

_log = logging.getLogger("gradbus")


class Program:
    """The objects that a session's script has registered, and when versions are due."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._objects: Dict[str, Any] = {}
        self._waiting: Dict[str, Any] = {}  # states of what may be registered yet

    def register(self, objects: Mapping[str, Any]) -> None:
        for name, value in objects.items():
            if not callable(getattr(value, "state_dict", None)) or not callable(getattr(value, "load_state_dict", None)):
                raise ConfigError(
                    f"register({name}={type(value).__name__}): want an object with state_dict and load_state_dict"
                )
            if self._objects.get(name, value) is not value:
                raise ConfigError(f"register({name}=...): another object has that name: want another one")
            self._objects[name] = value
            if name in self._waiting:
                value.load_state_dict(self._waiting.pop(name))

    def moves_on(self) -> Dict[str, Any]:
        """The states of what moves on while the next batch is loaded: generators, and what is registered and iterated."""
        states: Dict[str, Any] = {
            name: copy.deepcopy(value.state_dict()) for name, value in self._objects.items() if hasattr(value, "__iter__")
        }
        return {"registered": states, "generators": None if self._session._batches.driven else _generators()}

    def part(self, moved: Optional[Dict[str, Any]] = None) -> bytes:
        """The part of the version of now. ``moved``: what :meth:`moves_on` gave before the next batch was loaded.

        Errors: ConfigError where it cannot be written."""
        optimizer = self._session._optimizer
        assert optimizer is not None  # it has joined
        moved = self.moves_on() if moved is None else moved
        states = {name: value.state_dict() for name, value in self._objects.items()}
        part = {
            "format": _FORMAT,
            "buffers": _own(optimizer),
            "registered": {**states, **moved["registered"]},
            "generators": moved["generators"],
            **optimizer.rates_state(),
        }
        tensors: List[Tensor] = []
        text = json.dumps({name: _encoded(name, value, tensors) for name, value in part.items()})
        file = io.BytesIO()
        torch.save({"text": text, "tensors": tensors}, file)
        data = file.getvalue()
        if len(data) > BYTES_MAX:
            raise ConfigError(
                f"checkpoint of session {self._session.name!r}: buffers and registered objects are {len(data)} bytes: "
                f"want at most {BYTES_MAX}"
            )
        return data

    def take(self, data: Optional[bytes]) -> None:
        """Gives buffers, registered objects, rates and generators what a part has. None: the version has no part.

        Errors: ConfigError where the model's buffers are others; FileError."""
        session, optimizer = self._session, self._session._optimizer
        assert optimizer is not None
        own = _own(optimizer)
        if data is None:
            if own or self._objects:
                text = "job %r: the version has no buffers and registered objects: %s keep their values"
                _log.warning(text, session.name, sorted([*own, *self._objects]))
            return
        try:
            file = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            part = {name: _decoded(value, file["tensors"]) for name, value in json.loads(file["text"]).items()}
            known = part["format"] == _FORMAT
        except Exception as error:
            raise FileError(f"session {session.name!r}: the program's part of the version cannot be read: {error}") from None
        if not known:
            raise FileError(f"session {session.name!r}: the program's part has format {part['format']}: want {_FORMAT}")
        buffers: Dict[str, Tensor] = part["buffers"]
        differ = sorted(
            key for key in {*buffers, *own} if key not in buffers or key not in own or buffers[key].shape != own[key].shape
        )
        if differ:
            raise ConfigError(
                f"session {session.name!r}: buffers {differ} are not those of the version: want the model of before"
            )
        with torch.no_grad():
            for key, value in own.items():
                value.copy_(buffers[key])
        self._waiting = part["registered"]
        lacks = [name for name in self._objects if name not in self._waiting]
        if lacks:
            raise ConfigError(f"session {session.name!r}: the version has nothing of {lacks}: want what was registered before")
        for name, registered in self._objects.items():
            registered.load_state_dict(self._waiting.pop(name))
        optimizer.take_rates_state(part)
        if part["generators"] is not None:
            _set_generators(part["generators"])


def _own(optimizer: Optimizer) -> Dict[str, Tensor]:
    """Buffers, and parameters that the script trains by itself, by their keys in the model's state."""
    from . import modelstate

    extra = modelstate.check(optimizer, modelstate.state_of(optimizer.models))
    frozen = optimizer.frozen_ids()
    return {key: value for key, value in extra.items() if id(value) not in frozen}


def _generators() -> Dict[str, Any]:
    """The states of the process's generators of random numbers."""
    states: Dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        kind, key, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = [kind, key.tolist(), *rest]
    return states


def _set_generators(states: Dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    version, key, gauss = states["python"]
    random.setstate((version, tuple(key), gauss))
    if "cuda" in states and torch.cuda.is_available() and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        import numpy

        kind, numbers, at, has, cached = states["numpy"]
        numpy.random.set_state((kind, numpy.array(numbers, dtype=numpy.uint32), at, has, cached))


def _encoded(name: str, value: Any, tensors: List[Tensor]) -> Any:
    """A state as JSON, with its tensors beside it. Errors: ConfigError of what has no such form."""
    if isinstance(value, Tensor):
        tensors.append(value.detach().to("cpu").clone())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, collections.Counter) else "mapping"
        return {kind: [[_encoded(name, item, tensors) for item in pair] for pair in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_encoded(name, item, tensors) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool):
        return value
    for kind_of in (int, float, str):  # also of numpy's numbers
        if isinstance(value, kind_of):
            return kind_of(value)
    raise ConfigError(
        f"checkpoint: the state of what is {name} has {type(value).__name__}: want numbers, text, tensors, lists and "
        "mappings of them"
    )


def _decoded(value: Any, tensors: List[Tensor]) -> Any:
    """What :func:`_encoded` was given."""
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, of),) = value.items()
    if kind == "tensor":
        return tensors[of]
    if kind == "tuple":
        return tuple(_decoded(item, tensors) for item in of)
    pairs = {_decoded(key, tensors): _decoded(item, tensors) for key, item in of}
    return collections.Counter(pairs) if kind == "counter" else pairs


def seed_all(seed: int, batch: int, lane: int) -> None:
    """Seeds the generators of torch, Python and NumPy by (seed, batch, lane), so that dropout and the like do not depend
    on who computes a lane, or on what was computed before."""
    from .ids import mix_number

    mixed = seed
    for number in (0x9E3779B97F4A7C15, batch, lane):
        mixed = mix_number(mixed + number & 2**64 - 1)
    torch.manual_seed(mixed)
    random.seed(mixed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(mixed & 2**32 - 1)
