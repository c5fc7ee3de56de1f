"""The optimizer of a session: what PyTorch's loops, schedulers and frameworks call ``step`` of."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

import torch
from torch import Tensor, nn

from . import modelstate
from .amp import RowGradients, skipped
from .checks import eager, number
from .dense import Dense
from .errors import ArgumentError, ConfigError, OrderError
from .modules import TableModule
from .optimizers import HYPERPARAMETERS, Spec
from .saving import SavedModel
from .session import Session
from .table import Table

Models = Union[nn.Module, Sequence[nn.Module], Mapping[str, nn.Module]]


class Optimizer(torch.optim.Optimizer):
    """Ends a lane with each ``step``; the servers move tables, and dense parameters where ``dense`` says so.

    ``model``: a module, or several (a list, or a dict with names). Its modules of this package that have no session yet
    get this one, and tables without a name are called by their path in the model. ``embeddings``: the optimizer of
    tables that have none of their own, for example ``gradbus.RowwiseAdagrad(0.05)``. ``dense``: that of the parameters
    that require a gradient, each once; they begin with the model's values, which must be equal in all trainers (seed
    alike), and have their new values when ``step`` returns. None leaves dense parameters to the script: an optimizer of
    torch.optim, DistributedDataParallel.

    ``weight``: "lanes" divides the sum of the lanes' gradients by the number of lanes, as DistributedDataParallel does,
    for losses that are means. "samples" divides it by the samples, for losses that are sums; they are the bags or ids
    of forwards that have had their backward, or ``step(samples=...)``.

    A change of ``param_groups[i]["lr"]``, by a scheduler of torch.optim.lr_scheduler for example, acts from the next
    batch on and in all trainers, which must make the same one. It is a word with the coordinator: schedules that change
    in every batch are cheaper as ``gradbus.CosineSchedule`` and its like. All groups change by one factor. What else a
    group has cannot be changed. The first batch has the rates with which the session joined.

    Errors: ConfigError; OrderError where the session has an optimizer already, or has joined.
    """

    _step_supports_amp_scaling = True  # a GradScaler calls step in any case; see amp.py

    def __init__(
        self,
        model: Models,
        session: Session,
        embeddings: Optional[Spec] = None,
        dense: Optional[Spec] = None,
        weight: str = "lanes",
    ) -> None:
        if weight not in ("lanes", "samples"):
            raise ConfigError(f"Optimizer(weight={weight!r}): want 'lanes' or 'samples'")
        for argument, spec in (("embeddings", embeddings), ("dense", dense)):
            if spec is not None and not isinstance(spec, Spec):
                raise ConfigError(
                    f"Optimizer({argument}={spec!r}): want one of this package, such as gradbus.Adam(1e-3)"
                )
        if session._optimizer is not None:
            raise OrderError(
                f"session {session.name!r} has an optimizer: want one for all models, Optimizer([a, b], session), or "
                "a session each; a cell of a notebook that runs again makes its session, too"
            )
        if session.handle:
            raise OrderError(
                f"session {session.name!r} has joined its job: want the optimizer before the first forward"
            )
        self.session, self.embeddings, self.dense, self.weight = session, embeddings, dense, weight
        modules = _named(model)
        self._tables = _bind(modules, session, count=weight == "samples")
        trained, self._frozen, self._owners = _parameters(modules)
        parameters = trained if dense is not None else {}
        self._dense = Dense(parameters) if parameters else None
        self._left = list(trained.values()) if dense is None else []
        for table in session._tables.values():
            if embeddings is None and table.optimizer is None:
                raise ConfigError(
                    f"table {table.name!r} has no optimizer: want Optimizer(..., embeddings=gradbus.SGD(0.1)), or "
                    "one of its own"
                )
        if not session._tables and self._dense is None:
            raise ConfigError(
                "nothing to train: want a model with a module of gradbus, or dense=gradbus.Adam(1e-3) for its "
                "parameters"
            )
        groups: List[Dict[str, Any]] = []
        if embeddings is not None:
            groups.append({"name": "embeddings", "params": [], "lr": embeddings.lr})
        elif session._tables:
            groups.append({"name": "tables", "params": [], "lr": 1.0})
        if dense is not None:
            groups.append({"name": "dense", "params": list(parameters.values()), "lr": dense.lr})
        self._fixed = False
        super().__init__(groups, {"lr": 1.0})
        self._fixed = True
        self._names = [group["name"] for group in self.param_groups]
        self._list_rows(True)
        self._base: List[float] = []  # the rates of the manifest, when the session has joined
        self._scale = 1.0
        self.models = modules
        modelstate.begin(self, session._start)
        session._optimizer = self

    def _list_rows(self, listed: bool) -> None:
        """Whether groups of tables list the gradients of rows. A state has none of them."""
        for group in self.param_groups:
            if group["name"] != "dense":
                group["params"] = RowGradients(self.session) if listed else []

    # What the session asks.

    def manifest(self, tables: Sequence[Table]) -> Dict[str, Any]:
        """The manifest's optimizers, parameters and tables, with the rates as they are now. Errors: ConfigError."""
        self._check_groups()
        rates = {group["name"]: _rate(group) for group in self.param_groups}
        self._base = list(rates.values())
        dense = self.dense.manifest(rates["dense"]) if self.dense is not None else None
        embeddings = self.embeddings.manifest(rates["embeddings"]) if self.embeddings is not None else None
        own = tables[0].optimizer.manifest() if tables and tables[0].optimizer is not None else None
        out: Dict[str, Any] = {
            "optimizer": embeddings or dense or own,
            "tables": [{**table.manifest(), **table.hashing()} for table in tables],
        }
        if self._dense is not None and dense is not None:
            out["parameters"] = self._dense.manifest(dense)
        return out

    def start_values(self) -> Any:
        """Of dense parameters, as they are now."""
        return self._dense.start_values() if self._dense is not None else None

    def check_start(self, start: SavedModel) -> None:
        """Errors: ConfigError where parameters have other values than the file that the job begins with."""
        if self._dense is not None:
            self._dense.check_start(start)

    def dense_values(self) -> Dict[str, Tensor]:
        """Parameters that servers train, as they are now."""
        return dict(zip(self._dense.names, self._dense.parameters)) if self._dense is not None else {}

    def moves_parameters(self) -> bool:
        """Whether servers give new values of dense parameters."""
        return self._dense is not None

    def leaves_parameters(self) -> bool:
        """Whether parameters that require a gradient are left to the script."""
        return bool(self._left)

    def left_version(self) -> int:
        """Changes with every step that an optimizer of torch.optim makes of parameters that are left to the script."""
        return sum(parameter._version for parameter in self._left)

    def values(self) -> Any:
        return self._dense.values() if self._dense is not None else None

    def take_values(self) -> None:
        if self._dense is not None:
            self._dense.take_values()

    def new_scale(self) -> Optional[float]:
        """By what the manifest's rates are to be multiplied, where that has changed. Errors: ConfigError where groups
        differ."""
        scale = None
        for group, base in zip(self.param_groups, self._base):
            rate = _rate(group)
            if base == rate == 0:
                continue  # of any factor
            of = rate / base if base else (1.0 if rate == base else float("inf"))
            if scale is None:
                scale = of
            elif abs(scale - of) > 1e-6 * max(scale, of):
                raise ConfigError(
                    f"learning rates of {self.rates()}: want one factor for all groups; each can have a schedule of "
                    "its own in gradbus"
                )
        if scale is None or abs(scale - self._scale) <= 1e-9 * self._scale:  # far below a float32
            return None
        if scale == float("inf"):
            raise ConfigError(
                "a learning rate of 0 was raised: want a schedule of gradbus with a warmup, or a rate above 0 to "
                "begin with"
            )
        return scale

    def rates(self) -> str:
        """For an error: of each group, what the rate was and is."""
        groups = zip(self.param_groups, self._base)
        return ", ".join(f"{group['name']} {base:g} to {float(group['lr']):g}" for group, base in groups)

    def resumed(self, scale: float) -> None:
        """The job goes on with rates of this scale: groups get them."""
        self._scale = scale
        for group, base in zip(self.param_groups, self._base):
            group["lr"] = base * scale

    def rejoined(self, scale: float) -> None:
        """The same where the session has come back to the job, and rates may be those of before."""
        if scale != self._scale:
            self.resumed(scale)

    def scaled(self, scale: float) -> None:
        """Takes note that the job's rates have this scale."""
        self._scale = scale

    def rates_state(self) -> Dict[str, Any]:
        """The rates of groups, of which the next batch has to tell, and the scale that the job has, exactly."""
        return {"rates": [_rate(group) for group in self.param_groups], "scale": self._scale}

    def take_rates_state(self, state: Mapping[str, Any]) -> None:
        """Takes what :meth:`rates_state` gave."""
        self._scale = float(state["scale"])
        for group, rate in zip(self.param_groups, state["rates"]):
            group["lr"] = rate

    def frozen_ids(self) -> Set[int]:
        """Of parameters that require no gradient."""
        return {id(parameter) for parameter in self._frozen.values()}

    # What a loop calls.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients that backwards have given since the last step. Forwards may come before it or after."""
        self.session._batches.clear()
        self.forget_samples()
        for module in self._tables:
            module.of_rows().grad = None
        if self._dense is None:
            return
        for parameter in self._dense.parameters:
            grad = parameter.grad
            if grad is None:
                continue
            if set_to_none:
                parameter.grad = None
                continue
            if grad.grad_fn is not None:
                grad.detach_()
            else:
                grad.requires_grad_(False)  # views can not be detached
            grad.zero_()

    @eager
    def step(
        self,
        closure: Optional[Callable[[], Any]] = None,
        *,
        loss: Union[None, float, Tensor] = None,
        samples: Optional[int] = None,
        **scaled: Any,
    ) -> Any:
        """Ends the lane: what backwards have given since the last step is its contribution. The last lane of this
        trainer commits the batch. With dense parameters on servers it waits for the batch, and parameters have their
        new values; without it returns when gradients are handed over.

        ``closure`` zeroes gradients, computes the loss, calls backward and returns the loss; it is called once.
        ``loss`` is for the dashboard alone: the mean over the lane, or with ``weight="samples"`` the sum. ``samples``:
        the weight of the lane; of ``weight="samples"`` only where it does not follow from the forwards. It returns the
        closure's loss. ``scaled`` is what a ``torch.amp.GradScaler`` adds: where it skips the step, the lane ends
        without a contribution.

        Errors: OrderError without a forward since the last step; those of the session.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
            loss = result if loss is None else loss
        batches = self.session._batches
        self._check_parameters(by_scaler=bool(scaled) or hasattr(self, "found_inf"))
        if skipped(self, scaled):
            batches.end(0, 0.0, None)
            return result
        weight = 1
        if samples is not None:
            try:
                weight = operator.index(samples)
            except TypeError:
                raise ArgumentError(f"step: samples {samples!r}: want an integer") from None
        elif self.weight == "samples":
            weight = self._samples()
        value = 0.0
        if loss is not None:
            value = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        batches.end(weight, value, self._dense)
        return result

    def _check_parameters(self, by_scaler: bool) -> None:
        """Before a step: what the script has done to parameters since the optimizer was made, and to gradients since the
        backward, is what the step does, or it is refused. ``by_scaler``: which divides all gradients in place.

        Errors: OrderError."""
        self._check_groups()
        trains = False
        for module in self._tables:
            rows = module.of_rows()
            trains = trains or module.training and rows.requires_grad
            if rows._backward_hooks or getattr(rows, "_post_accumulate_grad_hooks", None):
                raise OrderError(
                    f"table {module.name!r}: rows_parameter has a hook, which sees no gradient of rows: want them of "
                    "opt.param_groups, between backward and step"
                )
        self.session._batches.require_forward(trains or not (self._left or self._dense and self._dense.has_gradient()))
        if self.dense is not None:
            self._check_dense()
        lane = self.session._batches.current()
        if lane is None:
            return
        lane.drop_cleared()
        if lane.written and not by_scaler and not _reduced():
            names = {table.index: table.name for table in self.session._tables.values()}
            raise OrderError(
                f"gradients of rows of {sorted(names[i] for i in lane.written)} were written to by model.parameters(), "
                "which has none of them: want clip_grad_norm_ and the like over the params of opt.param_groups, and "
                "opt.zero_grad()"
            )

    def _check_groups(self) -> None:
        """Errors: ConfigError where a group has what changes nothing: of all that it may have, the rate alone acts."""
        if [group.get("name") for group in self.param_groups] != self._names:
            raise ConfigError(
                f"param_groups are {[group.get('name') for group in self.param_groups]}: want {self._names}, as made"
            )
        for group in self.param_groups:
            if not HYPERPARAMETERS.isdisjoint(group):
                ignored = sorted(HYPERPARAMETERS & group.keys())
                raise ConfigError(
                    f"param_groups of {group['name']!r} have {ignored[0]}={group[ignored[0]]!r}, which the servers do not "
                    "follow: want it of the gradbus optimizer that the session begins with; the lr alone can change"
                )
            if group["name"] == "dense" and not _same(group["params"], self._dense.parameters if self._dense else []):
                raise ConfigError("param_groups of 'dense' have other parameters than the optimizer was made with")

    def _check_dense(self) -> None:
        """Errors: OrderError where a layer was frozen, unfrozen or replaced since the optimizer was made."""
        assert self.dense is not None
        thawed = [name for name, parameter in self._frozen.items() if parameter.requires_grad]
        frozen = [] if self._dense is None else self._dense.frozen()
        if thawed or frozen:
            what, names = ("frozen", frozen) if frozen else ("unfrozen", thawed)
            raise OrderError(
                f"parameters {names} were {what} after gradbus.Optimizer was made: want requires_grad_ before it, and a "
                "new session with start= of session.save(path) to change it later"
            )
        for name, (module, own, parameter) in self._owners.items():
            if module._parameters.get(own) is not parameter:
                raise OrderError(
                    f"parameter {name!r} was replaced by another one after gradbus.Optimizer was made, and is not "
                    "trained: want load_state_dict without assign=True, and parametrizations before the optimizer"
                )

    def forget_samples(self) -> None:
        """Backwards since the last step do not count."""
        if self.weight != "samples":
            return  # modules have none
        for module in self._tables:
            if module.samples is not None:
                module.samples.clear()

    def _samples(self) -> int:
        sums = (sum(module.samples.values()) for module in self._tables if module.samples)
        counts = {count for count in sums if count}
        if len(counts) != 1:
            raise OrderError(
                f"samples of the lane: forwards had {sorted(counts) or 'none'}; want opt.step(samples=...)"
            )
        return int(counts.pop())

    def state_dict(self) -> Dict[str, Any]:
        """The learning rates. What optimizers keep of rows and parameters is with the servers."""
        self._list_rows(False)
        try:
            return super().state_dict()
        finally:
            self._list_rows(True)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes the learning rates of a state: for the job before the session joins, else from the next batch on.

        Between the join and the first batch it is too late for that batch, whose forward is then an OrderError. Errors:
        ConfigError of a state of another optimizer."""
        names = [group.get("name") for group in state_dict["param_groups"]]
        if names != self._names:
            raise ConfigError(
                f"the state has groups {names}: want {self._names}, those of gradbus.Optimizer.state_dict(); what other "
                "optimizers keep of parameters is not taken over"
            )
        self._list_rows(False)
        try:
            super().load_state_dict(state_dict)
        finally:
            self._list_rows(True)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if getattr(self, "_fixed", False):
            raise ConfigError(
                "gradbus.Optimizer takes no further parameter groups: want all parameters in its model when it is made"
            )
        super().add_param_group(param_group)

    def __reduce__(self) -> Any:
        raise TypeError("gradbus.Optimizer cannot be pickled: another process makes its own, of a session of its own")


