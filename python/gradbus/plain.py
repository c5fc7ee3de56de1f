"""States of plain PyTorch: tables as ``users.weight``, into a job that has not begun, and out of one.

A job begins with a file (``start=``). Rows that ``load_state_dict`` has brought are written to such a file when the
session joins, with the rows that the job would draw for the other tables, and from there go to the servers in batches.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import tempfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Dict, List, Tuple

import torch
from torch import Tensor, nn

from .errors import ConfigError, FileError
from .saving import FORMAT

if TYPE_CHECKING:
    from .session import Session
    from .table import Table

__all__ = ["plain_state_dict", "rows_of", "write"]


def plain_state_dict(model: nn.Module) -> Dict[str, Tensor]:
    """``model.state_dict()`` as that of a plain PyTorch model, with the rows of tables: a module ``users`` of this
    package becomes ``users.weight``, float32 ``[num_embeddings, dim]``, of the newest version, and a feature ``user`` of
    a collection ``emb`` becomes ``emb.user.weight``. The row of ``padding_idx`` is zeros.

    It needs the memory for all rows; ``session.save`` does not. Errors: OrderError where a module has no session; those
    of the session."""
    from .modelstate import tables_of

    state: Dict[str, Tensor] = model.state_dict()
    for key, path, module in tables_of(model):
        state.pop(path + "_extra_state", None)
        state[key] = module.session.read_table(module.table)
    return state


def rows_of(name: str, rows: int, dim: int, weight: Any) -> Tensor:
    """A copy of the weight of a plain module, float32 ``[rows, dim]``. Errors: ConfigError."""
    if not isinstance(weight, Tensor) or not weight.dtype.is_floating_point or tuple(weight.shape) != (rows, dim):
        is_ = f"{weight.dtype} {list(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        raise ConfigError(
            f"table {name!r} [{rows}, {dim}]: the weight of the state is {is_}: want its shape, and floats"
        )
    if not bool(torch.isfinite(weight).all()):
        raise ConfigError(f"table {name!r}: the weight of the state has NaN or infinity: want finite values")
    return weight.detach().to("cpu", torch.float32, copy=True).contiguous()


def shared_rows(where: str, found: Mapping[str, Any]) -> Any:
    """The rows of one table, which a state has by one key or several, ``found``. ``where`` begins the error.

    Errors: ConfigError where two of them differ in a bit, since the table has one of them alone."""
    (first, rows), *others = found.items()
    for key, other in others:
        if not _equal_bits(rows, other):
            raise ConfigError(
                f"{where} {first!r} and {key!r} differ, and are the rows of one table: want equal rows, or tables of "
                "different names"
            )
    return rows


def _equal_bits(a: Any, b: Any) -> bool:
    if a is b or not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    x, y = (t.detach().to("cpu").reshape(-1).view(torch.uint8) for t in (a, b))  # of which NaN equals itself
    return torch.equal(x, y)


def write(session: Session, manifest: Mapping[str, Any], dense: Mapping[str, Tensor], rows: Dict[str, Tensor]) -> IO[bytes]:
    """Writes what a job begins with: dense values and rows by name, and rows as they are drawn where none are given.

    The file, in the folder of temporary files and without a name, is gone when the caller closes it. Errors: FileError;
    those of a session, where rows are drawn."""
    tables = list(session._tables.values())
    whole, drawn = _drawn(session, manifest, [table for table in tables if table.name not in rows])
    rows = {**rows, **drawn}
    tensors = [(name, value.detach().to("cpu", torch.float32)) for name, value in dense.items()]
    tensors += list(rows.items())
    tensors.sort(key=lambda pair: pair[0].encode())
    # One partition: then the rows of the digest are in the order of the file.
    whole["tables"] = [{**table, "partitions": 1} for table in whole["tables"]]
    views = [_bytes(value.contiguous()) for _, value in tensors]
    digest = hashlib.sha256()
    for view, _ in views:
        digest.update(view)
    header: Dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "gradbus.manifest": json.dumps(whole),
            "gradbus.digest": digest.hexdigest(),
            "gradbus.version": "0",
        }
    }
    at = 0
    for (name, value), (view, _) in zip(tensors, views):
        header[name] = {
            "dtype": "F32",
            "shape": list(value.shape) or [1],
            "data_offsets": [at, at + len(view)],
        }
        at += len(view)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        out = tempfile.TemporaryFile(prefix="gradbus-")
        try:
            out.write(len(text).to_bytes(8, "little") + text)
            for view, _ in views:
                out.write(view)
            out.flush()
        except BaseException:
            out.close()
            raise
    except OSError as error:
        raise FileError(
            f"session {session.name!r}: rows to begin with, {at} bytes in a temporary file: {error}; want the folder for "
            "temporary files to take files of that size, or TMPDIR to name one that does"
        ) from None
    return out


def _drawn(
    session: Session, manifest: Mapping[str, Any], tables: List[Table]
) -> Tuple[Dict[str, Any], Dict[str, Tensor]]:
    """The manifest with all defaults, and rows of tables as the job would draw them: by a job within this process that
    trains nothing. Its other rows are never drawn."""
    from .opening import local

    with local(session.name) as other:
        other._tables.update(session._tables)  # numbered as here
        other._join_as({**manifest, "trainers": 1, "lanes": 1})
        return dict(other.job), {table.name: other.read_table(table) for table in tables}


def _bytes(value: Tensor) -> Tuple[memoryview, Tensor]:
    """The bytes of a tensor, and what keeps them."""
    size = value.numel() * 4
    return memoryview((ctypes.c_char * size).from_address(value.data_ptr())).cast("B"), value
