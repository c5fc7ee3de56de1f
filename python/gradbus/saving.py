"""Saved models, read without a server and without the library.

``session.save(path)`` writes a safetensors file: all tensors under their names, and the job's manifest, version and
digest in its metadata, with what a plain module has to know of names and hashing. :func:`open_model` maps such a file
into memory: rows are read from disk when they are looked at, so a table may be larger than the process's memory.
Anything that reads safetensors reads it as well.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from .errors import ArgumentError, ClosedError, FileError, IdError
from .ids import hash_id
from .table import one_salt

__all__ = ["SavedModel", "open_model"]

_HEADER_BYTES_MAX = 64 << 20  # the library's
_METADATA = "__metadata__"
FORMAT = "gradbus model 1"
STATE = "gradbus.state"  # JSON in the metadata, see modelstate.py
_OWN = ("format", "gradbus.manifest", "gradbus.digest", "gradbus.version", "gradbus.extra", STATE)
# Those of safetensors that PyTorch has had since 1.13.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Path = Union[str, "os.PathLike[str]"]


class _Place(NamedTuple):
    dtype: torch.dtype
    shape: Tuple[int, ...]
    first: int  # byte of the file
    bytes: int


class _File:
    """A safetensors file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        try:
            with open(self.path, "rb") as file:
                self._map: Optional[mmap.mmap] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # mmap of an empty file is a ValueError
            raise FileError(f"open model {self.path}: {error}") from None
        try:
            self._places, metadata = _header(self._map)
            self._read(metadata)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.close()
            raise FileError(f"open model {self.path}: {self._kind}: {error}") from None

    _kind = "not a safetensors file"

    def _read(self, metadata: Dict[str, str]) -> None:
        """Takes over the metadata. Errors: ValueError, KeyError, TypeError, AttributeError of those of other files."""
        raise NotImplementedError

    def close(self) -> None:
        """Forgets the file. Tensors that were given go on to be valid."""
        self._map = None

    def _tensor(self, name: str) -> Tensor:
        if self._map is None:
            raise ClosedError(f"model {self.path} is closed: open it again")
        place = self._places[name]
        size = torch.empty(0, dtype=place.dtype).element_size()
        if place.bytes == 0:
            return torch.zeros(place.shape, dtype=place.dtype, device="cpu")
        memory: Any = self._map
        first = place.first
        if first % size:  # of a file whose tensors are not aligned
            memory, first = bytearray(memory[first : first + place.bytes]), 0
        return torch.frombuffer(memory, dtype=place.dtype, count=place.bytes // size, offset=first).view(place.shape)


class PlainState(_File):
    """A file with the state of a plain PyTorch model."""

    version = 0

    def _read(self, metadata: Dict[str, str]) -> None:
        self.saved = "gradbus.manifest" in metadata  # and is a SavedModel's
        # As safetensors.torch.save_model notes tensors with several names.
        self.second = {name: kept for name, kept in metadata.items() if kept in self._places}

    def state_dict(self) -> Dict[str, Tensor]:
        """Tensors by name. They lie in the file."""
        return {name: self._tensor(name) for name in self._places}


class SavedModel(_File):
    """A saved model: its tensors as they lie in the file, and what its job was. Any thread may read it.

    ``manifest``: the job's, as a dictionary. ``version``: batches that had been applied. ``digest``: SHA-256 of the
    weights, hexadecimal. ``tables``: rows and dim by name. ``parameters``: names of those that the servers trained.
    ``extra``: names of the other tensors of the model's state, such as buffers. ``metadata``: what whoever saved it
    added.
    """

    _kind = "not a file that session.save wrote"

    def __init__(self, path: Path, verify: bool = False) -> None:
        super().__init__(path)
        if verify:
            self.verify()

    def _read(self, metadata: Dict[str, str]) -> None:
        self.manifest: Dict[str, Any] = _manifest(metadata)
        self.version, self.digest = int(metadata["gradbus.version"]), metadata["gradbus.digest"]
        self.tables: Dict[str, Tuple[int, int]] = {
            t["name"]: (t["rows"], t["dim"]) for t in self.manifest["tables"] or ()
        }
        self.parameters: List[str] = [p["name"] for p in self.manifest["parameters"] or ()]
        for name in [*self.tables, *self.parameters]:
            place = self._places.get(name)
            if place is None or name in self.tables and place.shape != self.tables[name]:
                raise ValueError(f"{name!r} of its manifest is not there in the shape that it has")
            if place.dtype != torch.float32:
                raise ValueError(f"{name!r} of its manifest is {place.dtype}: want torch.float32")
        known = {*self.tables, *self.parameters} if "gradbus.extra" in metadata else set(self._places)
        self.extra = [name for name in self._places if name not in known]
        state = json.loads(metadata.get(STATE, "{}"))
        self.keys: Dict[str, List[str]] = {
            name: list(state.get("tables", {}).get(name, [f"{name}.weight"])) for name in self.tables
        }
        self.second: Dict[str, str] = dict(state.get("names", {}))
        self._salts: Dict[str, List[Optional[int]]] = {
            t["name"]: list(t.get("salts", ())) for t in self.manifest["tables"] or ()
        }
        for kept in self.second.values():
            self._places[kept]
        self.whole = STATE in metadata  # else a job of Go's wrote it, or an earlier version
        self.metadata: Dict[str, str] = {k: v for k, v in metadata.items() if k not in _OWN}

    def verify(self) -> None:
        """Compares the weights with the digest that was saved with them. The library reads the whole file into memory
        for it.

        Errors: FileError where the file was changed or cut.
        """
        from . import _native

        lib, handle = _native.native(), ctypes.c_uint64()
        lib.wait(0, lib.open, os.fsencode(self.path), ctypes.byref(handle))
        lib.check(lib.model_close(handle.value))

    def table(self, name: str) -> Tensor:
        """All rows of a table, float32 ``[rows, dim]``: the file's own bytes, read when they are looked at. Writes to
        it change neither the file nor what others see. Errors: ArgumentError."""
        if name not in self.tables:
            raise ArgumentError(f"table {name!r}: the model has {sorted(self.tables)}")
        return self._tensor(name)

    def param(self, name: str) -> Tensor:
        """A dense parameter, float32, as :meth:`table`. Errors: ArgumentError."""
        if name not in self.parameters:
            raise ArgumentError(f"parameter {name!r}: the model has {sorted(self.parameters)}")
        return self._tensor(name)

    def lookup(self, name: str, ids: Tensor) -> Tensor:
        """Rows of a table: float32 ``[*ids.shape, dim]``, a copy. ``ids``: integers of any shape, which are hashed
        where the table's module hashed them. Errors: ArgumentError, IdError."""
        rows = self.table(name)
        if not isinstance(ids, Tensor) or ids.dtype not in _INTEGERS:
            kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise ArgumentError(f"table {name!r}: ids are {kind}: want a tensor of torch.int64")
        flat = ids.detach().reshape(-1).to("cpu", torch.int64)
        salt = one_salt(name, self._salts[name], f"model.table({name!r})[gradbus.hash_id(ids, {len(rows)}, salt)]")
        if salt is not None:
            flat = hash_id(flat, len(rows), salt)
        wrong = ((flat < 0) | (flat >= len(rows))).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise IdError(f"table {name!r}: id number {at} is {int(flat[at])}: want 0 to {len(rows) - 1}")
        return rows.index_select(0, flat).reshape(*ids.shape, rows.shape[1])

    def state_dict(self, tables: Optional[Mapping[str, str]] = None) -> Dict[str, Tensor]:
        """The state of a plain PyTorch model: parameters and buffers under all their names, and rows under the path of
        the module that had the table, ``users.weight``, or under the table's name where the file does not say.

        ``tables`` gives other names: ``{"users": "user_embedding.weight"}``. Tensors lie in the file, as those of
        :meth:`table`.
        """
        names = dict(self.keys)
        for name, key in (tables or {}).items():
            if name not in names:
                raise ArgumentError(f"table {name!r}: the model has {sorted(self.tables)}")
            names[name] = [key]
        out = {name: self._tensor(name) for name in [*self.parameters, *self.extra]}
        out.update({name: self._tensor(kept) for name, kept in self.second.items()})
        for name, keys in names.items():
            for key in keys:
                if key in out:
                    raise ArgumentError(
                        f"table {name!r} as {key!r}: there is a tensor of that name: want another in tables"
                    )
                out[key] = self._tensor(name)
        return out

    def load_into(self, module: nn.Module, tables: Optional[Mapping[str, str]] = None, strict: bool = True) -> Any:
        """``module.load_state_dict`` of :meth:`state_dict`, for a plain PyTorch model: values are copied into its
        parameters. Of tables, the row of a module's ``padding_idx`` becomes zeros.

        ``strict=False`` leaves alone what only one side has, and says what in its result. Errors: RuntimeError, as of
        ``load_state_dict``.
        """
        state = self.state_dict(tables)
        result = module.load_state_dict(state, strict=strict)
        for name, part in module.named_modules():
            key = f"{name}.weight" if name else "weight"
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.padding_idx is not None:
                if key in state and key not in self.parameters:
                    with torch.no_grad():
                        part.weight[part.padding_idx].zero_()
        return result

    def __enter__(self) -> "SavedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SavedModel({self.path!r}, version={self.version}, tables={self.tables}, parameters={self.parameters})"


Start = Union[SavedModel, PlainState]


def open_start(path: Optional[Path]) -> Optional[Start]:
    """What a job begins with; None of None. Errors: FileError."""
    if path is None:
        return None
    file = PlainState(path)
    if not file.saved:
        return file
    file.close()
    return SavedModel(path)


def open_model(path: Path, verify: bool = False) -> SavedModel:
    """Opens a file that ``session.save`` wrote, for rows and parameters without a server.

    ``verify`` compares the weights with the digest saved with them, which reads all of the file; else only its header
    is checked. Errors: FileError where the file is not there, or is something else.

        model = gradbus.open_model("movies.safetensors")
        rows = model.lookup("users", torch.tensor([7, 3]))
        model.load_into(plain)            # a torch.nn model whose embeddings are called as the tables are
    """
    return SavedModel(path, verify)


def _header(data: mmap.mmap) -> Tuple[Dict[str, _Place], Dict[str, str]]:
    """Where tensors lie. Raises ValueError unless every byte of the file is accounted for."""
    if sys.byteorder != "little":
        raise ValueError("its numbers are little-endian, and this machine's are not")
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(len(data) - 8, _HEADER_BYTES_MAX):
        raise ValueError(f"{len(data)} bytes, of which the header would be {length}")
    header = json.loads(data[8 : 8 + length].decode("utf-8"))
    metadata = header.pop(_METADATA, {})
    places, end = {}, 8 + length
    for name, at in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        if at["dtype"] not in DTYPES:
            raise ValueError(f"{name!r} is {at['dtype']}: want one of {', '.join(DTYPES)}")
        place = _place(DTYPES[at["dtype"]], at["shape"], at["data_offsets"], 8 + length)
        if place.first != end:
            raise ValueError(f"{name!r} begins at byte {place.first}: want {end}")
        places[name], end = place, place.first + place.bytes
    if end != len(data):
        raise ValueError(f"{len(data)} bytes: want {end}")
    return places, metadata


def _place(dtype: torch.dtype, shape: Sequence[int], offsets: Sequence[int], base: int) -> _Place:
    values = 1
    for n in shape:
        if not isinstance(n, int) or n < 0:
            raise ValueError(f"shape {shape}")
        values *= n
    first, end = offsets
    if end - first != torch.empty(0, dtype=dtype).element_size() * values:
        raise ValueError(f"{end - first} bytes for a shape of {list(shape)} of {dtype}")
    return _Place(dtype, tuple(shape), base + first, end - first)


def _manifest(metadata: Mapping[str, str]) -> Dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise ValueError(f"its format is {metadata.get('format')!r}: want {FORMAT!r}")
    manifest = json.loads(metadata["gradbus.manifest"])
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is no object")
    return manifest
