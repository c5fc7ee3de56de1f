"""A table of a session: what its job's manifest says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Dict, List, Optional

from .errors import ArgumentError
from .optimizers import Init, Spec


class Table:
    """An embedding table of a session: ``rows`` rows of ``dim`` float32 values. Modules of one name share it."""

    def __init__(
        self,
        name: str,
        rows: int,
        dim: int,
        init: Init,
        optimizer: Optional[Spec],
        pooling: Optional[str] = None,
        padding: Optional[int] = None,
    ) -> None:
        self.name, self.rows, self.dim, self.init, self.optimizer = name, rows, dim, init, optimizer
        self.pooling = pooling  # by servers: "sum" or "mean"; None: they give rows
        self.padding = padding  # a row that is zeros
        self.salts: List[Optional[int]] = []  # by which its modules hash ids, each once; None: ids are rows
        self.index = -1  # in the manifest, when the session has registered it

    def __repr__(self) -> str:
        return f"table {self.name!r} [{self.rows}, {self.dim}]"

    def manifest(self) -> Dict[str, Any]:
        out: Dict[str, Any] = {"name": self.name, "rows": self.rows, "dim": self.dim, "init": self.init.manifest()}
        if self.optimizer is not None:
            out["optimizer"] = self.optimizer.manifest()
        if self.pooling is not None:
            out["placement"], out["pooling"] = "tables", self.pooling
        if self.padding is not None:
            out["padding"] = self.padding
        return out

    def hashing(self) -> Dict[str, Any]:
        """What the manifest has of it, too, when all modules are made."""
        return {"salts": self.salts} if any(salt is not None for salt in self.salts) else {}


def one_salt(name: str, salts: Sequence[Optional[int]], want: str) -> Optional[int]:
    """By what ids of a table are hashed; None where they are rows. Errors: ArgumentError where its modules differ."""
    if len(salts) > 1:
        raise ArgumentError(f"table {name!r}: its modules hash ids by salts {list(salts)} (None: not at all): want {want}")
    return salts[0] if salts else None
