"""What a job's tables and parameters begin with and step by: initial values, optimizers, schedules, clipping.

These are descriptions. The servers run them, in float32 and with the formulas of docs/optimizers.md. Arguments have
PyTorch's names and defaults. Rates are of the mean gradient over the lanes of a batch. Rows of tables are lazy: a row
moves in the batches that use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Dict, Optional, Tuple, Union

from .checks import flag, number, whole
from .errors import ConfigError

_ZERO = 1e-30  # a manifest's 0 means the default; so small a number counts for nothing in float32
_BATCHES_MAX, _STEPS_MAX = 2**63 - 1, 64


class Checked:
    """A description that is refused where it is made, not where it is used."""

    def manifest(self) -> Dict[str, Any]:
        """What a manifest has of it. Errors: ConfigError that names the field."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        self.manifest()


@dataclasses.dataclass(frozen=True)
class Normal(Checked):
    """Values of a normal distribution with mean 0, drawn by (seed, table, row): the default of a table, as of
    ``torch.nn.Embedding``."""

    std: float = 1.0

    def manifest(self) -> Dict[str, Any]:
        return {"kind": "normal", "scale": number("Normal.std", self.std)}


@dataclasses.dataclass(frozen=True)
class Uniform(Checked):
    """Values in ``[-bound, bound)``, drawn by (seed, table, row)."""

    bound: float

    def manifest(self) -> Dict[str, Any]:
        return {"kind": "uniform", "scale": number("Uniform.bound", self.bound)}


@dataclasses.dataclass(frozen=True)
class Zeros(Checked):
    """Zeros."""

    def manifest(self) -> Dict[str, Any]:
        return {"kind": "zeros", "scale": 0.0}


Init = Union[Normal, Uniform, Zeros]


@dataclasses.dataclass(frozen=True)
class Clip(Checked):
    """Bounds the mean gradient before the optimizer sees it.

    ``kind``: "value" (each value to ``[-max, max]``), "row" (each row of a table to a norm of at most ``max``) or
    "global" (all gradients together; needs a session with ``manifest={"apply": "mean"}``, and no tables that have it).
    """

    kind: str
    max: float

    def manifest(self) -> Dict[str, Any]:
        if self.kind not in ("value", "row", "global"):
            raise ConfigError(f"Clip.kind: {self.kind!r}: want 'value', 'row' or 'global'")
        return {"kind": self.kind, "max": number("Clip.max", self.max, above=0)}


def _batches(what: str, value: int, least: int = 0) -> int:
    return whole(what, value, least, _BATCHES_MAX)


def _towards(kind: str, total: int, final: float, warmup: int) -> Dict[str, Any]:
    """Of a schedule that goes to a share of the rate."""
    warmup = _batches(f"{kind}.warmup", warmup)
    total = _batches(f"{kind}.total", total, 1)
    if total <= warmup:
        raise ConfigError(f"{kind}.total: {total}: want a batch behind warmup, {warmup}")
    if number(f"{kind}.final", final) > 1:
        raise ConfigError(f"{kind}.final: {final!r}: want a share of lr, 0 to 1")
    return {"warmup": warmup, "total": total, "final": float(final)}


@dataclasses.dataclass(frozen=True)
class ConstantSchedule(Checked):
    """The rate rises to lr over ``warmup`` batches, then stays."""

    warmup: int = 0

    def manifest(self) -> Dict[str, Any]:
        return {"kind": "constant", "warmup": _batches("ConstantSchedule.warmup", self.warmup)}


@dataclasses.dataclass(frozen=True)
class LinearSchedule(Checked):
    """From lr, after ``warmup`` batches, in a line to ``final * lr`` at batch ``total``."""

    total: int
    final: float = 0.0
    warmup: int = 0

    def manifest(self) -> Dict[str, Any]:
        return {"kind": "linear", **_towards("LinearSchedule", self.total, self.final, self.warmup)}


@dataclasses.dataclass(frozen=True)
class CosineSchedule(Checked):
    """From lr, after ``warmup`` batches, by half a cosine to ``final * lr`` at batch ``total``."""

    total: int
    final: float = 0.0
    warmup: int = 0

    def manifest(self) -> Dict[str, Any]:
        return {"kind": "cosine", **_towards("CosineSchedule", self.total, self.final, self.warmup)}


@dataclasses.dataclass(frozen=True)
class StepSchedule(Checked):
    """lr, multiplied by ``gamma`` at each of ``milestones``, which are batches:
    ``torch.optim.lr_scheduler.MultiStepLR``."""

    milestones: Sequence[int]
    gamma: float = 0.1
    warmup: int = 0

    def manifest(self) -> Dict[str, Any]:
        if not isinstance(self.milestones, Sequence) or isinstance(self.milestones, (str, bytes)):
            raise ConfigError(f"StepSchedule.milestones: {self.milestones!r}: want a list of batches")
        steps = [_batches("StepSchedule.milestones:", step, 1) for step in self.milestones]
        if not 1 <= len(steps) <= _STEPS_MAX or steps != sorted(set(steps)):
            raise ConfigError(f"StepSchedule.milestones: {steps!r:.80}: want 1 to {_STEPS_MAX} batches, ascending")
        gamma = number("StepSchedule.gamma", self.gamma, above=0)
        warmup = _batches("StepSchedule.warmup", self.warmup)
        return {"kind": "steps", "warmup": warmup, "steps": steps, "gamma": gamma}


