"""The optimizer as loops and schedulers use it: the order of calls, rates, parameters, what it refuses."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Tuple

import pytest
import torch
from torch import nn

import gradbus

IDS = torch.tensor([1, 2, 2])


@contextlib.contextmanager
def small(lr: float = 0.5, **named: Any) -> Iterator[Tuple[gradbus.Session, gradbus.Embedding, gradbus.Optimizer]]:
    """A table of zeros, whose rows move by lr times how often they were used."""
    emb = gradbus.Embedding(4, 1, name="t", init=gradbus.Zeros())
    with gradbus.local("small", **named) as session:
        yield session, emb, gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(lr))


def rows(session: gradbus.Session) -> Any:
    return session.lookup("t", torch.arange(4)).flatten().tolist()


def test_forward_then_zero_grad_then_backward() -> None:
    """zero_grad forgets gradients and no forwards, as in PyTorch's tutorials."""
    with small() as (session, emb, opt):
        loss = emb(IDS).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        assert rows(session) == [0, -0.5, -1, 0]
        emb(IDS).sum().backward()
        opt.zero_grad()
        emb(IDS[:1]).sum().backward()
        opt.step()
        assert rows(session) == [0, -1, -1, 0]


def test_a_forward_without_backward_gives_nothing() -> None:
    with small() as (session, emb, opt):
        emb(IDS)
        emb(IDS[:1]).sum().backward()
        opt.step()
        emb(IDS)
        opt.step()  # a lane that has used ids, and has no gradient
        assert rows(session) == [0, -0.5, 0, 0] and session.batch == 2


def test_backward_twice_adds() -> None:
    with small() as (session, emb, opt):
        loss = emb(IDS).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        opt.step()
        assert rows(session) == [0, -1, -2, 0]


def test_backward_through_a_freed_graph_is_refused() -> None:
    """As PyTorch refuses it of its own modules: nothing is added silently."""
    with small() as (session, emb, opt):
        loss = emb(IDS).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        opt.step()
        assert rows(session) == [0, -0.5, -1, 0]


def test_backward_after_the_step_is_refused() -> None:
    with small() as (session, emb, opt):
        late = emb(IDS).sum()
        opt.step()
        with pytest.raises(gradbus.OrderError, match="want loss.backward\\(\\) before opt.step"):
            late.backward()
        emb(IDS).sum().backward()
        opt.step()
        assert rows(session) == [0, -0.5, -1, 0]


def test_a_second_step_needs_a_forward() -> None:
    with small() as (session, emb, opt):
        with pytest.raises(gradbus.OrderError, match="step without a forward in training mode"):
            opt.step()
        emb(IDS).sum().backward()
        opt.step()
        for _ in range(2):
            with pytest.raises(gradbus.OrderError, match="session.skip\\(\\) leaves a lane out"):
                opt.step()
        assert rows(session) == [0, -0.5, -1, 0] and session.batch == 1


def test_closure_and_loss() -> None:
    with small() as (session, emb, opt):

        def closure() -> torch.Tensor:
            opt.zero_grad()
            loss = emb(IDS).sum() + 3
            loss.backward()
            return loss

        assert opt.step(closure).item() == 3.0
        assert rows(session) == [0, -0.5, -1, 0]
        emb(IDS).sum().backward()
        assert opt.step(loss=torch.tensor(2.5)) is None


def test_lanes_and_a_skipped_one() -> None:
    """Two lanes of weight 1: half of their sum. A lane that is skipped does not weigh."""
    with small(lanes=2) as (session, emb, opt):
        assert session.lanes == range(2)
        for ids in (IDS, IDS[1:]):
            assert session.batch == 0
            emb(ids).sum().backward()
            opt.step()
        assert session.batch == 1 and rows(session) == [0, -0.25, -1, 0]
        emb(IDS).sum().backward()
        session.skip()
        emb(IDS[:1]).sum().backward()
        opt.step()
        assert rows(session) == [0, -0.75, -1, 0]


def test_dense_gradients_of_several_lanes() -> None:
    """A lane's dense gradient is what it was at its step, whatever zero_grad and later backwards do with the memory."""
    model = nn.ModuleDict({"emb": gradbus.Embedding(4, 1, init=gradbus.Zeros()), "linear": nn.Linear(1, 1, bias=False)})
    with gradbus.local("dense-lanes", lanes=3) as session:
        nn.init.zeros_(model["linear"].weight)  # type: ignore[arg-type]
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0), dense=gradbus.SGD(3.0))
        for value in (1.0, 2.0, 4.0):
            (model["linear"](torch.tensor([[value]])).sum() + model["emb"](IDS).sum()).backward()
            opt.step()
            opt.zero_grad(set_to_none=False)
        assert model["linear"].weight.item() == -7.0


