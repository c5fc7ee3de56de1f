"""Many features, one lookup: bags of all tables of a model are asked for together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import plain, pooling
from .bag_input import BagInput, inverse_indices, jagged_inputs
from .checks import eager
from .errors import ArgumentError, ConfigError
from .lookups import Looked, Wish, flat_ids, look_up
from .modules import EmbeddingBag

Feature = Union[Tensor, Sequence[Tensor]]


class KeyedTensor:
    """Pooled features by name, each ``[bags, dim]``: of the methods of TorchRec's class of that name, those that
    read."""

    def __init__(
        self, places: Mapping[str, Tuple[int, int]], groups: Sequence[Sequence[Tensor]], block: Optional[Tensor] = None
    ) -> None:
        """``places``: of each feature, its group and where it is there. A group may be one tensor, whose parts are made
        when they are asked for. ``block``: all features, where they are one tensor."""
        self._places, self._groups, self._block = places, groups, block
        self._features: Dict[str, Tensor] = {}

    def keys(self) -> List[str]:
        return list(self._places)

    def __getitem__(self, key: str) -> Tensor:
        feature = self._features.get(key)
        if feature is None:
            group, at = self._places[key]
            with torch.enable_grad():  # as in the forward
                feature = self._features[key] = self._groups[group][at]  # unbind's views cannot be changed in place
        return feature

    def __len__(self) -> int:
        return len(self._places)

    def to_dict(self) -> Dict[str, Tensor]:
        return {key: self[key] for key in self._places}

    def values(self) -> Tensor:
        """All features side by side: ``[bags, sum of dims]``."""
        if self._block is not None:
            return self._block.transpose(0, 1).flatten(1)
        return torch.cat(list(self.to_dict().values()), 1)

    def stacked(self) -> Tensor:
        """All features, which have one dim: ``[bags, features, dim]``."""
        if self._block is not None:
            return self._block.transpose(0, 1)
        return torch.stack(list(self.to_dict().values()), 1)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{key}: {list(value.shape)}" for key, value in self.to_dict().items())
        return f"KeyedTensor({shapes})"


class EmbeddingBagCollection(nn.Module):
    """Named features, each of which is an :class:`~gradbus.EmbeddingBag`, with the rows of all of them in one lookup.

    ``bags``: the module of each feature, which may be that of several. A module without a name is called by its first
    feature. A forward takes one of:

    - a mapping with each feature's ids: ``[bags]`` (one id a bag), ``[bags, ids of a bag]``, or a tuple ``(ids,
      offsets)`` or ``(ids, offsets, per_sample_weights)`` as of ``torch.nn.EmbeddingBag``;
    - integers ``[bags, features]``, one id a bag, columns in the order of ``bags``;
    - anything shaped like TorchRec's KeyedJaggedTensor: ``keys()``, ``values()``, ``offsets()`` or ``lengths()``, and
      ``weights_or_none()``, of at least the features of ``bags``.

    Every feature has the same number of bags, or its inverse indices say which of them a sample has. Features of one dim
    and mode are computed by one operation. ``is_weighted``, as TorchRec's: bags of a KeyedJaggedTensor are sums with its
    weights, which are ignored without it.

        emb = gradbus.EmbeddingBagCollection({"user": gradbus.EmbeddingBag(10**6, 16), "item":
        gradbus.EmbeddingBag(10**7, 16)}) out = emb({"user": users, "item": (items, offsets)}) out["user"],
        out.values(), out.stacked()    # [bags, 16], [bags, 32], [bags, 2, 16]"""

    def __init__(self, bags: Mapping[str, EmbeddingBag], is_weighted: bool = False) -> None:
        super().__init__()
        self.is_weighted = is_weighted
        if not bags:
            raise ConfigError("EmbeddingBagCollection without features: want at least one")
        modules: List[EmbeddingBag] = []
        self.features = list(bags)
        self._module_of: List[int] = []
        for feature, module in bags.items():
            if not isinstance(module, EmbeddingBag):
                raise ConfigError(f"feature {feature!r} is {type(module).__name__}: want gradbus.EmbeddingBag")
            if module.pooling is not None:
                raise ConfigError(
                    f"feature {feature!r} has pool 'servers': want pool 'client' in a collection, or the module by "
                    "itself"
                )
            if is_weighted and module.mode != "sum":
                raise ConfigError(f"feature {feature!r} has mode {module.mode!r}: want 'sum' with is_weighted=True")
            if not any(module is m for m in modules):
                module.called = feature if module.called is None else module.called
                modules.append(module)
            self._module_of.append(next(i for i, m in enumerate(modules) if m is module))
        self.bags = nn.ModuleList(modules)
        self._of_feature = [modules[i] for i in self._module_of]
        self._groups = self._grouped()
        self._tables = [self._features_of_tables(group) for group in self._groups]
        places = {self.features[i]: (g, at) for g, group in enumerate(self._groups) for at, i in enumerate(group)}
        self._places = {feature: places[feature] for feature in self.features}
        self._ordered = self._groups == [list(range(len(self.features)))]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        """Takes rows by the names of features, too, as a plain ``ModuleDict`` of them has them."""
        for i, module in enumerate(self.bags):
            own = f"{prefix}bags.{i}.weight"
            keys = [own, *(f"{prefix}{name}.weight" for name, of in zip(self.features, self._module_of) if of == i)]
            found = {key: state_dict.pop(key) for key in keys if key in state_dict}
            if found:
                state_dict[own] = plain.shared_rows(f"table {module.called!r}: the state's", found)
        super()._load_from_state_dict(state_dict, prefix, *arguments)  # type: ignore[no-untyped-call]

    def _grouped(self) -> List[List[int]]:
        """Features that are computed together: of one dim and mode, and no padding; those of one module beside each
        other."""
        groups: Dict[Any, List[int]] = {}
        for i in sorted(range(len(self.features)), key=lambda i: self._module_of[i]):
            module = self._module(i)
            groups.setdefault(
                (module.embedding_dim, module.mode, self._module_of[i] if module.padding_idx is not None else -1), []
            ).append(i)
        return list(groups.values())

    def _features_of_tables(self, group: Sequence[int]) -> List[Tuple[EmbeddingBag, List[int]]]:
        """The modules of a group, in its order, with the features of each."""
        out: Dict[int, List[int]] = {}
        for i in group:
            out.setdefault(self._module_of[i], []).append(i)
        return [(self._module(features[0]), features) for features in out.values()]

    def _module(self, feature: int) -> EmbeddingBag:
        return self._of_feature[feature]

    @eager
    def forward(self, features: Any) -> KeyedTensor:
        """Pooled features: each ``[bags, dim]``. Errors: IdError, ArgumentError, those of the session."""
        given = self._given(features)
        inverse = inverse_indices(features, self.features)
        samples = given[0].bags if inverse is None else inverse[self.features[0]].numel()
        bags = given[0].bags
        for feature, one in zip(self.features, given):
            if one.bags != bags and inverse is None:
                raise ArgumentError(
                    f"feature {feature!r} has {one.bags} bags and {self.features[0]!r} {bags}: want as many of each"
                )
        train = any(module.training_rows() for module in self._of_feature)
        wishes = [self._wish(tables, given) for tables in self._tables]
        looked = look_up(self._module(0).session, wishes, train)
        groups: List[Any] = []
        for group, tables, rows in zip(self._groups, self._tables, looked):
            pooled = self._pool(group, rows, given)
            for module, _ in tables:
                if module.samples is not None:
                    module.count(pooled, samples, train)
            if inverse is None:
                groups.append(pooled.view(len(group), bags, self._module(group[0]).embedding_dim))
            else:
                parts = pooled.split([given[i].bags for i in group])  # type: ignore[no-untyped-call]
                names = [self.features[i] for i in group]
                groups.append([_selected(name, part, inverse[name]) for name, part in zip(names, parts)])
        return KeyedTensor(self._places, groups, groups[0] if self._ordered and inverse is None else None)

    def _wish(self, modules: Sequence[Tuple[EmbeddingBag, List[int]]], given: Sequence[BagInput]) -> Wish:
        """One table after the other, each with the ids of its features."""
        tables, ids, parameters = [], [], []
        for module, features in modules:
            rows = module.of_rows()
            tables.append(module.table)
            parameters.append(rows if module.training else rows.detach())
            ids.append(given[features[0]].ids if len(features) == 1 else torch.cat([given[i].ids for i in features]))
        return Wish(tables, ids, modules[0][0].padding_idx, parameters)

    def _pool(self, group: Sequence[int], looked: Looked, given: Sequence[BagInput]) -> Tensor:
        """Bags of all features of a group, one feature after the other: ``[features * bags, dim]``."""
        first = self._module(group[0])
        rows, ids = first.converted(looked)
        each = [given[i] for i in group]
        padding = first.local_padding(looked.unique, looked.places[0][2])
        if all(one.offsets is None for one in each) and padding is None:
            if pooling.applies(rows, "sum"):
                return pooling.each(rows, ids)
            return functional.embedding(ids, rows)  # bags of one id, of any mode
        weights = None
        if any(one.weights is not None for one in each):
            ones = torch.ones(ids.numel(), dtype=torch.float32, device="cpu")
            weights = torch.cat([ones[: one.ids.numel()] if one.weights is None else one.weights for one in each])
        offsets, at = [], 0
        for one in each:
            offsets.append(one.begins() + at if at else one.begins())
            at += one.ids.numel()
        return first.pool(rows, ids, torch.cat(offsets) if len(offsets) > 1 else offsets[0], weights, padding)

    # What a forward is given.

    def _given(self, features: Any) -> List[BagInput]:
        if isinstance(features, Tensor):
            return self._columns(features)
        if isinstance(features, Mapping):
            missing = [name for name in self.features if name not in features]
            if missing:
                raise ArgumentError(f"features {missing} are missing: want all of {self.features}")
            return [self._feature(i, features[name]) for i, name in enumerate(self.features)]
        if all(callable(getattr(features, name, None)) for name in ("keys", "values")):
            return self._jagged(features)
        raise ArgumentError(
            f"features are {type(features).__name__}: want a mapping, a tensor [bags, {len(self.features)}] or a "
            "KeyedJaggedTensor"
        )

    def _columns(self, ids: Tensor) -> List[BagInput]:
        if ids.dim() != 2 or ids.shape[1] != len(self.features):
            raise ArgumentError(
                f"features of shape {list(ids.shape)}: want [bags, {len(self.features)}], a column a feature"
            )
        columns, bags = flat_ids(ids.t(), "features").view(len(self.features), -1), ids.shape[0]
        return [
            BagInput(module.keys(column) if module.hashed else column, None, None, bags)
            for module, column in zip(self._of_feature, columns.unbind(0))
        ]

    def _feature(self, i: int, given: Feature) -> BagInput:
        module, what = self._module(i), f"feature {self.features[i]!r}"
        if isinstance(given, Tensor):
            return module.given(what, given, None, None)
        if not isinstance(given, Sequence) or len(given) not in (2, 3):
            raise ArgumentError(
                f"{what} is {type(given).__name__}: want ids, (ids, offsets) or (ids, offsets, per_sample_weights)"
            )
        return module.given(what, given[0], given[1], given[2] if len(given) > 2 else None)

    def _jagged(self, features: Any) -> List[BagInput]:
        given = jagged_inputs(features, self.features, self.is_weighted)
        return [
            one._replace(ids=self._module(i).keys(one.ids)) if self._module(i).hashed else one
            for i, one in enumerate(given)
        ]


def _selected(feature: str, bags: Tensor, of: Tensor) -> Tensor:
    """The bag of each sample. Errors: ArgumentError."""
    if of.numel() and not 0 <= int(of.min()) <= int(of.max()) < len(bags):
        raise ArgumentError(
            f"feature {feature!r}: inverse indices from {int(of.min())} to {int(of.max())}: want 0 to {len(bags) - 1}"
        )
    return bags.index_select(0, of.to(bags.device))
