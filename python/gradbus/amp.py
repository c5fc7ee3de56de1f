"""Mixed precision: what a ``GradScaler`` sees of an optimizer, and the steps that it skips.

A scaler multiplies the loss, divides the gradients of ``param_groups`` by the same number, and calls no ``step`` where
one of them is not finite. Gradients of rows belong to no parameter, so a group lists them while they wait for the step
(:class:`RowGradients`): they are divided, looked at and clipped like any other. And a trainer that did not step would
hold up the others. So the optimizer says that its step knows scalers, is called in any case, and ends the lane without
a contribution where it is to be skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .session import Session

__all__ = ["RowGradients", "skipped"]


class RowGradients(List[Tensor]):
    """What ``params`` of the group of tables are: nothing but, between a backward and its step, one tensor a table,
    whose ``grad`` is the gradient of its rows, in the memory from which it is sent."""

    def __init__(self, session: "Session") -> None:
        super().__init__()
        self._session = session

    def __iter__(self) -> Iterator[Tensor]:
        for grad in self._session._batches.gradients():
            holder = grad.view_as(grad)
            holder.grad = grad
            yield holder

    def __len__(self) -> int:
        return len(self._session._batches.gradients())

    def __getitem__(self, at: Any) -> Any:
        return list(self)[at]

    def __bool__(self) -> bool:
        return len(self) > 0

    def __reduce__(self) -> Any:
        return list, ()

    def __deepcopy__(self, memo: Any) -> List[Tensor]:
        return []


def skipped(optimizer: torch.optim.Optimizer, arguments: Dict[str, Any]) -> bool:
    """Whether a scaler wants this step left out; gradients are divided by its scale, where they were not.

    ``arguments``: further ones of ``step``. PyTorch 1 gives the scaler as ``grad_scaler``; PyTorch 2 sets
    ``grad_scale`` and ``found_inf`` of the optimizer. Errors: TypeError for any other argument.
    """
    scaler = arguments.pop("grad_scaler", None)
    if arguments:
        raise TypeError(f"step() got unexpected arguments: {', '.join(sorted(arguments))}")
    if scaler is not None:
        state = scaler._per_optimizer_states[id(optimizer)]
        if getattr(state["stage"], "name", "") == "READY":
            scaler.unscale_(optimizer)
        return sum(float(found) for found in state["found_inf_per_device"].values()) > 0
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is not None and float(found) > 0:
        return True
    if scale is not None:
        inverse = scale.double().reciprocal().float()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(inverse.to(parameter.grad.device))
    return False