def _rate(group: Dict[str, Any]) -> float:
    """Of a group: a number or, as of PyTorch 2, a tensor with one. Errors: ConfigError."""
    lr = group["lr"]
    if isinstance(lr, float) and 0 < lr < 1e-30:
        return lr  # a schedule may sink below what a float32 holds
    return number(f"lr of param_groups {group['name']!r}", float(lr) if isinstance(lr, Tensor) else lr)


def _same(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    """Whether two lists are of the same tensors."""
    return len(these) == len(those) and all(map(operator.is_, these, those))


def _named(model: Models) -> List[Tuple[str, nn.Module]]:
    """Models with the prefixes of their names."""
    if isinstance(model, nn.Module):
        return [("", model)]
    if isinstance(model, Mapping):
        pairs: Iterable[Tuple[Any, nn.Module]] = model.items()
    else:
        pairs = enumerate(model)
    out = [(f"{name}.", module) for name, module in pairs]
    for name, module in out:
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"Optimizer: model {name[:-1]!r} is {type(module).__name__}: want a torch.nn.Module, or several"
            )
    return out


def _bind(models: Sequence[Tuple[str, nn.Module]], session: Session, count: bool) -> List[TableModule]:
    """Gives modules without a session this one. Errors: ConfigError where one has another."""
    out = []
    for prefix, model in models:
        for path, module in model.named_modules():
            if isinstance(module, TableModule):
                if (
                    module.called is not None and path.count(".") > 0
                ):  # path is that of the collection, bags and a number
                    path = ".".join(path.split(".")[:-2] + [module.called])
                module.bind(session, prefix + path)
                module.samples = {} if count else None
                out.append(module)
        _leave_to_servers(model)
    return out


