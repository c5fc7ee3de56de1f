"""Idioms that act on parameters: freezing, cleared gradients, hooks, replaced layers; for rows and for layers, beside
plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from small import Model, equal, loss_of, made
from torch import nn

import gradbus


def both(model, plain, i):
    for one in model, plain:
        loss_of(one, i).backward()


def step(*optimizers):
    for one in optimizers:
        one.step()
        one.zero_grad()


ATOL = 4 * 4 * 2**-23  # four steps of rows whose three or more summands come in another order


# Rows.


@pytest.mark.parametrize(
    "freeze",
    [
        lambda model, on: model.users.requires_grad_(on),
        lambda model, on: [p.requires_grad_(on) for p in model.users.parameters()],
        lambda model, on: next(model.users.parameters()).__setattr__("requires_grad", on),
    ],
)
def test_a_table_is_frozen_and_thawed(freeze):
    """Layers go on to train, and rows are read."""
    session, model, opt, plain, sgd = made("freezes")
    with session:
        for i, on in enumerate((True, False, False, True)):
            freeze(model, on), freeze(plain, on)
            both(model, plain, i)
            step(opt, sgd)
            equal(session, model, plain, atol=ATOL)
        assert session.batch == 4


def test_a_model_whose_parameters_are_frozen_trains_no_rows():
    session, model, opt, plain, _ = made("freezes-all", dense=False)
    with session:
        model.requires_grad_(False)
        out = model(torch.tensor([[1, 2]]))
        assert not out.requires_grad and out.tolist() == plain(torch.tensor([[1, 2]])).tolist()
        with pytest.raises(RuntimeError, match="does not require grad"):
            out.sum().backward()


def test_the_only_table_in_eval_while_layers_train():
    session, model, opt, plain, sgd = made("eval")
    with session:
        plain.users.requires_grad_(False)
        model.users.eval()
        for i in range(3):
            both(model, plain, i)
            step(opt, sgd)
        equal(session, model, plain, atol=ATOL)
        model.zero_grad()
        with pytest.raises(gradbus.OrderError, match="step without a forward"):
            opt.step()


@pytest.mark.parametrize("pool", ["client", "servers"])
def test_some_tables_of_a_model_are_frozen(pool):
    with gradbus.local("some") as session:
        tables = {n: gradbus.EmbeddingBag(9, 2, mode="sum", pool=pool, init=gradbus.Zeros()) for n in "abc"}
        tables["c"].requires_grad_(False)
        model = nn.Module()
        if pool == "client":
            model.tables = gradbus.EmbeddingBagCollection(tables)
            forward = lambda ids: model.tables({n: ids for n in "abc"}).values()  # noqa: E731
        else:
            model.tables = nn.ModuleDict(tables)
            forward = lambda ids: torch.cat([model.tables[n](ids) for n in "abc"], 1)  # noqa: E731
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
        for moved, (name, on) in (("ab", ("a", True)), ("b", ("a", False)), ("bc", ("c", True))):
            tables[name].requires_grad_(on)
            before = {n: session.read_table(tables[n].table) for n in "abc"}
            forward(torch.tensor([[3, 4]])).sum().backward()
            opt.step()
            assert "".join(n for n in "abc" if not torch.equal(before[n], session.read_table(tables[n].table))) == moved


@pytest.mark.parametrize("pool", ["client", "servers"])
def test_a_cleared_gradient_drops_rows(pool):
    """Between backward and step, and between two backwards: what came before."""
    for clears in [(), (0,), (1,), (2,), (0, 2)]:
        with gradbus.local("cleared") as session:
            emb = gradbus.EmbeddingBag(9, 2, mode="sum", pool=pool, name="t")
            opt = gradbus.Optimizer(emb, session, embeddings=gradbus.SGD(0.5))
            plain = nn.EmbeddingBag(9, 2, mode="sum")
            with torch.no_grad():
                plain.weight.copy_(session.read_table("t"))
            sgd = torch.optim.SGD(plain.parameters(), lr=0.5)
            for at in range(3):
                for one in emb, plain:
                    (one(torch.tensor([[at, 8]])) + one(torch.tensor([[at, 7]]))).sum().backward()
                    if at in clears:
                        next(one.parameters()).grad = None
            step(opt, sgd)
            assert torch.equal(session.read_table("t"), plain.weight)


def test_zero_grad_of_the_model_drops_rows_and_layers():
    session, model, opt, plain, sgd = made("model-zero")
    with session:
        both(model, plain, 0)
        for one in model, plain:
            one.zero_grad(set_to_none=True)
        both(model, plain, 1)
        step(opt, sgd)
        equal(session, model, plain, atol=ATOL)


def test_two_modules_of_a_table_and_a_gradient_of_other_inputs():
    """Each module has its own; torch.autograd.grad accumulates nothing."""
    with gradbus.local("two") as session:
        model = nn.ModuleList(gradbus.Embedding(9, 2, name="t", init=gradbus.Zeros()) for _ in range(2))
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
        ids = torch.tensor([1, 2])
        (model[0](ids) + model[1](ids)).sum().backward()
        model[0].rows_parameter.grad = None
        scale = torch.ones(1, requires_grad=True)
        torch.autograd.grad((model[0](ids) * scale).sum(), [scale])
        torch.autograd.grad(model[0](ids).sum(), list(model[0].parameters()))
        opt.step()
        assert session.lookup("t", ids).tolist() == [[-1, -1], [-1, -1]]


def test_what_reaches_no_row_is_refused():
    """Nothing is sent; behind zero_grad the session goes on."""
    session, model, opt, _, _ = made("refused")
    with session:
        before = session.digest()
        changes = [
            lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
            lambda: model.zero_grad(set_to_none=False),
        ]
        if hasattr(torch, "compile"):  # PyTorch 1 writes to p.grad.data there, which no version counts
            changes.append(lambda: nn.utils.clip_grad_value_(list(model.parameters()), 0.1))
        for change in changes:
            loss_of(model, 0).backward()
            change()
            loss_of(model, 1).backward()
            for _ in range(2):
                with pytest.raises(gradbus.OrderError, match=r"'users'.* written to by model.parameters"):
                    opt.step()
            opt.zero_grad()
        hook = model.users.rows_parameter.register_hook(lambda grad: grad * 0)
        loss_of(model, 0).backward()
        with pytest.raises(gradbus.OrderError, match="table 'users': rows_parameter has a hook"):
            opt.step()
        hook.remove()
        assert session.batch == 0
        opt.zero_grad()
        assert session.digest() == before
        loss_of(model, 0).backward()
        opt.step()
        assert session.digest() != before


@pytest.mark.parametrize("to_none", [True, False])
def test_an_optimizer_of_layers_clears_what_it_has_used(to_none):
    """Each optimizer steps and clears, in any order; but zero_grad before any step drops all."""
    session, model, opt, plain, sgd = made("other", dense=False)
    with session:
        layers = torch.optim.SGD(model.parameters(), lr=0.5)
        for i in range(4):
            both(model, plain, i)
            for one in (layers, opt) if i % 2 else (opt, layers):
                one.step()
                one.zero_grad(set_to_none=to_none)
            step(sgd)
            equal(session, model, plain, atol=ATOL)
            both(model, plain, 10 + i)
            for one in model, plain:
                one.zero_grad(set_to_none=True)


def test_a_state_has_nothing_of_it():
    session, model, opt, _, _ = made("state")
    with session:
        assert list(model.state_dict()) == ["users._extra_state", "last.weight", "last.bias"]
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        assert list(gradbus.plain_state_dict(model)) == ["last.weight", "last.bias", "users.weight"]
        assert [name for name, _ in model.named_parameters()] == ["users.rows_parameter", "last.weight", "last.bias"]


# Copies.


@pytest.mark.parametrize("copied", [copy.deepcopy, torch.optim.swa_utils.AveragedModel])
def test_a_model_with_rows_is_not_copied(copied):
    """A copy would read, and train, the rows of the original; an average over time would not be one."""
    session, model, opt, _, _ = made("copies")
    with session:
        for one in model, session, model.users:
            with pytest.raises(gradbus.OrderError, match="session 'copies' cannot be copied, nor can a model of it"):
                copied(one) if isinstance(one, nn.Module) else copy.deepcopy(one)
        loss_of(model, 0).backward()
        opt.step()


def test_modules_without_a_table_are_copied():
    """As layers are made of a pattern; each becomes a table of its own."""
    with gradbus.local("pattern") as session:
        for pattern in gradbus.Embedding(9, 2), gradbus.EmbeddingBag(9, 2, session=session):
            model = nn.ModuleList(copy.deepcopy(pattern) for _ in range(2))
            assert model[0].rows_parameter is not model[1].rows_parameter
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(1.0))
        before = [session.read_table(one.table) for one in model]
        model[0](torch.tensor([[1]])).sum().backward()
        opt.step()
        after = [session.read_table(one.table) for one in model]
        assert not torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


# Layers that servers train.


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda m: m.last.requires_grad_(False), r"\['last.weight', 'last.bias'\] were frozen after"),
        (lambda m: m.last.bias.requires_grad_(False), r"\['last.bias'\] were frozen after"),
        (lambda m: m.first.requires_grad_(True), r"\['first.weight', 'first.bias'\] were unfrozen after"),
        (
            lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True),
            "'last.weight' was replaced by another one",
        ),
        (lambda m: setattr(m.last, "weight", nn.Parameter(m.last.weight.detach())), "'last.weight' was replaced"),
        (lambda m: nn.utils.weight_norm(m.last), "'last.weight' was replaced"),
    ],
)
def test_a_layer_that_changes_after_the_optimizer_is_refused(change, says):
    with gradbus.local("layers") as session:
        model = Model()
        model.first = nn.Linear(4, 4).requires_grad_(False)
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5), dense=gradbus.Adam(0.5))
        loss_of(model, 0).backward()
        opt.step()
        opt.zero_grad()
        try:
            change(model)
        except TypeError:
            pytest.skip("load_state_dict(assign=True) is of PyTorch 2.1")
        loss_of(model, 0).backward()
        for _ in range(2):
            with pytest.raises(gradbus.OrderError, match=says):
                opt.step()
        assert session.batch == 1


def test_hooks_of_layers_are_those_of_pytorch():
    session, model, opt, plain, sgd = made("hooks")
    with session:
        for one in model, plain:
            one.last.weight.register_hook(lambda grad: grad * 0.25)
        for i in range(3):
            both(model, plain, i)
            step(opt, sgd)
        equal(session, model, plain, atol=ATOL)


# Groups.


def test_a_hyperparameter_that_is_set_is_refused():
    """When the session begins, and at the next step, before anything is sent. The rate alone acts."""
    for name, value in (("weight_decay", 0.1), ("momentum", 0.9), ("betas", (0.5, 0.9)), ("eps", 1.0), ("amsgrad", True)):
        for late in False, True:
            session, model, opt, _, _ = made("groups")
            with session:
                if late:
                    loss_of(model, 0).backward()
                    opt.step()
                batch = session.batch
                for group in opt.param_groups:
                    group[name] = value
                    with pytest.raises(gradbus.ConfigError, match=f"param_groups of .* have {name}="):
                        loss_of(model, 0).backward()
                        opt.step()
                    assert session.batch == batch
                    del group[name]
                group["note"] = "of the script"
                loss_of(model, 0).backward()
                opt.step()
                assert session.batch == batch + 1


def test_schedulers_may_keep_what_they_like():
    with gradbus.local("cycles") as session:
        model = Model()
        opt = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5), dense=gradbus.SGD(0.5))
        one = torch.optim.lr_scheduler.OneCycleLR(opt, 0.5, total_steps=10, cycle_momentum=False)
        for i in range(3):
            loss_of(model, i).backward()
            opt.step()
            one.step()
        assert session.batch == 3


def test_groups_and_states_of_others_are_refused():
    session, model, opt, plain, sgd = made("states")
    with session:
        with pytest.raises(gradbus.ConfigError, match=r"the state has groups \[None\]: want \['embeddings', 'dense'\]"):
            opt.load_state_dict(sgd.state_dict())
        opt.load_state_dict(opt.state_dict())
        loss_of(model, 0).backward()
        opt.param_groups[1]["params"].pop()
        with pytest.raises(gradbus.ConfigError, match="'dense' have other parameters"):
            opt.step()
        opt.param_groups.pop()
        with pytest.raises(gradbus.ConfigError, match=r"param_groups are \['embeddings'\]: want"):
            opt.step()
        assert session.batch == 0
