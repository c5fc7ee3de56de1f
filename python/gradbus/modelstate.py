"""The state of a model as plain PyTorch names it: what a file has of it, and what a job begins with.

Servers have rows and the dense parameters that they train. The rest of a model's state, which its outputs need as much,
is this process's: buffers, frozen layers, parameters of the script's own optimizers. ``session.save`` adds it to the
file, and notes in JSON ("gradbus.state") what neither tensors nor manifest say:

- ``tables``: of each table the keys of its modules in the state of a plain model, as ``users.weight``;
- ``names``: further keys of a tensor, and the name by which the file has it.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import _native, plain
from .collection import EmbeddingBagCollection
from .errors import ConfigError
from .modules import TableModule
from .saving import DTYPES, STATE, SavedModel, Start

if TYPE_CHECKING:
    from .optimizer import Optimizer
    from .session import Session
    from .table import Table

Models = Sequence[Tuple[str, nn.Module]]  # with the prefixes of their names

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class State(NamedTuple):
    """The state of models, by the keys of plain ones. A tensor or a table may have several."""

    tables: Dict[str, TableModule]
    tensors: Dict[str, Tensor]  # parameters and buffers themselves


def state_of(models: Models) -> State:
    """Errors: ConfigError where two things have one key."""
    state = State({}, {})
    for prefix, model in models:
        tensors = model.state_dict(prefix=prefix, keep_vars=True)
        for key, path, module in tables_of(model, prefix):
            tensors.pop(path + "_extra_state", None)
            state.tables[key] = module
        state.tensors.update(tensors)
    for key in state.tables:
        if key in state.tensors:
            raise ConfigError(f"{key!r} is the key of a table and of a tensor of the model: want another name of one")
    return state


def tables_of(model: nn.Module, prefix: str = "") -> Iterator[Tuple[str, str, TableModule]]:
    """The key of each table, its place in the model and its module. In a collection features are the names."""
    collections: List[str] = []
    for path, part in model.named_modules(remove_duplicate=False):
        path = f"{prefix}{path}." if path else prefix
        if isinstance(part, EmbeddingBagCollection):
            collections.append(path + "bags.")
            for feature, i, module in zip(part.features, part._module_of, part._of_feature):
                yield f"{path}{feature}.weight", f"{path}bags.{i}.", module
        elif isinstance(part, TableModule) and not path.startswith(tuple(collections)):
            yield path + "weight", path, part


# Into a file.


def check(optimizer: Optimizer, state: State, later: bool = False) -> Dict[str, Tensor]:
    """The tensors that a file has beside the weights of the servers. ``later``: tensors without a shape have one by then.

    Errors: ConfigError of what a file cannot have."""
    seen: Set[int] = {id(parameter) for parameter in optimizer.dense_values().values()}
    weights = {*optimizer.dense_values(), *optimizer.session._tables}
    extra = {}
    for key, value in state.tensors.items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{key!r} of the model's state is {type(value).__name__}, and session.save has tensors alone: want "
                "buffers in place of get_extra_state"
            )
        if id(value) in seen or later and is_lazy(value):
            continue
        seen.add(id(value))
        wrong = None
        if not key.isprintable() or key == "__metadata__":
            wrong = "of a name that a file cannot have"
        if value.dtype not in _DTYPE_NAMES or value.layout != torch.strided or value.device.type == "meta":
            wrong = f"{value.dtype}, {value.layout}, on {value.device}"
        if is_lazy(value):
            wrong = "without a shape, until the first forward"
        if wrong is not None:
            raise ConfigError(
                f"{key!r} of the model's state is {wrong}: session.save has torch.strided tensors of "
                f"{', '.join(sorted(DTYPES))}; want one, or register_buffer(..., persistent=False)"
            )
        if key in weights:
            raise ConfigError(f"{key!r} of the model's state is called as a table or parameter: want another name")
        extra[key] = value
    return extra


def save(session: Session, path: bytes) -> None:
    """:meth:`Session.save`."""
    optimizer = session._optimizer
    assert optimizer is not None  # it has joined
    state = state_of(optimizer.models)
    extra = check(optimizer, state)
    values = {key: value.detach().to("cpu").contiguous() for key, value in extra.items()}
    array = (_native.Tensor * len(values))()
    for at, (key, value) in zip(array, values.items()):
        at.name, at.dtype = key.encode("utf-8", "surrogatepass"), _DTYPE_NAMES[value.dtype].encode()
        at.shape, at.dims = (ctypes.c_int64 * value.dim())(*value.shape), value.dim()
        at.values, at.bytes = value.data_ptr(), value.numel() * value.element_size()
    metadata = {STATE: json.dumps(_described(optimizer, state, extra), sort_keys=True)}
    with session._lock:
        text = json.dumps(metadata).encode()
        session._batches.read(session.native.save, session.handle, path, array, len(array), text)


def _described(optimizer: Optimizer, state: State, extra: Dict[str, Tensor]) -> Dict[str, Any]:
    """What the file says of its tensors."""
    first = {id(tensor): name for tensors in (optimizer.dense_values(), extra) for name, tensor in tensors.items()}
    names = {key: first[id(tensor)] for key, tensor in state.tensors.items() if first[id(tensor)] != key}
    keys: Dict[str, List[str]] = {}
    for key, module in state.tables.items():
        keys.setdefault(module.table.name, []).append(key)
    return {"tables": keys, "names": names}


# Out of a file.


def begin(optimizer: Optimizer, start: Optional[Start]) -> None:
    """Looks at the state of an optimizer's models, and gives parameters and buffers the values of a file. Rows come when
    the session joins.

    Errors: ConfigError where a file cannot have the state, or this one has another."""
    state = state_of(optimizer.models)
    check(optimizer, state, later=True)
    if start is None:
        return
    given = start.state_dict()
    by_tensor = {id(tensor): given[key] for key, tensor in state.tensors.items() if key in given}
    for key, tensor in state.tensors.items():
        if key not in given and start.second.get(key) in given:
            given[key] = given[start.second[key]]
        elif key not in given and id(tensor) in by_tensor:
            given[key] = by_tensor[id(tensor)]
    wanted = set(state.tensors)
    if isinstance(start, SavedModel) and not start.whole:
        wanted &= set(optimizer.dense_values())
    lacks: List[str] = []
    for prefix, model in optimizer.models:
        own = {key[len(prefix) :]: given[key] for key in state.tensors if key in given and key.startswith(prefix)}
        try:
            missing = model.load_state_dict(own, strict=False).missing_keys
        except RuntimeError as error:  # of shapes
            raise ConfigError(f"{start.path} does not fit the model: {' '.join(str(error).split())}") from None
        lacks += [prefix + key for key in missing if prefix + key in wanted]
    if lacks:
        raise ConfigError(f"parameters and buffers {lacks}: {start.path} has no such ones: want all of the model's state")


def file_to_begin_with(session: Session, start: Optional[Start]) -> Optional[str]:
    """The path of a file that the library reads itself, since it is of a job as this one; of another file the session
    gets the rows.

    Errors: ConfigError where a table has no rows there, or the file has what the model has not; where parameters have
    other values than the file that the library reads."""
    optimizer = session._optimizer
    if optimizer is None or start is None or session._rows:
        return None
    state = state_of(optimizer.models)
    given = start.state_dict()
    for key in state.tensors:
        given.pop(key, None)
    rows = {name: _rows(table, state, start, given) for name, table in session._tables.items()}
    if given:
        raise ConfigError(f"{start.path} has {sorted(given)}, and the model has not: want a file of its state")
    if isinstance(start, SavedModel):
        if set(start.parameters) == set(optimizer.dense_values()) and set(start.tables) == set(session._tables):
            optimizer.check_start(start)
            return start.path
    for name, table in session._tables.items():
        session._rows[name] = plain.rows_of(name, table.rows, table.dim, rows[name])
    return None


def _rows(table: Table, state: State, start: Start, given: Dict[str, Tensor]) -> Tensor:
    """The rows of a table as the file has them, which are taken out of what is given."""
    keys = [key for key, module in state.tables.items() if module.table is table] or [f"{table.name}.weight"]
    if isinstance(start, SavedModel):
        keys = start.keys.get(table.name, keys)
    found = {key: given.pop(key) for key in keys if key in given}
    if not found:
        raise ConfigError(f"table {table.name!r}: {start.path} has no {keys[0]!r}: want its rows")
    rows: Tensor = plain.shared_rows(f"table {table.name!r}: {start.path}:", found)
    return rows