def _leave_to_servers(model: nn.Module) -> None:
    """Has DistributedDataParallel of the model, or of a part of it, ignore the parameters of tables: it would want a
    gradient of each in every backward, and has none of their rows to add up."""
    names = [f"{path}.rows_parameter".lstrip(".") for path, m in model.named_modules() if isinstance(m, TableModule)]
    for path, module in model.named_modules():
        prefix = path + "." if path else ""
        inner = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        if inner:
            known = getattr(module, "_ddp_params_and_buffers_to_ignore", [])
            module._ddp_params_and_buffers_to_ignore = [*known, *inner]  # type: ignore[assignment]


def _parameters(
    models: Sequence[Tuple[str, nn.Module]],
) -> Tuple[Dict[str, nn.Parameter], Dict[str, nn.Parameter], Dict[str, Tuple[nn.Module, str, nn.Parameter]]]:
    """Parameters that require a gradient, and those that do not, each once, by its first name, and without those of
    tables. Of the first, which module has them, by what name."""
    trained: Dict[str, nn.Parameter] = {}
    frozen: Dict[str, nn.Parameter] = {}
    owners: Dict[str, Tuple[nn.Module, str, nn.Parameter]] = {}
    seen = set()
    for prefix, model in models:
        for path, module in model.named_modules():
            if isinstance(module, TableModule):
                continue
            for own, parameter in module._parameters.items():
                if parameter is None or id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                name = f"{prefix}{path}.{own}" if path else prefix + own
                (trained if parameter.requires_grad else frozen)[name] = parameter
                if parameter.requires_grad:
                    owners[name] = module, own, parameter
    return trained, frozen, owners


def _reduced() -> bool:
    """Whether DistributedDataParallel may write to gradients, behind the backward."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
