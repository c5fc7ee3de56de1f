"""Embedding and EmbeddingBag, whose rows are the session's and whose arithmetic is PyTorch's."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import bags, plain, pooling
from .bag_input import BagInput, bag_input
from .checks import eager, flag, tensor_named, whole
from .errors import ArgumentError, ConfigError, OrderError
from .ids import ROWS_MAX, _signed, hash_id
from .lookups import NO_GRAPH, Looked, Wish, embed, flat_ids, look_up
from .optimizers import Init, Normal, Spec, Uniform, Zeros
from .session import Session
from .table import Table

_STATE = "gradbus table 1"
_DIM_MAX = 65536


_LOAD = "want model.load_state_dict({'NAME.weight': rows}, strict=False) before the first forward"
# What PyTorch's modules have and these do not.
_ABSENT = {
    "max_norm": "rows are not renormalized; want clip=gradbus.Clip(...) or weight_decay of the optimizer",
    "norm_type": "rows are not renormalized; want clip=gradbus.Clip(...) or weight_decay of the optimizer",
    "scale_grad_by_freq": "gradients are not scaled; want it left out",
    "sparse": "gradients of rows are always sparse; want it left out",
    "_weight": _LOAD,
    "_freeze": "want module.requires_grad_(False)",
    "device": "want module.to(device), for what rows are converted to",
    "dtype": "want module.to(dtype), for what rows are converted to",
}


class TableModule(nn.Module):
    """What Embedding and EmbeddingBag have in common: a table, and rows of it. Not made by itself.

    Its rows are with the session's servers, so ``state_dict`` of a model has none of them. Its one parameter,
    ``rows_parameter``, has no elements: what is done to it is done to the rows. Frozen (``requires_grad_(False)``) they
    are read and not trained; with its gradient cleared they have none.

    In training mode, with gradients enabled, the rows that a forward uses get a gradient, which goes to the
    servers at the optimizer's step. In ``eval()``, or under ``no_grad``, a forward reads rows of the newest version and
    trains nothing. ``half()``, ``to(dtype)`` and ``to(device)`` decide what rows are converted to before PyTorch
    computes with them; ids and rows themselves travel through the processor's memory."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: Optional[int],
        name: Optional[str],
        session: Optional[Session],
        init: Optional[Init],
        optimizer: Optional[Spec],
        hashed: bool,
        salt: int,
        pooling: Optional[str],
        absent: Dict[str, Any],
    ) -> None:
        super().__init__()
        kind = type(self).__name__
        for argument in absent:
            if argument not in _ABSENT:
                raise TypeError(f"{kind}.__init__() got an unexpected keyword argument {argument!r}")
            raise ConfigError(f"{kind} {name!r} has no {argument}: {_ABSENT[argument]}")
        sizes = (num_embeddings, embedding_dim)
        if all(isinstance(size, int) for size in sizes) and min(sizes) < 1:
            raise ConfigError(f"{kind} {name!r} of {num_embeddings} rows of {embedding_dim}: want at least 1 of both")
        num_embeddings = whole(f"{kind} {name!r}: num_embeddings", num_embeddings, 1, ROWS_MAX)
        embedding_dim = whole(f"{kind} {name!r}: embedding_dim", embedding_dim, 1, _DIM_MAX)
        if name is not None:
            tensor_named(f"{kind}: name", name)
        if init is not None and not isinstance(init, (Normal, Uniform, Zeros)):
            raise ConfigError(f"{kind} {name!r}: init {init!r}: want gradbus.Normal, Uniform or Zeros")
        if optimizer is not None and not isinstance(optimizer, Spec):
            raise ConfigError(
                f"{kind} {name!r}: optimizer {optimizer!r}: want one of this package, such as gradbus.Adam(1e-3)"
            )
        hashed, salt = flag(f"{kind} {name!r}: hashed", hashed), whole(f"{kind} {name!r}: salt", salt, -(2**63))
        if session is not None and not isinstance(session, Session):
            raise ConfigError(f"{kind} {name!r}: session {session!r}: want one of gradbus.local or join")
        if padding_idx is not None:
            if hashed:
                raise ConfigError(
                    f"{type(self).__name__} {name!r}: padding_idx with hashed: an id has no row of its own there; "
                    "leave such ids out"
                )
            what = f"{kind} {name!r}: padding_idx"
            padding_idx = whole(what, padding_idx, -num_embeddings, num_embeddings - 1) % num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.name, self.hashed, self.salt = name, hashed, salt
        self.init, self.optimizer = init if init is not None else Normal(), optimizer
        self.called: Optional[str] = None  # by a collection, in place of its path
        # Of each forward that has had its backward since the last step, where the optimizer counts them.
        self.samples: Optional[Dict[object, int]] = None
        self.pooling = pooling  # by servers, else None
        self._weight: Optional[Tensor] = None  # of a plain state, until there is a session
        self._session: Optional[Session] = None
        self._table: Optional[Table] = None
        # Without elements. That it requires a gradient says that rows train; that it has one, that rows have. It has the
        # dtype and device that to() and half() have asked for. A state has none of it.
        self.rows_parameter = nn.Parameter(torch.empty(0))
        if session is not None and name is not None:
            self.bind(session, name)
        else:
            self._session = session

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> Any:
        """Refused. Errors: ConfigError that says what there is."""
        raise ConfigError(f"{cls.__name__} has no from_pretrained: {_LOAD}")

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                f"table {self.__dict__.get('name')!r} has no weight here: want session.lookup(name, ids), or "
                "gradbus.plain_state_dict(model) for all rows"
            )
        return super().__getattr__(name)

    def bind(self, session: Session, name: str) -> None:
        """Registers the table, under its own name or this one. Errors: ConfigError where the module has another
        session."""
        if self._session is not None and self._session is not session:
            raise ConfigError(
                f"table {self.name or name!r} is of {self._session!r}: want modules of {session!r} with this optimizer"
            )
        if self._table is None:
            self._table = session.table(
                self.name or name or type(self).__name__.lower(),
                self.num_embeddings,
                self.embedding_dim,
                self.init,
                self.optimizer,
                self.pooling,
                self.padding_idx,
            )
            salt = _signed(self.salt) if self.hashed else None
            if salt not in self._table.salts:
                self._table.salts.append(salt)
            self.name, self._session = self._table.name, session
            if self._weight is not None:
                session.begin_with(self._table, self._weight)
                self._weight = None

    @property
    def table(self) -> Table:
        """The session's table. Errors: OrderError where the module is in no session yet."""
        if self._table is None:
            raise OrderError(
                f"{self} has no session: want session=..., or gradbus.Optimizer(model, session) before the first "
                "forward"
            )
        return self._table

    @property
    def session(self) -> Session:
        """The session. Errors: as of :attr:`table`."""
        if self._session is None or self._table is None:
            self.table  # noqa: B018  raises
        assert self._session is not None
        return self._session

    def keys(self, ids: Tensor) -> Tensor:
        """Flat int64 row numbers of ids."""
        flat = flat_ids(ids, f"table {self.table.name!r}")
        return hash_id(flat, self.num_embeddings, self.salt) if self.hashed else flat

    def training_rows(self) -> bool:
        """Whether a forward now would train."""
        return self.training and torch.is_grad_enabled() and self.of_rows().requires_grad

    def of_rows(self) -> Tensor:
        """:attr:`rows_parameter`, in a tenth of the time of an attribute of a module."""
        return self._parameters["rows_parameter"]  # type: ignore[return-value]

    def count(self, out: Tensor, samples: int, train: bool) -> None:
        """Counts the samples of a forward in its backward, once, where the optimizer wants them and the forward trains:
        so neither a forward that is given up counts, nor one that a checkpoint computes anew."""
        counts, forward = self.samples, object()
        if counts is not None and train and out.requires_grad:
            out.register_hook(lambda _: counts.__setitem__(forward, samples))  # type: ignore[no-untyped-call]

    def rows(self, keys: Tensor) -> Tuple[Tensor, Tensor, Optional[int]]:
        """The distinct rows ``[at least 1, dim]`` of row numbers as one leaf, ids into them int64 ``[keys.numel()]``, and
        the padding's among these."""
        table = self.table
        wish = Wish([table], [keys], self.padding_idx, [self.of_rows()])
        looked = look_up(self.session, [wish], self.training_rows())[0]
        rows, local = self.converted(looked)
        return rows, local, self.local_padding(looked.unique, looked.places[0][2])

    def converted(self, looked: Looked) -> Tuple[Tensor, Tensor]:
        """Rows and ids into them, as to() and half() have asked for."""
        rows, ids, like = looked.rows, looked.ids, self.of_rows()
        if like.dtype != rows.dtype or like.device != rows.device:
            rows = rows.to(like.device, like.dtype)
            ids = ids.to(like.device)
        return rows, ids

    def local_padding(self, unique: Tensor, distinct: int) -> Optional[int]:
        """Where the padding index is among distinct ids; None where it is not."""
        if self.padding_idx is None:
            return None
        found = (unique[:distinct] == self.padding_idx).nonzero()
        return int(found[0, 0]) if found.numel() else None

    def __deepcopy__(self, memo: Any) -> Any:
        """Copies a module that has no table yet. Errors: OrderError of one that has."""
        if self._table is None:
            memo[id(self._session)] = self._session
        copied = memo[id(self)] = self.__class__.__new__(self.__class__)
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def __prepare_scriptable__(self) -> None:
        raise OrderError(NO_GRAPH)

    def _replicate_for_data_parallel(self) -> None:
        raise OrderError(
            f"table {self.name!r}: torch.nn.DataParallel runs a forward in several threads: want "
            "DistributedDataParallel, a process a GPU"
        )

    def get_extra_state(self) -> Dict[str, Any]:
        """What ``state_dict`` has of the module: which table it reads, and the version that the job has. No rows."""
        return {
            "format": _STATE,
            "table": self.name,
            "rows": self.num_embeddings,
            "dim": self.embedding_dim,
            "version": self._rows_version(),
        }

    def set_extra_state(self, state: Any) -> None:
        """Compares. ``load_state_dict`` brings no rows: they come with ``start=`` of the session.

        Errors: ConfigError where the table is another one, or has other rows than those of the state."""
        if not isinstance(state, dict) or state.get("format") != _STATE:
            raise ConfigError(f"table {self.name!r}: its state is {state!r:.80}: want one of this package")
        name, rows, dim = self.name or state["table"], self.num_embeddings, self.embedding_dim
        if (state["table"] or name, state["rows"], state["dim"]) != (name, rows, dim):
            has = f"{state['table']!r} [{state['rows']}, {state['dim']}]"
            raise ConfigError(f"table {name!r} [{rows}, {dim}]: the state is of table {has}")
        version = self._rows_version()
        if state["version"] != version:
            raise ConfigError(
                f"table {name!r}: the state is of version {state['version']}, and has no rows; those here are of "
                f"version {version}: want session.save(path) beside torch.save, and gradbus.local or join with "
                "start=path"
            )

    def _rows_version(self) -> int:
        """Of the rows: what the job has, or before the join what it begins with."""
        session = self._session
        if session is None:
            return 0
        if session.handle:
            return session.batch
        return session._start.version if session._start is not None else 0

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[no-untyped-call]
        destination.pop(prefix + "rows_parameter", None)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: List[str], *arguments: Any
    ) -> None:
        """Takes ``weight`` of a plain module, too: the rows with which the table begins."""
        key = prefix + "weight"
        if key not in state_dict:
            super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *arguments)  # type: ignore[no-untyped-call]
            if prefix + "rows_parameter" in missing:
                missing.remove(prefix + "rows_parameter")
        elif self._session is not None and self._table is not None:
            self._session.begin_with(self._table, state_dict[key])
        else:
            name = self.name or prefix[:-1]
            self._weight = plain.rows_of(name, self.num_embeddings, self.embedding_dim, state_dict[key])

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.name:
            text += f", name={self.name!r}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        if self.hashed:
            text += f", hashed=True, salt={self.salt}"
        if self.pooling is not None:
            text += ", pool='servers'"
        return text


