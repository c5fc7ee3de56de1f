"""Dense parameters that servers train: their values into and out of the memory of PyTorch, and their gradients."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .batches import DenseGradients
from .errors import ConfigError, OrderError
from .saving import SavedModel

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Dense(DenseGradients):
    """Parameters by name, in the order of the model. The servers' values are float32.

    The library reads and writes a parameter's own memory where that is float32, contiguous and the processor's. Others,
    such as half precision or those on a GPU, go through a float32 copy, which is rounded to the parameter after each
    batch."""

    def __init__(self, parameters: Dict[str, torch.nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            _check(name, parameter)
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        n = len(self.parameters)
        self._values = (ctypes.c_void_p * n)()
        self._staged: List[Optional[Tensor]] = [None] * n
        self._gradients: List[Any] = []  # of each lane, an array of addresses
        self._kept: List[List[Optional[Tensor]]] = (
            []
        )  # of each lane, memory for gradients that later backwards must not change
        self._versions: List[int] = []  # of parameters as autograd counts them, when they had the servers' values
        self._views: List[Tensor] = (
            []
        )  # without elements, of direct parameters: they share the versions that autograd checks
        self._viewed: List[int] = []

    def frozen(self) -> List[str]:
        """Those that require no gradient any more."""
        return [name for name, parameter in zip(self.names, self.parameters) if not parameter.requires_grad]

    def has_gradient(self) -> bool:
        return any(parameter.grad is not None for parameter in self.parameters)

    def manifest(self, optimizer: Dict[str, Any]) -> List[Dict[str, Any]]:
        """The parameters of a manifest; their first values come from memory, so init says nothing."""
        zeros = {"kind": "zeros", "scale": 0.0}
        return [
            {"name": name, "shape": list(p.shape) or [1], "init": zeros, "optimizer": optimizer}
            for name, p in zip(self.names, self.parameters)
        ]

    def check_start(self, model: SavedModel) -> None:
        """Errors: ConfigError where a parameter has no longer the value of the model with which the job begins."""
        for name, parameter in zip(self.names, self.parameters):
            saved = model.param(name).view(parameter.shape).to(parameter.dtype)
            if not torch.allclose(parameter.detach().to("cpu"), saved, rtol=0, atol=0, equal_nan=True):
                raise ConfigError(
                    f"parameter {name!r} was written to, and the job begins with the value of {model.path}: want it as "
                    "it is there, or a session without start"
                )
        self._note()

    def start_values(self) -> Any:
        """An array with the address of each parameter's values as they are now."""
        values = self.values()
        self._note()
        for staged, parameter in zip(self._staged, self.parameters):
            if staged is not None:
                staged.copy_(parameter.detach())
        return values

    def values(self) -> Any:
        """An array with the address to which each parameter's new values go."""
        for i, p in enumerate(self.parameters):
            if p.dtype == torch.float32 and p.is_contiguous() and p.device.type == "cpu":
                self._staged[i] = None
                self._values[i] = p.data_ptr()
            else:
                staged = self._staged[i]
                if staged is None:
                    staged = self._staged[i] = torch.empty(p.shape, dtype=torch.float32)
                self._values[i] = staged.data_ptr()
        return self._values

    def take_values(self) -> None:
        """After new values have been written: copies those that go by another memory, and tells autograd that
        parameters have changed."""
        addresses = [p.data_ptr() for p in self.parameters]
        if addresses != self._viewed:
            direct = [p for p, staged in zip(self.parameters, self._staged) if staged is None]
            self._views = [p.detach().view(-1)[:0] for p in direct]
            self._viewed = addresses
        if self._views:
            torch._foreach_zero_(self._views)
        for parameter, staged in zip(self.parameters, self._staged):
            if staged is not None:
                with torch.no_grad():
                    parameter.copy_(staged)
        self._note()

    def _note(self) -> None:
        self._versions = [p._version for p in self.parameters]

    def _check_unchanged(self) -> None:
        """Errors: OrderError where the script has written to a parameter whose values are the servers'."""
        if [p._version for p in self.parameters] == self._versions:
            return
        for name, parameter, version in zip(self.names, self.parameters, self._versions):
            if parameter._version != version:
                raise OrderError(
                    f"parameter {name!r} was written to after the session had joined: its values are the servers', "
                    "and the next ones replace it; want load_state_dict and the like before the first forward, or "
                    "dense=None"
                )

    def gradients(self, lane: int, keep: bool) -> Tuple[Optional[int], Any]:
        self._check_unchanged()
        while len(self._gradients) <= lane:
            self._gradients.append((ctypes.c_void_p * len(self.parameters))())
            self._kept.append([None] * len(self.parameters))
        out, kept, memory = self._gradients[lane], self._kept[lane], []
        for i, parameter in enumerate(self.parameters):
            grad = parameter.grad
            if grad is None:
                out[i] = None
                continue
            if grad.layout != torch.strided:
                grad = grad.to_dense()
            if grad.dtype != torch.float32 or grad.device.type != "cpu" or not grad.is_contiguous():
                grad = grad.detach().to("cpu", torch.float32).contiguous()
            elif keep:
                room = kept[i]
                if room is None:
                    room = kept[i] = torch.empty_like(grad)
                grad = room.copy_(grad.detach())
            memory.append(grad)
            out[i] = grad.data_ptr()
        return ctypes.addressof(out), memory


def _check(name: str, parameter: torch.nn.Parameter) -> None:
    """Errors: ConfigError where servers cannot train a parameter."""
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        raise ConfigError(
            f"parameter {name!r} has no shape yet: want a forward of the lazy module before gradbus.Optimizer"
        )
    if parameter.dtype not in _FLOATS:
        raise ConfigError(
            f"parameter {name!r} is {parameter.dtype}: servers train torch.float32 (and float16, bfloat16 as a copy "
            "of it); want one of "
            "these, or dense=None and an optimizer of torch.optim"
        )
    if parameter.numel() == 0:
        raise ConfigError(
            f"parameter {name!r} has shape {list(parameter.shape)}: want at least one element, or requires_grad=False"
        )
    if parameter.layout != torch.strided:
        raise ConfigError(f"parameter {name!r} is {parameter.layout}: want torch.strided")