def test_which_parameters() -> None:
    """Shared ones once, frozen ones never; scalars, strides and half precision have their values back after a step."""
    model = nn.Module()
    model.emb = gradbus.Embedding(4, 1)
    model.first = nn.Linear(2, 3)
    model.second = nn.Linear(2, 3)
    model.second.weight = model.first.weight
    model.frozen = nn.Linear(2, 2).requires_grad_(False)
    model.scale = nn.Parameter(torch.tensor(2.0))
    model.turned = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    model.rounded = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    frozen = model.frozen.weight.clone()
    with gradbus.local("which") as session:
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0), dense=gradbus.SGD(1.0))
        shapes = {p["name"]: p["shape"] for p in session.job["parameters"]}
        assert shapes == {
            "scale": [1], "turned": [3, 2], "rounded": [3], "first.weight": [3, 2], "first.bias": [3], "second.bias": [3]
        }  # fmt: skip
        (
            model.emb(IDS).sum()
            + 2 * model.scale
            + (model.turned * torch.arange(6.0).view(3, 2)).sum()
            + model.rounded.sum() / 4
        ).backward()
        version = model.scale._version
        opt.step()
        assert model.scale.item() == 0 and model.scale._version > version
        assert torch.equal(model.turned, torch.arange(6.0).view(2, 3).t() - torch.arange(6.0).view(3, 2))
        assert model.rounded.tolist() == [0.75] * 3 and torch.equal(model.frozen.weight, frozen)


def test_parameters_that_servers_cannot_train() -> None:
    for parameter, says in (
        (torch.zeros(2, dtype=torch.float64), "parameter 'p' is torch.float64: servers train torch.float32"),
        (torch.zeros(0), r"parameter 'p' has shape \[0\]"),
    ):
        model = nn.Module()
        model.p = nn.Parameter(parameter)
        with gradbus.local("cannot") as session, pytest.raises(gradbus.ConfigError, match=says):
            gradbus.Optimizer(model, session, dense=gradbus.SGD(1.0))
    with (
        gradbus.local("lazy") as session,
        pytest.raises(gradbus.ConfigError, match="parameter 'weight' has no shape yet"),
    ):
        gradbus.Optimizer(nn.LazyLinear(2), session, dense=gradbus.SGD(1.0))


def test_a_model_of_dense_parameters_alone() -> None:
    model, plain = nn.Linear(2, 1), nn.Linear(2, 1)
    plain.load_state_dict(model.state_dict())
    with gradbus.local("alone") as session:
        opt = gradbus.Optimizer(model, session, dense=gradbus.SGD(0.5))
        theirs = torch.optim.SGD(plain.parameters(), lr=0.5)
        for _ in range(3):
            for module, of in ((model, opt), (plain, theirs)):
                of.zero_grad()
                module(torch.ones(2, 2)).sum().backward()
                of.step()
        assert torch.equal(model.weight, plain.weight) and torch.equal(model.bias, plain.bias)


def test_a_scheduler_of_torch() -> None:
    """param_groups' rates act from the next batch on, as they do in PyTorch."""
    with small(lr=1.0) as (session, emb, opt):
        scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)
        for want in (-1.0, -2.0, -2.5, -3.0, -3.25):
            emb(IDS[:1]).sum().backward()
            opt.step()
            scheduler.step()
            assert rows(session)[1] == want


def test_a_rate_before_the_first_forward_is_the_manifests() -> None:
    with small(lr=1.0) as (session, emb, opt):
        torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.25)
        assert session.job["optimizer"]["lr"] == 0.25
        emb(IDS).sum().backward()
        opt.step()
        assert rows(session) == [0, -0.25, -0.5, 0]


def test_rates_that_cannot_be() -> None:
    model = nn.ModuleList([gradbus.Embedding(4, 1, name="t"), nn.Linear(1, 1)])
    with gradbus.local("rates") as session:
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0), dense=gradbus.SGD(0.5))
        model[0](IDS).sum().backward()
        opt.step()
        opt.param_groups[0]["lr"] = 0.5
        with pytest.raises(gradbus.ConfigError, match="embeddings 1 to 0.5, dense 0.5 to 0.5: want one factor"):
            model[0](IDS)
        with pytest.raises(gradbus.ConfigError, match="takes no further parameter groups"):
            opt.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_schedules_of_gradbus() -> None:
    emb = gradbus.Embedding(4, 1, name="t", init=gradbus.Zeros())
    with gradbus.local("schedules") as session:
        opt = gradbus.Optimizer(
            emb, session, embeddings=gradbus.SGD(1.0, schedule=gradbus.LinearSchedule(total=4, warmup=2))
        )
        for want in (-0.5, -1.5, -2.5, -3.0, -3.0):
            emb(IDS[:1]).sum().backward()
            opt.step()
            assert rows(session)[1] == want