class Embedding(TableModule):
    """``torch.nn.Embedding`` with its rows on servers.

    ``num_embeddings``: rows, 1 to 2^40. ``embedding_dim``: 1 to 65536. ``padding_idx``: its row reads as zeros and is
    not trained. ``name`` of the table; modules of one name share it. ``session``: or that of the Optimizer. ``init``:
    Normal(1) by default, as PyTorch's. ``optimizer``: in place of the Optimizer's ``embeddings``. ``hashed``: ids are
    any 64-bit integers, hashed to rows with ``salt``."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: Optional[int] = None,
        *,
        name: Optional[str] = None,
        session: Optional[Session] = None,
        init: Optional[Init] = None,
        optimizer: Optional[Spec] = None,
        hashed: bool = False,
        salt: int = 0,
        **absent: Any,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, name, session, init, optimizer, hashed, salt, None, absent
        )

    @eager
    def forward(self, input: Tensor) -> Tensor:
        """``input``: integers of any shape. Gives float32 ``[*input.shape, dim]``, or as ``to(dtype)`` says.

        Errors: IdError that names table, place and id; ArgumentError; those of the session.
        """
        train = self.training_rows()
        if train and self.padding_idx is None and pooling.native_like(self.of_rows()):
            out = embed(self.session, self.table, self.keys(input), self.of_rows())
            self.count(out, input.shape[0] if input.dim() else 1, train)
            return out if input.dim() == 1 else out.view(*input.shape, self.embedding_dim)
        rows, ids, padding = self.rows(self.keys(input))
        if padding is None and pooling.applies(rows, "sum"):
            out = pooling.each(rows, ids.view(input.shape))
        else:
            out = functional.embedding(ids.view(input.shape), rows, padding)
        self.count(out, input.shape[0] if input.dim() else 1, train)
        return out


class EmbeddingBag(TableModule):
    """``torch.nn.EmbeddingBag`` with its rows on servers. Arguments are those of :class:`Embedding`, and ``mode``,
    "sum", "mean" or "max".

    ``pool``: who pools. "client", the default: rows come here, and PyTorch pools them. "servers": pooled rows come, and
    gradients of bags go; with mode "sum" or "mean", without ``padding_idx`` and per-sample weights. Such a table is
    whole on one server; several are placed in turn."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        padding_idx: Optional[int] = None,
        *,
        include_last_offset: bool = False,
        name: Optional[str] = None,
        session: Optional[Session] = None,
        init: Optional[Init] = None,
        optimizer: Optional[Spec] = None,
        hashed: bool = False,
        salt: int = 0,
        pool: str = "client",
        **absent: Any,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ConfigError(f"EmbeddingBag {name!r}: mode {mode!r}: want 'sum', 'mean' or 'max'")
        if pool not in ("client", "servers"):
            raise ConfigError(f"EmbeddingBag {name!r}: pool {pool!r}: want 'client' or 'servers'")
        if pool == "servers" and (mode == "max" or padding_idx is not None):
            wrong = "mode 'max'" if mode == "max" else f"padding_idx {padding_idx}"
            raise ConfigError(
                f"EmbeddingBag {name!r}: pool 'servers' with {wrong}: want mode 'sum' or 'mean' without padding_idx, "
                "or pool 'client'"
            )
        pooling = mode if pool == "servers" else None
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, name, session, init, optimizer, hashed, salt, pooling, absent
        )
        self.mode = mode
        self.include_last_offset = flag(f"EmbeddingBag {name!r}: include_last_offset", include_last_offset)

    @eager
    def forward(
        self, input: Tensor, offsets: Optional[Tensor] = None, per_sample_weights: Optional[Tensor] = None
    ) -> Tensor:
        """Bags of rows: float32 ``[bags, dim]``, or as ``to(dtype)`` says.

        ``input``: integers, ``[bags, ids of a bag]``, or ``[ids of all]`` with ``offsets``, where each bag begins:
        integers ``[bags]``, 0 first and never falling; with ``include_last_offset`` ``[bags + 1]``, the last of which is
        the number of ids. ``per_sample_weights``: float, of the shape of
        ``input``, with mode "sum". An empty bag is zeros. Errors: IdError that names table, place and id;
        ArgumentError; those of the session."""
        given = self.given(f"table {self.table.name!r}", input, offsets, per_sample_weights)
        if offsets is None and input.dim() == 1:
            raise ArgumentError(
                f"table {self.table.name!r}: input of 1 dimensions without offsets: want 1 with offsets, or 2 without"
            )
        train, like = self.training_rows(), self.of_rows()
        plain = given.weights is None and self.padding_idx is None and self.mode != "max"
        if self.pooling is not None:
            out = self.pooled(given, (input, offsets))
        elif train and plain and pooling.native_like(like):
            out = embed(self.session, self.table, given.ids, like, given.begins(), self.mode == "mean")
        else:
            rows, ids, padding = self.rows(given.ids)
            out = self.pool(rows, ids, given.begins(), given.weights, padding)
        self.count(out, out.shape[0], train)
        return out

    def given(self, what: str, ids: Tensor, offsets: Optional[Tensor], weights: Optional[Tensor]) -> BagInput:
        """What a forward is given, checked, with row numbers as ids. ``what`` has the ids, for errors."""
        given = bag_input(what, ids, offsets, weights, self.mode, self.include_last_offset)
        return given._replace(ids=self.keys(given.ids)) if self.hashed else given

    def pooled(self, given: BagInput, own: Tuple[Optional[Tensor], ...]) -> Tensor:
        """Bags that servers pool. ``own``: tensors of the caller, who may write to them before the batch is
        committed."""
        table, train = self.table, self.training_rows()
        if given.weights is not None:
            raise ArgumentError(f"table {table.name!r}: per_sample_weights with pool 'servers': want pool 'client'")
        keys, begins = given.ids, given.begins()
        if train:
            theirs = [tensor.data_ptr() for tensor in own if tensor is not None]
            keys, begins = (one.clone() if one.data_ptr() in theirs else one for one in (keys, begins))
        like = self.of_rows()
        out = bags.look_up_bags(self.session, table, keys, begins, like if train else None)
        return out if like.dtype == out.dtype and like.device == out.device else out.to(like.device, like.dtype)

    def pool(
        self,
        rows: Tensor,
        ids: Tensor,
        offsets: Tensor,
        per_sample_weights: Optional[Tensor],
        padding: Optional[int],
    ) -> Tensor:
        """Bags of rows by ids into them ``[N]``, with offsets that were checked: a function of tensors alone."""
        if offsets.device != ids.device:
            offsets = offsets.to(ids.device)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.to(rows.device, rows.dtype)
        if padding is None and per_sample_weights is None and pooling.applies(rows, self.mode):
            return pooling.bags(rows, ids, offsets, self.mode)
        return functional.embedding_bag(
            ids,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            padding_idx=padding,
        )
