"""What a forward of bags is given, checked: all that indexes memory is looked at here, before any kernel sees it.

Every form ends in one, :class:`BagInput`: flat ids, and offsets that fit them. PyTorch's own kernels check little of
it: offsets that fall or run past the ids read, and train, memory that is not the table's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import _native
from .errors import ArgumentError
from .lookups import flat_ids, flat_integers, is_flat

__all__ = ["BagInput", "bag_input", "inverse_indices", "jagged_inputs"]


class BagInput(NamedTuple):
    """The bags of one forward of a table."""

    ids: Tensor  # int64 [N], contiguous, of the processor; not yet compared with the table's rows
    offsets: Optional[Tensor]  # int64 [bags], likewise: 0 first, never falling, at most N; None: one id a bag
    weights: Optional[Tensor]  # [N]
    bags: int

    def begins(self) -> Tensor:
        """The offsets, where a bag has one id, too."""
        if self.offsets is not None:
            return self.offsets
        return torch.arange(self.bags, dtype=torch.int64, device="cpu")


def bag_input(what: str, ids: Any, offsets: Any, weights: Any, mode: str, last: bool) -> BagInput:
    """Checks what one feature is given: ids ``[N]`` with ``offsets``, or without them ``[bags]`` or ``[bags, n]``.

    ``what`` has the ids, for errors. ``last``: offsets have one more, where the last bag ends. Errors:
    ArgumentError."""
    flat = flat_ids(ids, what)
    if weights is not None:
        _check_weights(what, weights, ids.shape, mode)
        weights = weights.reshape(-1)
    if offsets is not None:
        if ids.dim() != 1:
            raise ArgumentError(f"{what}: input of {ids.dim()} dimensions with offsets: want 1")
        own = _fitting(what, offsets, flat.numel(), last)
        own = own[:-1] if last else own
        return BagInput(flat, own, weights, own.numel())
    if ids.dim() == 1:
        return BagInput(flat, None, weights, flat.numel())
    if ids.dim() != 2:
        raise ArgumentError(f"{what}: ids of {ids.dim()} dimensions: want [bags] or [bags, ids of a bag]")
    bags, width = ids.shape
    return BagInput(flat, torch.arange(bags, dtype=torch.int64, device="cpu") * width, weights, bags)


def jagged_inputs(features: Any, wanted: Sequence[str], weighted: bool) -> List[BagInput]:
    """Checks what is shaped like TorchRec's KeyedJaggedTensor, and gives the bags of the ``wanted`` features; with the
    tensor's weights where they are ``weighted``, which are sums then. Errors: ArgumentError."""
    names, values = list(features.keys()), features.values()
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ArgumentError(f"features {missing} are missing: want all of {list(wanted)}, not {names}")
    flat = flat_ids(values, "features")
    if values.dim() != 1:
        raise ArgumentError(f"features: values of {values.dim()} dimensions: want 1")
    offsets, strides = _jagged_offsets(features, len(names), flat.numel())
    weights = None
    if weighted:
        weights = features.weights_or_none() if hasattr(features, "weights_or_none") else None
        if weights is None:
            raise ArgumentError("features without weights: want them, since the collection has is_weighted=True")
        _check_weights("features", weights, values.shape, "sum")
    firsts = [0]
    for stride in strides:
        firsts.append(firsts[-1] + stride)
    edges = offsets[torch.tensor(firsts, dtype=torch.int64, device="cpu")].tolist()
    out = []
    for name in wanted:
        f = names.index(name)
        low, high = edges[f], edges[f + 1]
        own = None if weights is None else weights[low:high]
        out.append(BagInput(flat[low:high], offsets[firsts[f] : firsts[f + 1]] - low, own, strides[f]))
    return out


def inverse_indices(features: Any, wanted: Sequence[str]) -> Optional[Dict[str, Tensor]]:
    """Of a KeyedJaggedTensor whose features have bags of their own number: of each, which of them a sample has, int64
    ``[samples]``; None of others. Errors: ArgumentError."""
    given = features.inverse_indices_or_none() if hasattr(features, "inverse_indices_or_none") else None
    if given is None:
        return None
    names, indices = list(given[0]), given[1]
    missing = [name for name in wanted if name not in names]
    if missing or not isinstance(indices, Tensor) or indices.dim() != 2 or len(indices) != len(names):
        raise ArgumentError(f"inverse indices of {names}: want [features, samples], with all of {list(wanted)}")
    flat = flat_integers("inverse indices", indices).view(indices.shape)
    return {name: flat[names.index(name)] for name in wanted}


def _jagged_offsets(features: Any, count: int, ids: int) -> Tuple[Tensor, List[int]]:
    """Offsets of all features, one behind the other, with the end; and how many bags each of them has."""
    if callable(getattr(features, "offsets", None)):
        offsets = features.offsets()
    else:
        lengths = flat_integers("features: lengths", features.lengths())
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    offsets = _fitting("features", offsets, ids, last=True)
    total = offsets.numel() - 1
    strides = getattr(features, "stride_per_key", None)
    if callable(strides):
        bags = [int(stride) for stride in strides()]
        if len(bags) != count or sum(bags) != total or min(bags, default=0) < 0:
            raise ArgumentError(f"features: {count} keys with {bags} bags: want a number of each, {total} in all")
        return offsets, bags
    if total % max(1, count):
        raise ArgumentError(f"{total + 1} offsets of {count} features: want features * bags + 1")
    return offsets, [total // max(1, count)] * count


def _fitting(what: str, offsets: Any, ids: int, last: bool) -> Tensor:
    """Offsets as int64 in contiguous memory of the processor: their own, where they are so already."""
    if is_flat(offsets):
        own: Tensor = offsets
    else:
        own = flat_integers(f"{what}: offsets", offsets)
        if offsets.dim() != 1:
            raise ArgumentError(f"{what}: offsets of {offsets.dim()} dimensions: want 1")
    library = _native.native()
    if library.check_offsets(own.data_ptr(), own.numel(), ids, last):
        raise ArgumentError(f"{what}: {(library.error() or b'').decode('utf-8', 'replace')}")
    return own


def _check_weights(what: str, weights: Any, shape: torch.Size, mode: str) -> None:
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point or weights.layout != torch.strided:
        kind = type(weights).__name__
        if isinstance(weights, Tensor):
            kind = str(weights.dtype if weights.layout == torch.strided else weights.layout)
        raise ArgumentError(f"{what}: per_sample_weights are {kind}: want a tensor of floats")
    if mode != "sum":
        raise ArgumentError(f"{what}: per_sample_weights with mode {mode!r}: want mode 'sum'")
    if weights.shape != shape:
        raise ArgumentError(
            f"{what}: per_sample_weights {list(weights.shape)}: want the shape of input, {list(shape)}"
        )