Schedule = Union[ConstantSchedule, LinearSchedule, CosineSchedule, StepSchedule]
_SCHEDULES = (ConstantSchedule, LinearSchedule, CosineSchedule, StepSchedule)


class Spec(Checked):
    """What all optimizers have; not made by itself."""

    kind: ClassVar[str]
    lr: float
    schedule: Optional[Schedule]
    clip: Optional[Clip]

    def fields(self) -> Dict[str, Any]:
        """The kind's own fields of a manifest."""
        raise NotImplementedError

    def manifest(self, lr: Optional[float] = None) -> Dict[str, Any]:
        """The optimizer of a manifest, with another rate where one is given. Errors: ConfigError that names the
        field."""
        name = type(self).__name__
        out: Dict[str, Any] = {"kind": self.kind, "lr": number(f"{name}.lr", self.lr if lr is None else lr)}
        out.update(self.fields())
        for field, value in out.items():
            if field != "kind" and not isinstance(value, bool):
                number(f"{name}.{field}", value)
        if self.schedule is not None:
            if not isinstance(self.schedule, _SCHEDULES):
                raise ConfigError(
                    f"{name}.schedule: {self.schedule!r}: want one of this package, such as gradbus.CosineSchedule"
                )
            out["schedule"] = self.schedule.manifest()
        if self.clip is not None:
            if not isinstance(self.clip, Clip):
                raise ConfigError(f"{name}.clip: {self.clip!r}: want gradbus.Clip")
            out["clip"] = self.clip.manifest()
        return out


@dataclasses.dataclass(frozen=True)
class SGD(Spec):
    """``torch.optim.SGD``. ``exact``: rows make up for momentum and decay of batches that they sat out, at a constant
    rate."""

    kind: ClassVar[str] = "sgd"
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    exact: bool = False
    schedule: Optional[Schedule] = None
    clip: Optional[Clip] = None

    def fields(self) -> Dict[str, Any]:
        out: Dict[str, Any] = {
            "momentum": self.momentum,
            "dampening": self.dampening,
            "weight_decay": self.weight_decay,
        }
        out["nesterov"] = flag("SGD.nesterov", self.nesterov)
        if self.nesterov and (number("SGD.momentum", self.momentum) == 0 or self.dampening != 0):
            raise ConfigError("SGD.nesterov: Nesterov momentum requires a momentum and zero dampening")
        if flag("SGD.exact", self.exact):
            if self.schedule is not None:
                raise ConfigError("SGD.exact: want a constant rate with it, and no schedule")
            out["exact"] = True
        return out


@dataclasses.dataclass(frozen=True)
class Adagrad(Spec):
    """``torch.optim.Adagrad``; its ``lr_decay`` is a schedule here."""

    kind: ClassVar[str] = "adagrad"
    lr: float = 1e-2
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    schedule: Optional[Schedule] = None
    clip: Optional[Clip] = None

    def fields(self) -> Dict[str, Any]:
        out = {"weight_decay": self.weight_decay, "initial_accumulator": self.initial_accumulator_value}
        out["eps"] = self.eps or _ZERO
        return out


@dataclasses.dataclass(frozen=True)
class RowwiseAdagrad(Adagrad):
    """Adagrad with one sum a row, as in FBGEMM: 4 bytes a row. Of a dense parameter it is Adagrad."""

    kind: ClassVar[str] = "rowwise_adagrad"
    eps: float = 1e-8


@dataclasses.dataclass(frozen=True)
class Adam(Spec):
    """``torch.optim.Adam``; of tables ``torch.optim.SparseAdam``, but for where eps is added."""

    kind: ClassVar[str] = "adam"
    lr: float = 1e-3
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Optional[Schedule] = None
    clip: Optional[Clip] = None

    def fields(self) -> Dict[str, Any]:
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise ConfigError(f"{type(self).__name__}.betas: {self.betas!r}: want two numbers below 1")
        first, second = self.betas
        number("betas[0]", first, 1)
        number("betas[1]", second, 1)
        decay = self.weight_decay or (_ZERO if self.kind == "adamw" else 0.0)
        return {"beta1": first or _ZERO, "beta2": second or _ZERO, "eps": self.eps or _ZERO, "weight_decay": decay}


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """``torch.optim.AdamW``: weight decay apart from the gradient."""

    kind: ClassVar[str] = "adamw"
    weight_decay: float = 1e-2


@dataclasses.dataclass(frozen=True)
class FTRL(Spec):
    """FTRL-proximal (McMahan et al. 2013, algorithm 1), for sparse weights."""

    kind: ClassVar[str] = "ftrl"
    lr: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    schedule: Optional[Schedule] = None
    clip: Optional[Clip] = None

    def fields(self) -> Dict[str, Any]:
        return {"beta": self.beta or _ZERO, "l1": self.l1, "l2": self.l2}


# What a group of PyTorch's optimizers, or of these, may have beside its rate, and what a step would follow.
HYPERPARAMETERS = frozenset(
    {field.name for spec in (SGD, Adagrad, Adam, FTRL) for field in dataclasses.fields(spec)} - {"lr"}
    | {"lr_decay", "amsgrad", "maximize", "alpha", "centered", "rho", "momentum_decay", "decoupled_weight_decay"}
)
