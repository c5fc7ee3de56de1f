"""A communication hook for ``DistributedDataParallel``: gradbus adds up its dense gradients, in place of gloo's or
NCCL's all-reduce.

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp.register_comm_hook(session, gradbus.hook)

What the hook does follows from who steps the dense parameters:

- Servers (``Optimizer(..., dense=gradbus.Adam(...))``): the gradients of each trainer go to them with ``opt.step()``,
  and are added up there along the tree of lanes. So the hook hands DDP's gradients on as they are: nothing is sent
  twice.
- The program (``dense=None``, with an optimizer of PyTorch's): when the last bucket of a backward is complete, all of
  them are one batch of a second job of the same servers, ``<name>--dense``, whose lanes are the ranks. The mean comes
  back to every rank with equal bits, whatever the order of arrival: the sum runs along the tree of lanes, in float32,
  and is divided once.

The second job holds the gradients as its one parameter, which is zero between two backwards: a step of SGD with the
rate 1 makes it the negative mean, exactly, and a batch of lane 0 alone takes it back to zero while the next forward
runs. A rank whose gradients are not finite says so, and then every rank gets NaN, so that a ``GradScaler`` skips the
step on all of them, as with an all-reduce.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from . import _native
from .errors import ArgumentError, ClosedError, ConfigError, OrderError

if TYPE_CHECKING:
    from .session import Session

__all__ = ["hook"]

_DERIVED = "--dense"  # what the name of the second job ends with; no program may choose one with --
_NAME_MAX, _DIGEST = 63, 35  # of a job's name; 140 bits
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def hook(session: "Session", bucket: Any) -> Any:
    """The hook itself: ``ddp.register_comm_hook(session, gradbus.hook)``. ``bucket``: a
    ``torch.distributed.GradBucket`` with the undivided gradients of this rank, float32, bfloat16 or float16; sums are
    float32. Gives a future of the tensor that DDP takes in their place.

    Errors come out of ``loss.backward()``, where DDP makes them a RuntimeError with the name and the text: OrderError
    before the session has an optimizer; ConfigError where DDP has another number of processes than the job has
    trainers; ArgumentError for float64; ServerError and JobError of the session.
    """
    future: Any = torch.futures.Future()
    gradients: Tensor = bucket.buffer()
    optimizer = session._optimizer
    if optimizer is None:
        raise OrderError(
            f"session {session.name!r} has no optimizer: want gradbus.Optimizer(model, session, ...) "
            "before the first backward"
        )
    if optimizer.values() is not None:  # of dense parameters that servers step
        future.set_result(gradients)
        return future
    if gradients.dtype not in _FLOATS:
        raise ArgumentError(f"gradients are {gradients.dtype}: want {', '.join(map(str, _FLOATS))}")
    _mean_of(session).add(gradients, future, bucket.is_last())
    return future


hook.__annotations__.clear()  # DDP compares them with types that builds without torch.distributed do not have


class Mean:
    """The job that averages, from the first complete backward on."""

    def __init__(self, session: "Session", trainers: int) -> None:
        self.native = session.native
        self.name = derived_name(session.name)
        self.trainers = trainers
        self.handle: int = 0
        self._config: Dict[str, Any] = {**session._config, "derived": True}
        self._process = os.getpid()
        self._waiting: List[Tuple[Tensor, Any]] = []
        self._batch, self._step = _native.Batch(), _native.LaneStep()
        self._values = self._flag = torch.zeros(0, dtype=torch.float32, device="cpu")
        self._addresses = (ctypes.c_void_p * 2)()

    def add(self, gradients: Tensor, future: Any, last: bool) -> None:
        """Takes a bucket; with the last one of a backward it gives all of them their means."""
        self._waiting.append((gradients, future))
        if not last:
            return
        waiting, self._waiting = self._waiting, []
        parts = [_flat(tensor) for tensor, _ in waiting]
        self._average(parts)
        spoiled, at = float(self._flag) != 0, 0
        for (tensor, future), part in zip(waiting, parts):
            mean = 0.0 - self._values[at : at + part.numel()]  # -x would make zeros negative
            at += part.numel()
            if tensor.layout != torch.strided:
                tensor = _sparse(mean, tensor)
            elif not spoiled:
                tensor.copy_(mean.view(tensor.shape))
            if spoiled:
                (tensor if tensor.layout == torch.strided else tensor._values()).fill_(float("nan"))
            future.set_result(tensor)

    def _average(self, parts: List[Tensor]) -> None:
        """Makes the values the negative mean of all ranks' parts, one after the other, and the flag whether one of them
        is not finite."""
        n = sum(part.numel() for part in parts)
        if self.handle == 0:
            self._join(n)
        if n != self._values.numel():
            raise ConfigError(
                f"job {self.name!r}: a backward has {n} gradients: the first one had {self._values.numel()}; "
                "want one DDP model a session"
            )
        at = 0
        for part in parts:
            self._values[at : at + part.numel()].copy_(part)
            at += part.numel()
        finite = bool(torch.isfinite(self._values).all())
        if not finite:
            self._values.zero_()
        self._flag.fill_(0.0 if finite else 1.0)
        self._begin()
        self._commit(1)
        self._wait(self.native.dense, ctypes.addressof(self._addresses))
        self._begin()  # and back to zero, which nobody waits for before the next backward
        self._commit(1 if self._batch.first_lane == 0 else 0)

    def _join(self, n: int) -> None:
        manifest: Dict[str, Any] = {
            "name": self.name,
            "trainers": self.trainers,
            "lanes": self.trainers,
            "optimizer": {"kind": "sgd", "lr": 1.0},
        }
        zeros = {"kind": "zeros", "scale": 0.0}
        manifest["parameters"] = [
            {"name": "gradients", "shape": [n], "init": zeros},
            {"name": "not-finite", "shape": [1], "init": zeros},
        ]
        if "local" not in self._config:
            self._config["id"] = f"t{_rank()}"  # ranks are lanes, so that sums have one order
        self._values, self._flag = (torch.zeros(count, dtype=torch.float32, device="cpu") for count in (n, 1))
        self._addresses[:] = [self._values.data_ptr(), self._flag.data_ptr()]
        handle = ctypes.c_uint64()
        texts = json.dumps(self._config).encode(), json.dumps(manifest).encode()
        self.native.wait(handle, self.native.join, *texts, None, ctypes.byref(handle))
        self.handle = handle.value

    def _begin(self) -> None:
        self._wait(self.native.begin, ctypes.byref(self._batch))

    def _commit(self, samples: int) -> None:
        step = self._step
        step.lane, step.samples, step.dense = self._batch.first_lane, samples, ctypes.addressof(self._addresses)
        self._wait(self.native.commit, ctypes.addressof(step), 1)

    def _wait(self, function: Any, *arguments: Any) -> None:
        self.native.wait(self.handle, function, self.handle, *arguments)

    def leave(self, reason: Optional[str]) -> None:
        """With the session. A failure was raised before, or is the session's own."""
        handle, self.handle = self.handle, 0
        if handle == 0 or os.getpid() != self._process:
            return
        try:
            self.native.wait(0, self.native.leave, handle, None if reason is None else reason.encode())
        except ClosedError:
            pass