def test_clipping() -> None:
    emb = gradbus.Embedding(4, 1, name="t", init=gradbus.Zeros())
    with gradbus.local("clipping") as session:
        opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0, clip=gradbus.Clip("value", 1.5)))
        emb(IDS).sum().backward()
        opt.step()
        assert rows(session) == [0, -1, -1.5, 0]


def test_manifests() -> None:
    """Every optimizer's fields by the manifest's names; 0 where a kind has another default is a number that does not
    count."""
    for spec, want in (
        (gradbus.SGD(0.1, momentum=0.9, nesterov=True),
         {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": True}),
        (gradbus.Adagrad(), {"kind": "adagrad", "lr": 0.01, "weight_decay": 0.0, "initial_accumulator": 0.0, "eps": 1e-10}),
        (gradbus.RowwiseAdagrad(0.05, eps=0),
         {"kind": "rowwise_adagrad", "lr": 0.05, "weight_decay": 0.0, "initial_accumulator": 0.0, "eps": 1e-30}),
        (gradbus.Adam(betas=(0, 0.5)), {"kind": "adam", "lr": 1e-3, "beta1": 1e-30, "beta2": 0.5, "eps": 1e-8, "weight_decay": 0.0}),
        (gradbus.AdamW(weight_decay=0), {"kind": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-30}),
        (gradbus.FTRL(0.1, l1=1.0), {"kind": "ftrl", "lr": 0.1, "beta": 1.0, "l1": 1.0, "l2": 0.0}),
        (gradbus.SGD(1, schedule=gradbus.StepSchedule([3, 5]), clip=gradbus.Clip("row", 2)),
         {"kind": "sgd", "lr": 1.0, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False,
          "schedule": {"kind": "steps", "warmup": 0, "steps": [3, 5], "gamma": 0.1}, "clip": {"kind": "row", "max": 2.0}}),
    ):  # fmt: skip
        assert spec.manifest() == want
    for make, says in (
        (lambda: gradbus.SGD(-1.0), "SGD.lr: -1.0: want a finite number, at least 0"),
        (lambda: gradbus.SGD(float("nan")), "SGD.lr: nan"),
        (lambda: gradbus.Adam(betas=(0.9, 1.0)), r"betas\[1\]: 1.0: want a finite number, at least 0, below 1"),
        (lambda: gradbus.SGD("0.1"), "SGD.lr: '0.1'"),  # type: ignore[arg-type]
        (lambda: gradbus.SGD(1, clip=gradbus.Clip("norm", 1)), "Clip.kind: 'norm': want 'value', 'row' or 'global'"),
    ):
        with pytest.raises(gradbus.ConfigError, match=says):
            make().manifest()


def test_what_an_optimizer_refuses() -> None:
    with gradbus.local("refuses") as session:
        emb = gradbus.Embedding(4, 1, name="t", session=session)
        for arguments, named, says in (
            ((emb, session), {}, "table 't' has no optimizer: want Optimizer"),
            ((emb, session, torch.optim.SGD), {}, "want one of this package"),
            ((emb, session, gradbus.SGD(1.0)), {"weight": "rows"}, "weight='rows'.*want 'lanes' or 'samples'"),
            (([emb, 3], session, gradbus.SGD(1.0)), {}, "model '1' is int: want a torch.nn.Module"),
        ):
            with pytest.raises(gradbus.ConfigError, match=says):
                gradbus.Optimizer(*arguments, **named)  # type: ignore[arg-type]
        gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
        with pytest.raises(gradbus.OrderError, match="has an optimizer: want one for all models"):
            gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(1.0))
    with gradbus.local("nothing") as session, pytest.raises(gradbus.ConfigError, match="nothing to train"):
        gradbus.Optimizer(nn.Linear(1, 1), session)
    with gradbus.local("manifest", manifest={"chunk_bytes": 3}) as session:
        gradbus.Optimizer(gradbus.Embedding(4, 1), session, embeddings=gradbus.SGD(1.0))
        with pytest.raises(gradbus.ConfigError, match="chunk_bytes"):
            session.start()