def derived_name(job: str) -> str:
    """Of the second job: of another name for every job, and for none that a program may choose (schema.CheckChosen)."""
    if len(job) + len(_DERIVED) <= _NAME_MAX:
        return job + _DERIVED
    digest = hashlib.sha256(job.encode()).hexdigest()[:_DIGEST]
    return f"{job[: _NAME_MAX - len(_DERIVED) - 1 - _DIGEST]}-{digest}{_DERIVED}"


def _flat(gradients: Tensor) -> Tensor:
    """A bucket as a part of the sum. A sparse gradient of rows is dense there, with a 1 for each row that it has."""
    gradients = gradients.detach()
    if gradients.layout == torch.strided:
        return gradients.reshape(-1)
    if gradients.layout != torch.sparse_coo or gradients.sparse_dim() != 1:
        raise ArgumentError(f"gradients are {gradients.layout}: want dense ones, or the sparse ones of rows")
    gradients = gradients.coalesce()
    has = torch.zeros(gradients.shape[0], dtype=gradients.dtype, device=gradients.device)
    has[gradients.indices()[0]] = 1
    return torch.cat([gradients.to_dense().reshape(-1), has])


def _sparse(mean: Tensor, like: Tensor) -> Tensor:
    """The sparse gradient of the rows that any rank has."""
    rows = like.shape[0]
    dense, has = mean[:-rows].view(like.shape), mean[-rows:]
    index = has.nonzero().view(-1)
    values = dense.index_select(0, index).to(like.device, like.dtype)
    checked = getattr(torch.sparse, "check_sparse_tensor_invariants", contextlib.nullcontext)
    with checked():  # PyTorch 2.14 warns where nothing says whether it is to check
        return torch.sparse_coo_tensor(index.unsqueeze(0).to(like.device), values, like.shape).coalesce()


def _mean_of(session: "Session") -> Mean:
    """The session's, made at the first bucket. Errors: ClosedError; ConfigError where processes and trainers differ."""
    session._check_open()
    if session._mean is None:
        trainers, processes = int(session._manifest["trainers"]), _processes()
        if trainers != processes:
            raise ConfigError(
                f"session {session.name!r} is of {trainers} trainers, and DDP has {processes} processes: want as many"
            )
        session._mean = Mean(session, trainers)
    return session._mean


def _processes() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
